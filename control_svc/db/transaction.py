"""Transactions: each is committed here and nowhere else.

Work that conflicts with another transaction (a serialization failure, a deadlock, a unique key) is
run again from its start, a few times. An unreachable database is UNAVAILABLE, a full one
STORAGE_FAILED.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

from asyncpg import InternalClientError  # type: ignore[import-untyped]
from sqlalchemy import func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from control_svc.db.notifications import Notifications
from control_svc.db.tables import Instant, SecretRow
from svc_kit.errors import StorageFailed, UpstreamUnavailable

Clock = Callable[[], datetime]
"""The time, with its zone."""


ResultT = TypeVar("ResultT")
ATTEMPTS: Final = 5
_LONGEST_PAUSE_S: Final = 0.05
# Of PostgreSQL; SQLite has one writer and therefore no conflicts.
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_DISK_FULL: Final = "53100"
_NOT_SERVING: Final = ("08", "57P", "53300", "55P03", "57014")
"""States, or their classes, in which a server is not there, is stopping or starting, or is too
busy: also to give a lock, or to finish a statement, within our limits."""


class Transaction:
    """An open transaction: its session, its time and the notifications that its commit sends.

    Queries of the slices are built on it: `RunQueries(tx)`.
    """

    def __init__(self, session: AsyncSession, clock: Clock | None = None) -> None:
        """`clock` replaces the clock of the database."""
        self.session = session
        self.announced: set[str] = set()
        self._clock = clock
        self._now: datetime | None = None

    async def now(self) -> datetime:
        """The time of the database, one for the whole transaction: clocks of processes differ."""
        if self._now is None:
            self._now = await self._read_clock()
        return self._now

    def announce(self, topic: str) -> None:
        """Notify the listeners of a topic, in every process, once this is committed."""
        self.announced.add(topic)

    async def _read_clock(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        found = await self.session.execute(select(func.clock_timestamp(type_=Instant)))
        return found.scalar_one()


DeleteHook = Callable[[Transaction, str, str], Awaitable[None]]
"""Called with the project and the id of an object, in the transaction that deletes it."""


class Transactions:
    """Runs work in transactions: all of it is committed, or nothing.

    Work may be run again from its start after a conflict with another transaction, so it must do
    nothing that cannot be done twice: no blobs, no calls. A caller that is cancelled stops waiting;
    its transaction runs to its end, since breaking it off would cost its connection, and SQLite has
    only one that writes.
    """

    def __init__(
        self,
        writer: AsyncEngine,
        reader: AsyncEngine,
        turn: Callable[[], AbstractAsyncContextManager[object]],
        notifications: Notifications,
        clock: Clock | None = None,
    ) -> None:
        """`turn` is entered by writers: a lock where only one may write. `clock` None means the
        clock of the database.
        """
        self._writer = writer
        self._reader = reader
        self._turn = turn
        self._notifications = notifications
        self._clock = clock
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait for transactions whose callers were cancelled."""
        if self._running:
            await asyncio.wait(self._running)

    async def write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Run the work and commit. Raises UpstreamUnavailable or StorageFailed."""
        return await self._to_its_end(self._write(work))

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Run work that changes nothing. Raises UpstreamUnavailable."""
        return await self._to_its_end(self._read(work))

    async def _to_its_end(self, transaction: Coroutine[None, None, ResultT]) -> ResultT:
        running = asyncio.create_task(transaction)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    async def _read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        async with _translated(), self._transaction(self._reader) as tx:
            return await work(tx)

    async def _write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._write_once(work)
            except DBAPIError as error:
                if not _is_conflict(error):
                    raise
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_S))  # noqa: S311  (no secret)
        return await self._write_once(work)

    async def _write_once(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        async with self._turn(), _translated(), self._transaction(self._writer) as tx:
            result = await work(tx)
        self._notifications.send(tx.announced)
        return result

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[Transaction]:
        async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
            yield Transaction(session, self._clock)


async def shared_secret(tx: Transaction, name: str, candidate: bytes) -> bytes:
    """The secret of a name that all processes on the database share.

    The candidate is stored, and returned, where there is none yet.
    """
    row = await tx.session.get(SecretRow, name)
    if row is not None:
        return row.value
    await tx.session.execute(insert(SecretRow).values(name=name, value=candidate))
    return candidate


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """What the state of the database is to a caller; conflicts and defects pass as they are."""
    try:
        yield
    except DBAPIError as error:
        if _is_full(error):
            raise StorageFailed(problem="the database's disk is full") from error
        if error.connection_invalidated or _state(error).startswith(_NOT_SERVING):
            raise UpstreamUnavailable(service="database") from error
        raise
    except (OSError, PoolTimeout, InternalClientError) as error:
        # Nobody listens there, all connections are in use, or one was cut within an answer, which
        # the driver takes for a defect of its own.
        raise UpstreamUnavailable(service="database") from error


def _is_conflict(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or _state(error) in _CONFLICTS


def _is_full(error: DBAPIError) -> bool:
    return _state(error) == _DISK_FULL or "database or disk is full" in str(error.orig)


def _state(error: DBAPIError) -> str:
    """The SQLSTATE; empty on SQLite, which has none."""
    return getattr(error.orig, "sqlstate", None) or ""
