"""A Hypothesis state machine of workers that stall, die and resume late, over a real database with
a manual clock. Invariants are checked in every step and at the end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from control_svc.base.idempotency import IdempotencyQueries, IdempotencyRecord
from control_svc.base.ids import JOB, IdSource
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import CrossWork, Transaction
from control_svc.jobs import model as job_model
from control_svc.jobs.queries import JobQueries, JobQueueQueries
from svc_kit.errors import SlowReader
from tests.support.control import SetClock
from tests.support.examples import examples
from tests.support.jobs import KIND, LEASE, WatchedLeases, make_leases, no_change
from tests.support.postgres import execute

ResultT = TypeVar("ResultT")
OpenDatabase = Callable[[SetClock], AbstractAsyncContextManager[Database]]
WORKERS = st.sampled_from(["a", "b", "c"])
BRIEF = settings(stateful_step_count=40, deadline=None, phases=[Phase.generate])
"""Without shrinking, which would take minutes; 40 steps are readable as they are."""
START = datetime(2026, 1, 1, tzinfo=UTC)


class Died(Exception):
    """The worker died in the middle of a transaction."""


@dataclass
class Expected:
    job: job_model.Job
    owner: str = ""
    lease_expires_at: datetime = START

    @property
    def claim(self) -> job_model.Claim | None:
        """The only valid claim."""
        return self.job.claim if self.job.state is job_model.JobState.RUNNING else None


async def insert_mark(tx: Transaction, job: job_model.Claim | job_model.Job, mark: str) -> None:
    """Insert a row for a job; a second insert with the same mark fails."""
    job_id = job.job_id if isinstance(job, job_model.Claim) else job.id
    await IdempotencyQueries(tx).add(
        IdempotencyRecord(
            method=mark, request_id=job_id, fingerprint="", resource_id="", created_at=START
        )
    )


class DeadMarker:
    """Inserts a mark for every dead job."""

    async def on_dead(self, tx: Transaction, job: job_model.Job) -> None:
        await insert_mark(tx, job, "dead")


class DatabaseMachine(RuleBasedStateMachine):
    """A state machine with an event loop, a manual clock and a database."""

    open_database: OpenDatabase

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock(START)
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.database: Database = self.run(
            self.stack.enter_async_context(type(self).open_database(self.clock))
        )

    def run(self, step: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.loop.run(step)


def open_emptied(url: str, folder: Path, tables: str) -> OpenDatabase:
    """Opens a PostgreSQL database and empties these tables."""

    @asynccontextmanager
    async def open_empty(clock: SetClock) -> AsyncIterator[Database]:
        await execute(url, f"TRUNCATE {tables}")
        async with open_database(url, folder, clock) as database:
            yield database

    return open_empty


def check_histories(
    machine: type[DatabaseMachine], open_database: OpenDatabase, max_examples: int
) -> None:
    """Run random histories of a machine, each on a database of its own."""
    on_database = type(machine.__name__, (machine,), {"open_database": staticmethod(open_database)})
    brief = settings(BRIEF, max_examples=examples(max_examples))
    run_state_machine_as_test(on_database, settings=brief)


class JobMachine(DatabaseMachine):
    """Three workers, two projects, and every claim ever made."""

    claims: Bundle[job_model.Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.ids = IdSource(self.clock)
        self.expected: dict[str, Expected] = {}
        self.every_claim: list[job_model.Claim] = []
        self.restarts = dict.fromkeys("abc", 0)

    def write_now(self, work: CrossWork[ResultT]) -> ResultT:
        """Run a transaction that is not a worker's."""
        return self.run(self.database.across_projects.write(work))

    def owner(self, worker: str) -> str:
        """The lease owner of a worker; a new one after each restart."""
        return f"{worker}{self.restarts[worker]}"

    def leases(self, owner: str) -> WatchedLeases:
        return make_leases(self.database.across_projects, owner, {KIND: DeadMarker()})

    # ---- steps

    @initialize(projects=st.lists(st.sampled_from("pq"), min_size=1, max_size=4))
    def add_first(self, projects: list[str]) -> None:
        for project in projects:
            self.add(project, job_model.JobPriority.NORMAL)

    @rule(project=st.sampled_from("pq"), priority=st.sampled_from(job_model.JobPriority))
    def add(self, project: str, priority: job_model.JobPriority) -> None:
        job_id = self.ids.new(JOB)
        new = job_model.NewJob(id=job_id, kind=KIND, subject=job_id, priority=priority)
        job = self.write_now(lambda tx: JobQueries(tx.of(project)).add(new))
        self.expected[job_id] = Expected(job)

    @rule(target=claims, worker=WORKERS)
    def claim(self, worker: str) -> Any:
        claim = self.claim_as(self.owner(worker))
        return multiple() if claim is None else claim

    def claim_as(self, owner: str) -> job_model.Claim | None:
        """Claim the next job; there is one exactly if one is due, and its fence grows."""
        is_due = any(
            each.job.state is job_model.JobState.QUEUED and each.job.run_after <= self.clock.now
            for each in self.expected.values()
        )
        job = self.run(self.leases(owner).claim([KIND]))
        assert (job is not None) == is_due
        if job is None:
            return None
        expected = self.expected[job.id]
        assert expected.job.state is job_model.JobState.QUEUED
        assert job.fence == expected.job.fence + 1
        self.expected[job.id] = Expected(job, owner, self.clock.now + LEASE)
        self.every_claim.append(job.claim)
        return job.claim

    @rule(claim=claims, progress=st.booleans())
    def write(self, claim: job_model.Claim, progress: bool) -> None:
        """A worker, perhaps a late one, writes."""
        write = self.leases("any").write(claim, no_change, progress=progress)
        if not self.is_valid(claim):
            with pytest.raises(job_model.LeaseLost):
                self.run(write)
            return
        self.run(write)
        expected, now = self.expected[claim.job_id], self.clock.now
        if expected.lease_expires_at - now <= LEASE / 2:
            expected.lease_expires_at = now + LEASE
        if progress:
            expected.job = expected.job.reset_attempts()

    @rule(claim=claims)
    def finish(self, claim: job_model.Claim) -> None:
        """A worker, perhaps a late one, finishes its job with a mark."""
        finish = self.leases("any").finish(claim, lambda tx: insert_mark(tx, claim, "done"))
        if not self.is_valid(claim):
            with pytest.raises(job_model.LeaseLost):
                self.run(finish)
            return
        self.run(finish)
        job = self.write_now(lambda tx: JobQueries(tx.of(claim.project)).get(claim.job_id))
        assert job is not None
        assert job.state is job_model.JobState.DONE
        self.expected[claim.job_id].job = job

    @rule(claim=claims)
    def die_finishing(self, claim: job_model.Claim) -> None:
        """A worker dies in its last transaction, so its mark is rolled back."""

        async def work(tx: Transaction) -> None:
            await insert_mark(tx, claim, "done")
            raise Died

        with pytest.raises(Died if self.is_valid(claim) else job_model.LeaseLost):
            self.run(self.leases("any").finish(claim, work))

    @rule(
        claim=claims,
        outcome=st.sampled_from(job_model.Outcome).filter(
            lambda each: each is not job_model.Outcome.DONE
        ),
    )
    def end(self, claim: job_model.Claim, outcome: job_model.Outcome) -> None:
        """An attempt ends without finishing the job."""
        result = job_model.AttemptResult(outcome, SlowReader(unread_events=1, limit_s=1))
        end = self.leases("any").end(claim, result)
        if self.is_valid(claim):
            self.expected[claim.job_id].job = self.run(end)
            assert self.expected[claim.job_id].claim is None
        else:
            with pytest.raises(job_model.LeaseLost):
                self.run(end)

    @rule(worker=WORKERS)
    def renew(self, worker: str) -> None:
        owner = self.owner(worker)
        self.write_now(lambda tx: JobQueueQueries(tx).renew(owner, LEASE))
        for expected in self.expected.values():
            if expected.owner == owner:
                expected.lease_expires_at = self.clock.now + LEASE

    @rule(seconds=st.sampled_from([1, 8, 14, 15]))
    def wait(self, seconds: int) -> None:
        """Time passes without heartbeats."""
        self.clock.advance(seconds=seconds)

    @rule(target=claims, worker=WORKERS)
    def stall(self, worker: str) -> Any:
        """Only this worker sends heartbeats for a whole lease, then takes over from the others."""
        for _ in range(2):
            self.clock.advance(seconds=LEASE.total_seconds() / 2)
            self.renew(worker)
        self.take_over(worker)
        return self.claim(worker)

    @rule(worker=WORKERS)
    def restart(self, worker: str) -> None:
        """A worker is killed and restarted; its claims may still be used late."""
        self.restarts[worker] += 1

    @rule(worker=WORKERS)
    def take_over(self, worker: str) -> None:
        self.take_over_as(self.owner(worker))

    def take_over_as(self, owner: str) -> None:
        """Take over the orphans: exactly the jobs of other owners whose leases have expired."""
        orphans = {
            job_id
            for job_id, each in self.expected.items()
            if each.claim and each.owner != owner and each.lease_expires_at <= self.clock.now
        }
        jobs = self.run(self.leases(owner).take_over_all())
        assert {job.id for job in jobs} == orphans
        for job in jobs:
            self.expected[job.id].job = job

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancellation of a job is requested; it has an effect only if the job is unfinished."""
        if not self.expected:
            return
        expected = self.expected[data.draw(st.sampled_from(sorted(self.expected)))]
        project, subject = expected.job.project, expected.job.subject
        job = self.write_now(lambda tx: JobQueries(tx.of(project)).request_cancel(KIND, subject))
        assert (job is not None) == (expected.job.state in job_model.UNFINISHED)
        expected.job = job or expected.job

    # ---- invariants

    def is_valid(self, claim: job_model.Claim) -> bool:
        """Whether the claim may write."""
        return self.expected[claim.job_id].claim == claim

    def teardown(self) -> None:
        """One healthy worker ends all jobs; each has exactly one mark."""
        try:
            self.end_all()
            self.check_marks()
        finally:
            self.run(self.stack.aclose())
            self.loop.close()

    def end_all(self) -> None:
        """End every job; late claims change nothing."""
        self.clock.advance(seconds=(job_model.LONGEST_BACKOFF + LEASE).total_seconds())
        self.take_over_as("last")
        self.clock.advance(seconds=job_model.LONGEST_BACKOFF.total_seconds())
        while (claim := self.claim_as("last")) is not None:
            self.finish(claim)
        for claim in self.every_claim:
            self.finish(claim)

    def check_marks(self) -> None:
        """Every job is done or dead, and has one mark of that kind."""
        for job_id, expected in self.expected.items():
            job = expected.job
            marks = [mark for mark in ("done", "dead") if self.has_mark(job, mark)]
            assert marks == [job.state.value], job_id

    def has_mark(self, job: job_model.Job, mark: str) -> bool:
        since = START - timedelta(days=1)
        record = self.write_now(
            lambda tx: IdempotencyQueries(tx.of(job.project)).find(mark, job.id, since)
        )
        return record is not None
