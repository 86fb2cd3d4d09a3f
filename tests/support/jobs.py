"""Work for tests: a handler that does what it is told, and a database with workers over it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from control_svc.base.ids import JOB, IdSource
from control_svc.db import migrations
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Clock, Transaction
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import DeadLetterHandler, Leases, LeaseTerms, ResultT, Work
from control_svc.jobs.model import AttemptResult, Claim, Job, NewJob
from control_svc.jobs.queries import JobQueries

KIND = "test"
PROJECT = "p"
LEASE = timedelta(seconds=15)
Run = Callable[[Claim, JobContext], Awaitable[None]]


async def at_once(_claim: Claim, _context: JobContext) -> None:
    """Work that is done already."""


async def for_ever(_claim: Claim, _context: JobContext) -> None:
    """Work without an end."""
    await asyncio.Event().wait()


@dataclass
class Handler:
    """Does what `run_job` says, and remembers what it was asked for."""

    run_job: Run = at_once
    kind: str = KIND
    concurrency: int = 4
    claims: list[Claim] = field(default_factory=list)
    dead_jobs: list[Job] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, claim: Claim, context: JobContext) -> None:
        """An attempt."""
        self.claims.append(claim)
        self.news.set()
        await self.run_job(claim, context)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """The end of a job."""
        self.dead_jobs.append(job)
        self.news.set()


class Jobs:
    """The jobs of one project in a database."""

    def __init__(self, database: Database, ids: IdSource, project: str = PROJECT) -> None:
        self.transactions = database.transactions
        self.project = project
        self.ids = ids

    async def add(self, **about: Any) -> Job:
        """A job of a subject of its own."""
        job_id = self.ids.new(JOB)
        new = NewJob(**{"id": job_id, "kind": KIND, "subject": job_id, **about})
        return await self.transactions.write(lambda each: JobQueries(each).add(self.project, new))

    async def get(self, job: Job | str) -> Job:
        """A job as it is."""
        job_id = job if isinstance(job, str) else job.id
        found = await self.transactions.read(
            lambda each: JobQueries(each).get(self.project, job_id)
        )
        assert found is not None
        return found

    async def exists(self, job: Job) -> bool:
        """Whether it is still known."""
        found = await self.transactions.read(
            lambda each: JobQueries(each).get(self.project, job.id)
        )
        return found is not None

    async def cancel(self, job: Job) -> Job | None:
        """Ask for its end."""
        return await self.transactions.write(
            lambda each: JobQueries(each).request_cancel(self.project, job.kind, job.subject)
        )


@asynccontextmanager
async def a_database(
    folder: Path, url: str | None = None, clock: Clock | None = None
) -> AsyncIterator[Database]:
    """A database with our tables."""
    async with open_database(url, folder, clock) as database:
        await migrations.upgrade(database.migrator)
        yield database


class WatchedLeases(Leases):
    """Leases that tell of every attempt's end, once it is durable."""

    ends: asyncio.Queue[Job]

    async def end(self, claim: Claim, ending: AttemptResult) -> Job:
        """As it is, and tell."""
        job = await super().end(claim, ending)
        self.ends.put_nowait(job)
        return job

    async def take_over_all(self) -> list[Job]:
        """Every orphan, queued again or dead."""
        return [await self.take_over(orphan) for orphan in await self.orphans()]

    async def finish(self, claim: Claim, work: Work[ResultT]) -> ResultT:
        """As it is, and tell."""
        result = await super().finish(claim, work)
        found = await self._transactions.read(
            lambda each: JobQueries(each).get(claim.project, claim.job_id)
        )
        assert found is not None
        self.ends.put_nowait(found)
        return result


def leases_of(
    database: Database,
    owner: str,
    *,
    dead_letter_handler: DeadLetterHandler | None = None,
    is_exclusive: bool = False,
) -> WatchedLeases:
    """The leases of a process."""
    terms = LeaseTerms(owner=owner, lease=LEASE, is_exclusive=is_exclusive)
    dead_letter_handlers = {KIND: dead_letter_handler or Handler()}
    leases = WatchedLeases(database.transactions, dead_letter_handlers, terms, lambda: 0.0)
    leases.ends = asyncio.Queue()
    return leases
