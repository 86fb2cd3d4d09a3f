"""What errors of the database mean: conflicts, outages, a full disk."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from asyncpg import InternalClientError  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from svc_kit.errors import StorageFailed, UpstreamUnavailable
from svc_kit.local_files import is_shortage

# SQLSTATEs of PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
# Error names of SQLite, which has one writer and therefore no conflicts.
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_DISK_FULL: Final = ("53100", "SQLITE_FULL")
_DISK_FULL_PROBLEM: Final = "the database's disk is full"
_DISK_FAILED: Final = ("58030", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
"""Prefixes: a file cannot be read, written or opened. On SQLite also its log, on a full disk."""
_DISK_FAILED_PROBLEM: Final = "the database cannot use its files"
_TIMEOUTS: Final = ("55P03", "57014", "SQLITE_BUSY")
"""Prefixes: lock timeout and statement timeout, and a lock of another program on SQLite."""
_UNAVAILABLE: Final = ("08", "57P", "53200", "53300", *_TIMEOUTS)
"""Prefixes: connection errors, server shutdown and startup, no memory, too many connections,
timeouts."""
_log = logging.getLogger(__name__)


@asynccontextmanager
async def translate_database_errors() -> AsyncIterator[None]:
    """Raise UpstreamUnavailable or StorageFailed; other errors pass unchanged."""
    try:
        yield
    except DBAPIError as error:
        if _error_code(error).startswith(_DISK_FULL):
            raise storage_failed() from error
        if _error_code(error).startswith(_DISK_FAILED):
            raise storage_failed(_DISK_FAILED_PROBLEM, error.orig) from error
        if error.connection_invalidated or _error_code(error).startswith(_UNAVAILABLE):
            raise UpstreamUnavailable(service="database") from error
        raise
    except (OSError, PoolTimeout, InternalClientError) as error:
        # The server is down, no connection became free, or the connection was closed during a
        # response, for which asyncpg raises InternalClientError.
        if isinstance(error, OSError) and is_shortage(error):
            raise storage_failed(error.strerror or _DISK_FAILED_PROBLEM) from error
        raise UpstreamUnavailable(service="database") from error


def storage_failed(problem: str = _DISK_FULL_PROBLEM, cause: object = None) -> StorageFailed:
    """Log a problem and return the error."""
    _log.warning("the database failed: %s%s", problem, f" ({cause})" if cause else "")
    return StorageFailed(problem=problem)


def is_conflict(error: DBAPIError) -> bool:
    """Whether another transaction was in the way, so that the work may be retried."""
    return isinstance(error, IntegrityError) or _error_code(error) in _CONFLICTS


def is_outage(error: Exception) -> bool:
    """Whether the database is away, busy or full, by an error of SQLAlchemy or asyncpg."""
    return _error_code(error).startswith((*_UNAVAILABLE, *_DISK_FULL))


def is_timeout(error: DBAPIError) -> bool:
    """Whether a statement waited too long for a lock, or took too long."""
    return _error_code(error).startswith(_TIMEOUTS)


def _error_code(error: Exception) -> str:
    """The SQLSTATE of PostgreSQL, or the error name of SQLite."""
    orig = error.orig if isinstance(error, DBAPIError) else error
    return getattr(orig, "sqlstate", None) or getattr(orig, "sqlite_errorname", None) or ""
