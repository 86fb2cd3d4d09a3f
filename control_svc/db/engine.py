"""Databases by URL: how connections are made, and what keeps writers apart.

SQLite takes one writer at a time, and answers a second one with "database is locked" after a wait.
So there is one writing connection here, taken in order of arrival, and the data folder is locked
against a second process, as is the folder of a SQLite file elsewhere. PostgreSQL keeps writers
apart itself, from any number of processes.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from control_svc.db.notifications import LocalNotifications, Notifications, PostgresNotifications
from control_svc.db.transaction import Clock, Transactions
from svc_kit.lifecycle import StartupError

FILE_NAME: Final = "control.sqlite3"
_LOCK_NAME: Final = "control.lock"
_READERS: Final = 4
_POSTGRES_LIMITS: Final = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}


class Database(NamedTuple):
    """An open database."""

    writer: AsyncEngine
    migrator: AsyncEngine
    """For changes of the schema: with foreign keys off on SQLite, which changes a table by dropping
    it and making it anew; its children would go with it."""
    transactions: Transactions
    is_shared: bool
    """Whether other control processes may use it at the same time."""
    notifications: Notifications
    """Receives what any of its processes has announced."""
    connect_dedicated: Callable[[], AsyncEngine] | None
    """Opens an engine of one connection beside the pool; None where no other process writes."""
    clock: Clock | None
    """Replaces the clock of the database."""


@asynccontextmanager
async def open_database(
    url: str | None, data_dir: Path, clock: Clock | None = None
) -> AsyncIterator[Database]:
    """The database of a URL; None: SQLite in the data folder.

    `clock` stands in for the database's. Raises StartupError for a URL of another kind, and where
    another process has the data folder.
    """
    target = _target(url, data_dir)
    is_postgres = target.get_backend_name() == "postgresql"
    opened = _open_postgres(target, clock) if is_postgres else _open_sqlite(target, data_dir, clock)
    async with opened as database:
        yield database


@asynccontextmanager
async def _open_postgres(target: URL, clock: Clock | None) -> AsyncIterator[Database]:
    engine = _postgres(target, size=10)
    # A read sees one moment, however many queries it has.
    reader = engine.execution_options(isolation_level="REPEATABLE READ")
    notifications = PostgresNotifications(engine)
    transactions = Transactions(engine, reader, nullcontext, notifications, clock)
    try:
        async with notifications.running():
            yield Database(
                engine,
                engine,
                transactions,
                True,
                notifications,
                lambda: _postgres(target, size=1),
                clock,
            )
    finally:
        await transactions.close()
        await engine.dispose()


@asynccontextmanager
async def _open_sqlite(target: URL, data_dir: Path, clock: Clock | None) -> AsyncIterator[Database]:
    with _locked(Path(str(target.database)).parent, data_dir):
        migrator = _sqlite(target, size=1, begin="BEGIN IMMEDIATE", pragmas=_MIGRATOR)
        writer = _sqlite(target, size=1, begin="BEGIN IMMEDIATE", pragmas=_WRITER)
        reader = _sqlite(target, size=_READERS, begin="BEGIN", pragmas=_READER)
        turn = asyncio.Lock()  # first come, first served
        notifications = LocalNotifications()
        transactions = Transactions(writer, reader, lambda: turn, notifications, clock or _utc_now)
        try:
            yield Database(writer, migrator, transactions, False, notifications, None, clock)
        finally:
            await transactions.close()
            for engine in (reader, writer, migrator):
                await engine.dispose()


def _utc_now() -> datetime:
    """The time of a database in this process is this process's."""
    return datetime.now(UTC)


_PATIENT: Final = "PRAGMA busy_timeout = 5000"
_LINKED: Final = "PRAGMA foreign_keys = ON"
# FULL: what a caller was told is on the disk, also after a power cut.
_SAFE: Final = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _PATIENT)
_MIGRATOR: Final = (*_SAFE, "PRAGMA foreign_keys = OFF")
_WRITER: Final = (*_SAFE, _LINKED)
_READER: Final = (_PATIENT, _LINKED, "PRAGMA query_only = ON")
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def _target(url: str | None, data_dir: Path) -> URL:
    if url is None:
        return URL.create("sqlite+aiosqlite", database=str(data_dir / FILE_NAME))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StartupError("database_url cannot be read; write postgresql://...") from None
    drivers = {
        "postgresql": "postgresql+asyncpg",
        "postgres": "postgresql+asyncpg",
        "sqlite": "sqlite+aiosqlite",
    }
    kind = parsed.drivername.partition("+")[0]
    if kind not in drivers or (kind == "sqlite" and not parsed.database):
        raise StartupError(
            f"database_url names {kind}; there are postgresql://... and sqlite:///FILE"
        )
    if kind != "sqlite":
        parsed = _with_driver_options(parsed)
    return parsed.set(drivername=drivers[kind])


def _with_driver_options(url: URL) -> URL:
    """A URL of libpq's kind with the options as the driver calls them. Raises StartupError."""
    unknown = sorted(set(url.query) - {"host", "port", "sslmode"})
    if unknown:
        raise StartupError(
            f"database_url has options that are not known: {', '.join(unknown)};"
            " there are host, port and sslmode"
        )
    mode = url.query.get("sslmode")
    if mode is None:
        return url
    if mode not in _SSL_MODES:
        raise StartupError(f"sslmode in database_url is one of {', '.join(_SSL_MODES)}")
    return url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})


def _postgres(target: URL, *, size: int) -> AsyncEngine:
    return create_async_engine(
        target,
        pool_pre_ping=True,
        pool_size=size,
        max_overflow=size,
        connect_args={"server_settings": _POSTGRES_LIMITS, "timeout": 10},
    )


def _sqlite(target: URL, *, size: int, begin: str, pragmas: tuple[str, ...]) -> AsyncEngine:
    engine = create_async_engine(target, pool_size=size, max_overflow=0)

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: DBAPIConnection, _record: Any) -> None:
        # The driver would begin transactions on its own, and deferred ones.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def start(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def _locked(*folders: Path) -> Iterator[None]:
    """The folders of the rows and of the bytes, both ours alone. Raises StartupError."""
    with ExitStack() as stack:
        for folder in {folder.resolve() for folder in folders}:
            stack.enter_context(_locked_folder(folder))
        yield


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """The folder, ours alone until this process ends. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StartupError(
            f"another control process has the data folder {folder}: stop it, choose another"
            " data_dir, or use PostgreSQL (database_url), which takes any number of them"
        ) from error
    try:
        yield
    finally:
        os.close(handle)
