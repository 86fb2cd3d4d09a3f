"""Simulated workers that stall, die and come back late, over a real database with a clock that is
set. Hypothesis chooses what happens; what must hold is checked beside every step and at the end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

from control_svc.base.idempotency import IdempotencyQueries, IdempotencyRecord
from control_svc.base.ids import JOB, IdSource
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.jobs.model import (
    LONGEST_BACKOFF,
    UNFINISHED,
    AttemptResult,
    Claim,
    Job,
    JobPriority,
    JobState,
    LeaseLost,
    NewJob,
    Outcome,
)
from control_svc.jobs.queries import JobQueries, JobQueueQueries
from svc_kit.errors import SlowReader
from tests.support.control import SetClock
from tests.support.jobs import KIND, LEASE, WatchedLeases, leases_of

ResultT = TypeVar("ResultT")
Opened = Callable[[SetClock], AbstractAsyncContextManager[Database]]
WORKERS = st.sampled_from(["a", "b", "c"])
BRIEF = settings(stateful_step_count=40, deadline=None, phases=[Phase.generate])
"""Histories that a reader can follow as they are: to shorten one takes minutes of databases."""
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class Died(Exception):
    """The worker ended in the middle of a transaction."""


@dataclass
class Known:
    """What must be so of a job."""

    job: Job
    """As the last step that changed it left it."""
    owner: str = ""
    lease_ends: datetime = BEGINNING

    @property
    def holder(self) -> Claim | None:
        """The only claim that counts."""
        return self.job.claim if self.job.state is JobState.RUNNING else None


async def leave_mark(tx: Transaction, job: Claim | Job, mark: str) -> None:
    """Something that a job does to the database, which refuses to take it twice."""
    job_id = job.job_id if isinstance(job, Claim) else job.id
    await IdempotencyQueries(tx).add(
        job.project,
        IdempotencyRecord(
            method=mark, request_id=job_id, fingerprint="", resource_id="", created_at=BEGINNING
        ),
    )


class Gravedigger:
    """Leaves a mark for every dead job."""

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Called in the transaction in which it dies."""
        await leave_mark(tx, job, "dead")


class JobMachine(RuleBasedStateMachine):
    """Three workers, two projects, and every claim that was ever made."""

    opened: Opened
    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock(BEGINNING)
        self.ids = IdSource(self.clock)
        self.known: dict[str, Known] = {}
        self.every_claim: list[Claim] = []
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.database = self.do(self.stack.enter_async_context(type(self).opened(self.clock)))
        self.lives = dict.fromkeys("abc", 0)

    def do(self, step: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a step to its end."""
        return self.loop.run(step)

    def owner(self, worker: str) -> str:
        """A worker that died comes back under another name."""
        return f"{worker}{self.lives[worker]}"

    def leases(self, owner: str) -> WatchedLeases:
        """What an owner can do."""
        return leases_of(self.database, owner, dead_letter_handler=Gravedigger())

    # ---- what happens

    @initialize(projects=st.lists(st.sampled_from("pq"), min_size=1, max_size=4))
    def begin(self, projects: list[str]) -> None:
        """There is some work."""
        for project in projects:
            self.add(project, JobPriority.NORMAL)

    @rule(project=st.sampled_from("pq"), priority=st.sampled_from(JobPriority))
    def add(self, project: str, priority: JobPriority) -> None:
        """Somebody asks for work."""
        job_id = self.ids.new(JOB)
        new = NewJob(id=job_id, kind=KIND, subject=job_id, priority=priority)
        job = self.do(
            self.database.transactions.write(lambda each: JobQueries(each).add(project, new))
        )
        self.known[job_id] = Known(job)

    @rule(target=claims, worker=WORKERS)
    def claim(self, worker: str) -> Any:
        """A worker takes the next job, whose fence grows; there is one exactly if one is due."""
        claim = self.take(self.owner(worker))
        return multiple() if claim is None else claim

    def take(self, owner: str) -> Claim | None:
        """Claim for an owner."""
        is_due = any(
            known.job.state is JobState.QUEUED and known.job.run_after <= self.clock.now
            for known in self.known.values()
        )
        job = self.do(self.leases(owner).claim([KIND]))
        assert (job is not None) == is_due
        if job is None:
            return None
        known = self.known[job.id]
        assert known.job.state is JobState.QUEUED
        assert job.fence == known.job.fence + 1
        self.known[job.id] = Known(job, owner, self.clock.now + LEASE)
        self.every_claim.append(job.claim)
        return job.claim

    @rule(claim=claims, progress=st.booleans())
    def write(self, claim: Claim, progress: bool) -> None:
        """A worker, perhaps a late one, writes."""

        async def work(_: Transaction) -> None:
            """What it is does not matter here."""

        if not self.counts(claim):
            with pytest.raises(LeaseLost):
                self.do(self.leases("any").write(claim, work, progress=progress))
            return
        self.do(self.leases("any").write(claim, work, progress=progress))
        known, now = self.known[claim.job_id], self.clock.now
        if known.lease_ends - now <= LEASE / 2:
            known.lease_ends = now + LEASE
        if progress:
            known.job = known.job.reset_attempts()

    @rule(claim=claims)
    def finish(self, claim: Claim) -> None:
        """A worker, perhaps a late one, comes to the end of the work."""
        if self.counts(claim):
            self.do(self.finishing(claim))
            self.refresh(claim)
            assert self.known[claim.job_id].job.state is JobState.DONE
        else:
            with pytest.raises(LeaseLost):
                self.do(self.finishing(claim))

    async def finishing(self, claim: Claim) -> None:
        """The last transaction of a job, which leaves a mark."""
        await self.leases("any").finish(claim, lambda each: leave_mark(each, claim, "done"))

    @rule(claim=claims)
    def die_finishing(self, claim: Claim) -> None:
        """The mark is on its way when the worker dies: it was never made."""

        async def work(tx: Transaction) -> None:
            await leave_mark(tx, claim, "done")
            raise Died

        with pytest.raises(Died if self.counts(claim) else LeaseLost):
            self.do(self.leases("any").finish(claim, work))

    @rule(
        claim=claims,
        outcome=st.sampled_from(Outcome).filter(lambda each: each is not Outcome.DONE),
    )
    def end(self, claim: Claim, outcome: Outcome) -> None:
        """An attempt ends without having done the job."""
        ending = AttemptResult(outcome, SlowReader(unread_events=1, limit_s=1))
        if self.counts(claim):
            self.known[claim.job_id].job = self.do(self.leases("any").end(claim, ending))
            assert self.known[claim.job_id].holder is None
        else:
            with pytest.raises(LeaseLost):
                self.do(self.leases("any").end(claim, ending))

    @rule(worker=WORKERS)
    def beat(self, worker: str) -> None:
        """A worker lives."""
        owner = self.owner(worker)
        write = self.database.transactions.write
        self.do(write(lambda each: JobQueueQueries(each).renew(owner, LEASE)))
        for known in self.known.values():
            if known.owner == owner:
                known.lease_ends = self.clock.now + LEASE

    @rule(seconds=st.sampled_from([1, 8, 14, 15]))
    def wait(self, seconds: int) -> None:
        """Time passes; who does not beat meanwhile, stalls."""
        self.clock.advance(seconds=seconds)

    @rule(target=claims, worker=WORKERS)
    def stall(self, worker: str) -> Any:
        """Only this worker beats for a whole lease; then it goes on with what was the others'."""
        for _ in range(2):
            self.clock.advance(seconds=LEASE.total_seconds() / 2)
            self.beat(worker)
        self.take_over(worker)
        return self.claim(worker)

    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        """A worker is killed and started again; its claims may still come late."""
        self.lives[worker] += 1

    @rule(worker=WORKERS)
    def take_over(self, worker: str) -> None:
        """Jobs whose leases have run out, and no others, are taken from their workers."""
        self.take_over_as(self.owner(worker))

    def take_over_as(self, owner: str) -> None:
        """Look after the others' jobs."""
        expected = {
            job_id
            for job_id, known in self.known.items()
            if known.holder and known.owner != owner and known.lease_ends <= self.clock.now
        }
        taken = self.do(self.leases(owner).take_over_all())
        assert {job.id for job in taken} == expected
        for job in taken:
            self.known[job.id].job = job

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Somebody wants a job to end; only one that has not ended hears it."""
        if not self.known:
            return
        known = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        project, subject = known.job.project, known.job.subject
        write = self.database.transactions.write
        found = self.do(write(lambda each: JobQueries(each).request_cancel(project, KIND, subject)))
        assert (found is not None) == (known.job.state in UNFINISHED)
        if found is not None:
            known.job = found

    # ---- what must hold

    def counts(self, claim: Claim) -> bool:
        """Whether the claim is the one that may write."""
        return self.known[claim.job_id].holder == claim

    def refresh(self, claim: Claim) -> None:
        """Read a job again."""
        read = self.database.transactions.read
        job = self.do(read(lambda each: JobQueries(each).get(claim.project, claim.job_id)))
        assert job is not None
        self.known[claim.job_id].job = job

    def teardown(self) -> None:
        """One healthy worker ends everything; each job has left one mark, late ones leave none."""
        try:
            self.end_everything()
            self.check_marks()
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    def end_everything(self) -> None:
        """Whatever happened before, every job ends."""
        self.clock.advance(seconds=(LONGEST_BACKOFF + LEASE).total_seconds())
        self.take_over_as("last")
        self.clock.advance(seconds=LONGEST_BACKOFF.total_seconds())
        while (claim := self.take("last")) is not None:
            self.finish(claim)
        for claim in self.every_claim:
            self.finish(claim)

    def check_marks(self) -> None:
        """Done jobs were done once, dead ones are buried, and there are no others."""
        for job_id, known in self.known.items():
            job = known.job
            marks = [mark for mark in ("done", "dead") if self.has_mark(job, mark)]
            assert marks == [job.state.value], job_id

    def has_mark(self, job: Job, mark: str) -> bool:
        """Whether a job left a mark."""
        since = BEGINNING - timedelta(days=1)

        async def look(tx: Transaction) -> bool:
            found = await IdempotencyQueries(tx).find(job.project, mark, job.id, since)
            return found is not None

        return self.do(self.database.transactions.write(look))
