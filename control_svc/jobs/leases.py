"""A worker's transactions on jobs: claim, write, finish, end, take over."""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from control_svc.db.transaction import (
    CrossProjectTransaction,
    CrossProjectTransactions,
    Transaction,
    Work,
    cross_project_read,
    cross_project_write,
)
from control_svc.jobs.model import AttemptResult, Claim, Job, JobState, LeaseLost, Outcome
from control_svc.jobs.queries import JobQueries, JobQueueQueries

ResultT = TypeVar("ResultT")
ORPHANS_AT_ONCE: Final = 100


class DeadLetterHandler(Protocol):
    """Ends the subjects of dead jobs."""

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """End the subject with the job's error, in the transaction in which the job dies."""


@dataclass(frozen=True)
class LeaseTerms:
    """Owner and duration of the leases of a process."""

    owner: str
    lease: timedelta
    """How long a lease lasts without a heartbeat."""
    is_exclusive: bool
    """Whether no other process can use the database, so that leases of other owners are stale."""


async def lock_claimed(
    tx: CrossProjectTransaction, claims: Collection[Claim], lease: timedelta
) -> set[Claim]:
    """Lock the jobs of the claims that are still valid, renew their leases, and return the claims.

    For a transaction that writes for several jobs.
    """
    jobs = await JobQueueQueries(tx).lock_all(claims)
    now = await tx.now()
    for job in jobs:
        renewed = job.extend_lease(now, lease)
        if renewed != job:
            await JobQueries(tx.of(job.project)).save(renewed)
    return {job.claim for job in jobs}


@dataclass(frozen=True)
class Leases:
    """The leases of one process on its jobs."""

    transactions: CrossProjectTransactions
    dead_letter_handlers: Mapping[str, DeadLetterHandler]
    """By kind. Jobs of other kinds are left to other processes."""
    terms: LeaseTerms
    jitter: Callable[[], float] = random.random
    """Returns a random number in [0, 1) for backoffs."""

    @cross_project_write
    async def claim(self, tx: CrossProjectTransaction, kinds: Collection[str]) -> Job | None:
        """Lease the next job of these kinds that is due; None if no job is."""
        due = await JobQueueQueries(tx).lock_next(kinds)
        if due is None:
            return None
        job = due.start_attempt(self.terms.owner, await tx.now(), self.terms.lease)
        await JobQueries(tx.of(job.project)).save(job)
        return job

    @cross_project_read
    async def has_unfinished(self, tx: CrossProjectTransaction) -> bool:
        """Whether there is any job that is queued or running."""
        return await JobQueueQueries(tx).has_unfinished()

    @cross_project_read
    async def waiting_projects(self, tx: CrossProjectTransaction, kind: str) -> set[str]:
        """The projects that have jobs of this kind that are due."""
        return await JobQueueQueries(tx).waiting_projects(kind)

    @cross_project_write
    async def write(
        self, tx: CrossProjectTransaction, claim: Claim, work: Work[ResultT], *, progress: bool
    ) -> ResultT:
        """Run `work` in a transaction that locks the job. Raises LeaseLost; then nothing is
        written."""
        own = tx.of(claim.project)
        job = await JobQueries(own).lock(claim)
        now = await tx.now()
        updated = (job.reset_attempts() if progress else job).extend_lease(now, self.terms.lease)
        if updated != job:
            await JobQueries(own).save(updated)
        return await work(own)

    @cross_project_write
    async def finish(
        self, tx: CrossProjectTransaction, claim: Claim, work: Work[ResultT]
    ) -> ResultT:
        """Run `work` and mark the job as done, in one transaction. Raises LeaseLost."""
        own = tx.of(claim.project)
        job = await JobQueries(own).lock(claim)
        await self._end(own, job, AttemptResult(Outcome.DONE))
        return await work(own)

    @cross_project_write
    async def end(self, tx: CrossProjectTransaction, claim: Claim, result: AttemptResult) -> Job:
        """Store the result of an attempt that did not finish the job. Raises LeaseLost."""
        own = tx.of(claim.project)
        return await self._end(own, await JobQueries(own).lock(claim), result)

    @cross_project_read
    async def owned(self, tx: CrossProjectTransaction) -> list[Job]:
        """List the running jobs of this process."""
        return await JobQueueQueries(tx).owned(self.terms.owner)

    @cross_project_read
    async def orphans(self, tx: CrossProjectTransaction) -> list[Job]:
        """List running jobs whose workers are gone."""
        return await JobQueueQueries(tx).orphans(
            self.dead_letter_handlers.keys(),
            self.terms.owner,
            ORPHANS_AT_ONCE,
            is_exclusive=self.terms.is_exclusive,
        )

    @cross_project_write
    async def reclaim(self, tx: CrossProjectTransaction, orphan: Job) -> Job:
        """End the attempt of a worker that is gone. Raises LeaseLost if the worker is alive after
        all, or another process has taken the job over first.

        Each orphan has its own transaction, so one whose `on_dead` fails does not block the others.
        """
        terms, own = self.terms, tx.of(orphan.project)
        job = await JobQueries(own).lock(orphan.claim)
        if not job.is_orphan(terms.owner, await tx.now(), is_exclusive=terms.is_exclusive):
            raise LeaseLost(f"job {job.id} has a live worker")
        return await self._end(own, job, AttemptResult(Outcome.LOST))

    async def _end(self, tx: Transaction, job: Job, result: AttemptResult) -> Job:
        ended = job.end_attempt(result, await tx.now(), self.jitter())
        await JobQueries(tx).save(ended)
        if ended.state is JobState.DEAD:
            await self.dead_letter_handlers[job.kind].on_dead(tx, ended)
        return ended
