"""Job queues for tests: handlers, leases, and transactions that fail on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from control_svc.base.ids import JOB, IdSource
from control_svc.db import migrations
from control_svc.db.engine import FILE_NAME, Database, open_database
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransactions,
    CrossWork,
    ResultT,
    Transaction,
    Work,
)
from control_svc.event_log.model import FinalEvents
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import DeadLetterHandler, Leases, LeaseTerms
from control_svc.jobs.model import AttemptResult, Claim, Job, NewJob
from control_svc.jobs.queries import JobQueries
from svc_kit.errors import UpstreamUnavailable

KIND = "test"
PROJECT = "p"
LEASE = timedelta(seconds=15)
UNAVAILABLE = UpstreamUnavailable(service="database", retry_after=0)
Run = Callable[[Claim, JobContext], Awaitable[None]]


async def no_change(_tx: Transaction) -> None:
    """A transaction that changes nothing."""


async def finish_stream(_tx: Transaction) -> FinalEvents:
    """Change nothing and end the stream."""
    return FinalEvents((), is_end=True)


async def return_at_once(_claim: Claim, _context: JobContext) -> None:
    """A job without work."""


async def run_forever(_claim: Claim, _context: JobContext) -> None:
    """A job that never ends."""
    await asyncio.Event().wait()


@dataclass
class Handler:
    """Calls `run_job` for each job, and records its calls."""

    run_job: Run = return_at_once
    kind: str = KIND
    concurrency: int = 4
    claims: list[Claim] = field(default_factory=list)
    dead_jobs: list[Job] = field(default_factory=list)
    is_called: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, claim: Claim, context: JobContext) -> None:
        self.claims.append(claim)
        self.is_called.set()
        await self.run_job(claim, context)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        self.dead_jobs.append(job)


class Jobs:
    def __init__(self, database: Database, ids: IdSource, project: str = PROJECT) -> None:
        self.transactions = database.transactions
        self.across_projects = database.across_projects
        self.project = project
        self.ids = ids

    async def add(self, **fields: Any) -> Job:
        """Queue a job with a subject of its own."""
        job_id = self.ids.new(JOB)
        new = NewJob(**{"id": job_id, "kind": KIND, "subject": job_id, **fields})
        return await self.transactions.of(self.project).write(lambda tx: JobQueries(tx).add(new))

    async def find(self, job_id: str) -> Job | None:
        """Read a job; None if it does not exist."""
        return await self.transactions.of(self.project).read(lambda tx: JobQueries(tx).get(job_id))

    async def get(self, job: Job | str) -> Job:
        result = await self.find(job if isinstance(job, str) else job.id)
        assert result is not None
        return result

    async def cancel(self, job: Job) -> Job | None:
        return await self.transactions.of(self.project).write(
            lambda tx: JobQueries(tx).request_cancel(job.kind, job.subject)
        )


_new_database: list[bytes] = []
"""The contents of a new SQLite database, once the first has been created."""


async def create_sqlite_database(folder: Path) -> None:
    """Create the SQLite database of a folder unless it exists. Copying one is much faster than
    migrating."""
    if not _new_database:
        with TemporaryDirectory() as other:
            async with open_database(None, Path(other)) as database:
                await migrations.upgrade(database.migrator)
            _new_database.append((Path(other) / FILE_NAME).read_bytes())
    path = folder / FILE_NAME
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(_new_database[0])


@asynccontextmanager
async def open_test_database(
    folder: Path, url: str | None = None, clock: Clock | None = None
) -> AsyncIterator[Database]:
    """Open a database with all tables."""
    if url is None:
        await create_sqlite_database(folder)
    async with open_database(url, folder, clock) as database:
        await migrations.upgrade(database.migrator)
        yield database


class Fault(StrEnum):
    """Failure of a transaction that writes."""

    UNAVAILABLE = "unavailable"
    """The transaction does not start."""
    RESPONSE_LOST = "response lost"
    """The transaction commits, but the caller gets an error."""


class FaultyTransactions(CrossProjectTransactions):
    """Counts the transactions of a database and makes some of them fail."""

    def __init__(self, transactions: CrossProjectTransactions) -> None:
        self.faults: list[Fault] = []
        """Failures of the next transactions that write, in order."""
        self.num_written = 0
        self.num_read = 0
        self._transactions = transactions

    async def write(self, work: CrossWork[ResultT]) -> ResultT:
        """Write, unless the next fault prevents it."""
        self.num_written += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault is Fault.UNAVAILABLE:
            raise UNAVAILABLE
        result = await self._transactions.write(work)
        if fault is Fault.RESPONSE_LOST:
            raise UNAVAILABLE
        return result

    async def read(self, work: CrossWork[ResultT]) -> ResultT:
        self.num_read += 1
        return await self._transactions.read(work)


class WatchedLeases(Leases):
    """Leases that put every job whose attempt has ended into a queue."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ended: asyncio.Queue[Job] = asyncio.Queue()

    async def end(self, claim: Claim, result: AttemptResult) -> Job:
        job = await super().end(claim, result)
        self.ended.put_nowait(job)
        return job

    async def claim_next(self) -> Job:
        """Claim a job, which must exist."""
        job = await self.claim([KIND])
        assert job is not None
        return job

    async def take_over_all(self) -> list[Job]:
        return [await self.reclaim(orphan) for orphan in await self.orphans()]

    async def finish(self, claim: Claim, work: Work[ResultT]) -> ResultT:
        result = await super().finish(claim, work)
        job = await self.transactions.read(
            lambda tx: JobQueries(tx.of(claim.project)).get(claim.job_id)
        )
        assert job is not None
        self.ended.put_nowait(job)
        return result


def make_leases(
    transactions: CrossProjectTransactions,
    owner: str,
    dead_letter_handlers: Mapping[str, DeadLetterHandler] | None = None,
) -> WatchedLeases:
    """Leases of one of several processes, without jitter."""
    terms = LeaseTerms(owner=owner, lease=LEASE, is_exclusive=False)
    return WatchedLeases(
        transactions, dead_letter_handlers or {KIND: Handler()}, terms, lambda: 0.0
    )
