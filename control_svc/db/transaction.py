"""Runs transactions: the only place that commits.

After a conflict with another transaction (a serialization failure, a deadlock, a unique key) the
work is retried from its start, a few times. An unreachable database is UNAVAILABLE, a full one
STORAGE_FAILED.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from control_svc.db.database_errors import is_conflict, storage_failed, translate_database_errors
from control_svc.db.disk_reserve import DiskReserve
from control_svc.db.notifications import Notifications
from control_svc.db.tables import Instant, OwnedRow, SecretRow
from svc_kit.errors import StorageFailed
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.tasks import retrieve_exception

Clock = Callable[[], datetime]
"""Returns the time, with a time zone."""


ResultT = TypeVar("ResultT")
RowT = TypeVar("RowT", bound=OwnedRow)
ATTEMPTS: Final = 5
_MAX_RETRY_DELAY_S: Final = 0.05


class CrossProjectTransaction:
    """An open transaction: session, time, and topics to notify after the commit.

    For operators, workers and the sweeper, whose queries (`CrossProjectQueries`) read and write the
    rows of all projects.
    """

    def __init__(self, session: AsyncSession, clock: Clock | None = None) -> None:
        """`clock` replaces the clock of the database."""
        self.session = session
        self.announced: set[str] = set()
        self._clock = clock
        self._now: datetime | None = None

    def of(self, project: str) -> "Transaction":
        """This transaction, for the rows of one project."""
        return Transaction(self, project)

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
        result = await self.session.execute(sa.select(sa.func.clock_timestamp(type_=Instant)))
        return result.scalar_one()


class Transaction:
    """An open transaction of one project.

    The slices build their queries on it, `RunQueries(tx)`, which reach no rows of other projects.
    """

    def __init__(self, opened: CrossProjectTransaction, project: str) -> None:
        self.project = project
        self.session = opened.session
        self.now = opened.now
        self.announce = opened.announce


Work = Callable[[Transaction], Awaitable[ResultT]]
CrossWork = Callable[[CrossProjectTransaction], Awaitable[ResultT]]


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


_Rows = Sequence[Mapping[str, Any]]


class Queries:
    """SQL of a slice, on the rows of the project of a transaction.

    Each statement is made by one of the methods below, or has the condition `_mine`.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._session = tx.session
        self._project = tx.project

    def _mine(self, table: type[OwnedRow]) -> sa.ColumnElement[bool]:
        """The condition that a row belongs to the project."""
        return table.project == self._project

    def _select(self, table: type[RowT], *conditions: sa.ColumnElement[bool]) -> sa.Select[RowT]:
        return sa.select(table).where(self._mine(table), *conditions)

    def _update(self, table: type[OwnedRow], *conditions: sa.ColumnElement[bool]) -> sa.Update:
        return sa.update(table).where(self._mine(table), *conditions)

    def _delete(self, table: type[OwnedRow], *conditions: sa.ColumnElement[bool]) -> sa.Delete:
        return sa.delete(table).where(self._mine(table), *conditions)

    async def _insert(self, table: type[OwnedRow], *rows: Mapping[str, Any]) -> None:
        """Insert rows, given by their columns except for the project."""
        await self._write(sa.insert(table), rows)

    async def _update_each(self, table: type[OwnedRow], *rows: Mapping[str, Any]) -> None:
        """Update rows by their primary keys, given by their columns except for the project."""
        await self._write(sa.update(table), rows)

    async def _write(self, statement: sa.Insert | sa.Update, rows: _Rows) -> None:
        if rows:
            values = [{**row, "project": self._project} for row in rows]
            await self._session.execute(statement, values)


class CrossProjectQueries:
    """SQL of a slice, on the rows of all projects."""

    def __init__(self, tx: CrossProjectTransaction) -> None:
        self._tx = tx
        self._session = tx.session


class InstallationQueries:
    """SQL of a slice, on rows that belong to no project."""

    def __init__(self, tx: Transaction | CrossProjectTransaction) -> None:
        self._tx = tx
        self._session = tx.session


DeleteHook = Callable[[Transaction, str], Awaitable[None]]
"""Called with the id of an object, in the transaction that deletes it."""


class CrossProjectTransactions:
    """Runs work in transactions that may read and write the rows of all projects.

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

    async def write(self, work: CrossWork[ResultT]) -> ResultT:
        """Run the work and commit. Raises UpstreamUnavailable or StorageFailed."""
        reserve = self._reserve
        if reserve and reserve.is_released and not await asyncio.to_thread(reserve.fill):
            raise storage_failed()
        return await self._run_shielded(self._write(work))

    async def delete(self, work: CrossWork[ResultT]) -> ResultT:
        """Like `write`, for work that makes space: on a full disk it uses the reserve."""
        try:
            return await self._run_shielded(self._write(work))
        except StorageFailed:
            if self._reserve is None:
                raise
        await asyncio.to_thread(self._reserve.release)
        return await self._run_shielded(self._write(work))

    async def read(self, work: CrossWork[ResultT]) -> ResultT:
        """Run work that only reads. Raises UpstreamUnavailable."""
        return await self._run_shielded(self._read(work))

    async def _run_shielded(self, transaction: Coroutine[None, None, ResultT]) -> ResultT:
        task = asyncio.create_task(transaction)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(retrieve_exception)
        return await asyncio.shield(task)

    async def _read(self, work: CrossWork[ResultT]) -> ResultT:
        async with translate_database_errors(), self._turn(), self._transaction(self._reader) as tx:
            return await work(tx)

    async def _write(self, work: CrossWork[ResultT]) -> ResultT:
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._write_once(work)
            except DBAPIError as error:
                if not is_conflict(error):
                    raise
            await asyncio.sleep(random.uniform(0, _MAX_RETRY_DELAY_S))  # noqa: S311  (no secret)
        return await self._write_once(work)

    async def _write_once(self, work: CrossWork[ResultT]) -> ResultT:
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
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[CrossProjectTransaction]:
        async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
            yield CrossProjectTransaction(session, self._clock)


class Transactions:
    """Opens transactions that see the rows of one project."""

    def __init__(self, across_projects: CrossProjectTransactions) -> None:
        self._across_projects = across_projects

    def of(self, project: str) -> "ProjectTransactions":
        return ProjectTransactions(self._across_projects, project)


class ProjectTransactions:
    """Runs work in transactions of one project, as `CrossProjectTransactions` does."""

    def __init__(self, across_projects: CrossProjectTransactions, project: str) -> None:
        self._across_projects = across_projects
        self._project = project

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Run the work and commit."""
        return await self._across_projects.write(lambda tx: work(tx.of(self._project)))

    async def delete(self, work: Work[ResultT]) -> ResultT:
        """Like `write`, for work that makes space."""
        return await self._across_projects.delete(lambda tx: work(tx.of(self._project)))

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Run work that only reads."""
        return await self._across_projects.read(lambda tx: work(tx.of(self._project)))


class _OfProjects(Protocol):
    @property
    def transactions(self) -> Transactions: ...


class _AcrossProjects(Protocol):
    @property
    def transactions(self) -> CrossProjectTransactions: ...


ServiceT = TypeVar("ServiceT", bound=_OfProjects)
CrossServiceT = TypeVar("CrossServiceT", bound=_AcrossProjects)
ParametersT = ParamSpec("ParametersT")
_Method = Callable[Concatenate[ServiceT, Transaction, ParametersT], Awaitable[ResultT]]
_Call = Callable[Concatenate[ServiceT, str, ParametersT], Coroutine[Any, Any, ResultT]]
_CrossMethod = Callable[
    Concatenate[CrossServiceT, CrossProjectTransaction, ParametersT], Awaitable[ResultT]
]
_CrossCall = Callable[Concatenate[CrossServiceT, ParametersT], Coroutine[Any, Any, ResultT]]


def write_transaction(
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    """Run a method in a transaction of a project: callers pass the project instead of `tx`.

    The rules of `CrossProjectTransactions` apply: it is run again after a conflict. A request that
    may be large is checked before, since SQLite has only one transaction that writes.
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
    run: Callable[[ProjectTransactions, Work[ResultT]], Awaitable[ResultT]],
    method: _Method[ServiceT, ParametersT, ResultT],
) -> _Call[ServiceT, ParametersT, ResultT]:
    @wraps(method)
    async def call(
        service: ServiceT, project: str, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> ResultT:
        transactions = service.transactions.of(project)
        return await run(transactions, lambda tx: method(service, tx, *args, **kwargs))

    return call


def cross_project_write(
    method: _CrossMethod[CrossServiceT, ParametersT, ResultT],
) -> _CrossCall[CrossServiceT, ParametersT, ResultT]:
    """Like `write_transaction`, across projects: callers leave out `tx`."""

    return _call_across(lambda transactions, work: transactions.write(work), method)


def cross_project_read(
    method: _CrossMethod[CrossServiceT, ParametersT, ResultT],
) -> _CrossCall[CrossServiceT, ParametersT, ResultT]:
    """Like `cross_project_write`, for a method that only reads."""

    return _call_across(lambda transactions, work: transactions.read(work), method)


def _call_across(
    run: Callable[[CrossProjectTransactions, CrossWork[ResultT]], Awaitable[ResultT]],
    method: _CrossMethod[CrossServiceT, ParametersT, ResultT],
) -> _CrossCall[CrossServiceT, ParametersT, ResultT]:
    @wraps(method)
    async def call(
        service: CrossServiceT, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> ResultT:
        return await run(service.transactions, lambda tx: method(service, tx, *args, **kwargs))

    return call


async def shared_secret(tx: CrossProjectTransaction, name: str, candidate: bytes) -> bytes:
    """Return the shared secret with a name; the candidate becomes it if there is none yet."""
    row = await tx.session.get(SecretRow, name)
    if row is not None:
        return row.value
    await tx.session.execute(sa.insert(SecretRow).values(name=name, value=candidate))
    return candidate
