"""Runs transactions: the only place that commits.

After a conflict with another transaction (a serialization failure, a deadlock, a unique key) the
work is retried from its start, a few times. An unreachable database is UNAVAILABLE, a full one
STORAGE_FAILED.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from asyncpg import InternalClientError  # type: ignore[import-untyped]
from sqlalchemy import func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from control_svc.db.disk_reserve import DiskReserve
from control_svc.db.notifications import Notifications
from control_svc.db.tables import Instant, SecretRow
from svc_kit.errors import StorageFailed, UpstreamUnavailable
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.local_files import is_shortage
from svc_kit.logs import project_var

Clock = Callable[[], datetime]
"""Returns the time, with a time zone."""


ResultT = TypeVar("ResultT")
ATTEMPTS: Final = 5
_MAX_RETRY_DELAY_S: Final = 0.05
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


class Transaction:
    """An open transaction: session, time, and topics to notify after the commit.

    The slices build their queries on it: `RunQueries(tx)`.
    """

    def __init__(self, session: AsyncSession, clock: Clock | None = None) -> None:
        """`clock` replaces the clock of the database."""
        self.session = session
        self.announced: set[str] = set()
        self._clock = clock
        self._now: datetime | None = None

    async def now(self) -> datetime:
        """The time of the database, since clocks of processes differ; constant in a transaction."""
        if self._now is None:
            self._now = await self._read_clock()
        return self._now

    def announce(self, topic: str) -> None:
        """Notify the listeners of a topic, in every process, after the commit."""
        self.announced.add(topic)

    async def _read_clock(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        result = await self.session.execute(select(func.clock_timestamp(type_=Instant)))
        return result.scalar_one()


@dataclass(frozen=True)
class TransactionTurns:
    """Shares the connections between projects: how many transactions may run at once, and how many
    seconds one waits for its turn."""

    reads: FairSemaphore
    writes: FairSemaphore
    """May be the same as for reads."""
    wait_s: float

    @asynccontextmanager
    async def reserve(self, semaphore: FairSemaphore) -> AsyncIterator[None]:
        """Wait for a turn of the current project, and hold it. Raises TimeoutError."""
        project = project_var.get()
        async with asyncio.timeout(self.wait_s):
            await semaphore.acquire(1, project)
        try:
            yield
        finally:
            semaphore.release(1, project)


class Queries:
    """SQL of a slice in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._session = tx.session


DeleteHook = Callable[[Transaction, str, str], Awaitable[None]]
"""Called with the project and the id of an object, in the transaction that deletes it."""


class Transactions:
    """Runs work in transactions.

    Work is retried from its start after a conflict, so its only side effects may be SQL and
    `announce`: no blobs, no RPCs. The transaction of a cancelled caller runs to its end, since
    cancelling it would break the connection, and SQLite has only one that writes.
    """

    def __init__(
        self,
        writer: AsyncEngine,
        reader: AsyncEngine,
        notifications: Notifications,
        clock: Clock | None = None,
        reserve: DiskReserve | None = None,
        turns: TransactionTurns | None = None,
    ) -> None:
        """`clock` replaces the clock of the database. `reserve` is disk space for deletions.
        `turns` shares the connections between projects.
        """
        self._writer = writer
        self._reader = reader
        self._turns = turns
        self._notifications = notifications
        self._clock = clock
        self._reserve = reserve
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait for transactions whose callers were cancelled."""
        if self._running:
            await asyncio.wait(self._running)

    async def write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Run the work and commit. Raises UpstreamUnavailable or StorageFailed."""
        reserve = self._reserve
        if reserve and reserve.is_released and not await asyncio.to_thread(reserve.fill):
            raise _storage_failed(_DISK_FULL_PROBLEM)
        return await self._run_shielded(self._write(work))

    async def delete(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Like `write`, for work that makes space: on a full disk it uses the reserve."""
        try:
            return await self._run_shielded(self._write(work))
        except StorageFailed:
            if self._reserve is None:
                raise
        await asyncio.to_thread(self._reserve.release)
        return await self._run_shielded(self._write(work))

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Run work that only reads. Raises UpstreamUnavailable."""
        return await self._run_shielded(self._read(work))

    async def _run_shielded(self, transaction: Coroutine[None, None, ResultT]) -> ResultT:
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        async with translate_database_errors(), self._turn(), self._transaction(self._reader) as tx:
            return await work(tx)

    async def _write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._write_once(work)
            except DBAPIError as error:
                if not _is_conflict(error):
                    raise
            await asyncio.sleep(random.uniform(0, _MAX_RETRY_DELAY_S))  # noqa: S311  (no secret)
        return await self._write_once(work)

    async def _write_once(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        async with (
            translate_database_errors(),
            self._turn(writes=True),
            self._transaction(self._writer) as tx,
        ):
            result = await work(tx)
        self._notifications.send(tx.announced)
        return result

    def _turn(self, *, writes: bool = False) -> AbstractAsyncContextManager[None]:
        turns = self._turns
        if turns is None:
            return nullcontext()
        return turns.reserve(turns.writes if writes else turns.reads)

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[Transaction]:
        async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
            yield Transaction(session, self._clock)


class _HasTransactions(Protocol):
    @property
    def transactions(self) -> Transactions: ...


ServiceT = TypeVar("ServiceT", bound=_HasTransactions)
ParametersT = ParamSpec("ParametersT")
_Method = Callable[Concatenate[ServiceT, Transaction, ParametersT], Awaitable[ResultT]]
_Call = Callable[Concatenate[ServiceT, ParametersT], Coroutine[Any, Any, ResultT]]


def write_transaction(
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    """Run a method in a transaction, its argument `tx`, which callers leave out.

    The rules of `Transactions` apply: it is run again after a conflict. A request that may be large
    is checked before, since SQLite has only one transaction that writes.
    """

    return _call_in(lambda transactions, work: transactions.write(work), method)


def delete_transaction(
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    """Like `write_transaction`, for a method that deletes, also on a full disk."""

    return _call_in(lambda transactions, work: transactions.delete(work), method)


def read_transaction(
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    """Like `write_transaction`, for a method that only reads."""

    return _call_in(lambda transactions, work: transactions.read(work), method)


def _call_in(
    run: Callable[[Transactions, Callable[[Transaction], Awaitable[ResultT]]], Awaitable[ResultT]],
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    @wraps(method)
    async def call(
        service: ServiceT, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> ResultT:
        return await run(service.transactions, lambda tx: method(service, tx, *args, **kwargs))

    return call


async def shared_secret(tx: Transaction, name: str, candidate: bytes) -> bytes:
    """Return the shared secret with a name; the candidate becomes it if there is none yet."""
    row = await tx.session.get(SecretRow, name)
    if row is not None:
        return row.value
    await tx.session.execute(insert(SecretRow).values(name=name, value=candidate))
    return candidate


@asynccontextmanager
async def translate_database_errors() -> AsyncIterator[None]:
    """Raise UpstreamUnavailable or StorageFailed; other errors pass unchanged."""
    try:
        yield
    except DBAPIError as error:
        if _error_code(error).startswith(_DISK_FULL):
            raise _storage_failed(_DISK_FULL_PROBLEM) from error
        if _error_code(error).startswith(_DISK_FAILED):
            raise _storage_failed(_DISK_FAILED_PROBLEM, error.orig) from error
        if error.connection_invalidated or _error_code(error).startswith(_UNAVAILABLE):
            raise UpstreamUnavailable(service="database") from error
        raise
    except (OSError, PoolTimeout, InternalClientError) as error:
        # The server is down, no connection became free, or the connection was closed during a
        # response, for which asyncpg raises InternalClientError.
        if isinstance(error, OSError) and is_shortage(error):
            raise _storage_failed(error.strerror or _DISK_FAILED_PROBLEM) from error
        raise UpstreamUnavailable(service="database") from error


def _storage_failed(problem: str, cause: object = None) -> StorageFailed:
    _log.warning("the database failed: %s%s", problem, f" ({cause})" if cause else "")
    return StorageFailed(problem=problem)


def _is_conflict(error: DBAPIError) -> bool:
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
