"""Transactions on jobs by a worker: claim, write, finish, fail, take over expired leases."""

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.model import AttemptResult, Claim, Job, JobState, LeaseLost, Outcome
from control_svc.jobs.queries import JobQueueQueries

ResultT = TypeVar("ResultT")
Work = Callable[[Transaction], Awaitable[ResultT]]
ORPHANS_AT_ONCE: Final = 100


class DeadLetterHandler(Protocol):
    """What has to happen to a job's subject when the job is dead."""

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """End the subject with the job's error, in the transaction in which the job dies."""


@dataclass(frozen=True)
class LeaseTerms:
    """Whose leases they are, and how long each holds without a heartbeat."""

    owner: str
    lease: timedelta
    is_exclusive: bool
    """No other process can have the database: who else holds a lease is gone."""


async def lock_claimed(tx: Transaction, claims: Collection[Claim], lease: timedelta) -> set[Claim]:
    """Lock the jobs of those claims that are still valid, for a transaction that writes for all of
    them.
    """
    jobs = await JobQueueQueries(tx).lock_all(claims)
    now = await tx.now()
    for job in jobs:
        kept = job.extend_lease(now, lease)
        if kept != job:
            await JobQueueQueries(tx).save(kept)
    return {job.claim for job in jobs}


class Leases:
    """The leases of one process."""

    def __init__(
        self,
        transactions: Transactions,
        dead_letter_handlers: Mapping[str, DeadLetterHandler],
        terms: LeaseTerms,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`dead_letter_handlers` by kind; jobs of other kinds are left to other processes."""
        self._transactions = transactions
        self._dead_letter_handlers = dead_letter_handlers
        self._terms = terms
        self._chance = chance

    async def claim(self, kinds: Collection[str]) -> Job | None:
        """The next job of these kinds, from now on ours; None: there is none."""

        async def take(tx: Transaction) -> Job | None:
            due = await JobQueueQueries(tx).lock_next(kinds)
            if due is None:
                return None
            now = await tx.now()
            job = due.start_attempt(self._terms.owner, now, self._terms.lease)
            await JobQueueQueries(tx).save(job)
            return job

        return await self._transactions.write(take)

    async def write(self, claim: Claim, work: Work[ResultT], *, progress: bool) -> ResultT:
        """Run the work in a transaction that holds the job. Raises LeaseLost; then nothing was
        done."""

        async def locked(tx: Transaction) -> ResultT:
            job = await JobQueueQueries(tx).lock(claim)
            now = await tx.now()
            written = (job.reset_attempts() if progress else job).extend_lease(
                now, self._terms.lease
            )
            if written != job:
                await JobQueueQueries(tx).save(written)
            return await work(tx)

        return await self._transactions.write(locked)

    async def finish(self, claim: Claim, work: Work[ResultT]) -> ResultT:
        """The last transaction of the work: the job is done with it. Raises LeaseLost."""

        async def last(tx: Transaction) -> ResultT:
            job = await JobQueueQueries(tx).lock(claim)
            await self._close(tx, job, AttemptResult(Outcome.DONE))
            return await work(tx)

        return await self._transactions.write(last)

    async def end(self, claim: Claim, ending: AttemptResult) -> Job:
        """The job after an attempt that did not finish it. Raises LeaseLost."""

        async def close(tx: Transaction) -> Job:
            job = await JobQueueQueries(tx).lock(claim)
            return await self._close(tx, job, ending)

        return await self._transactions.write(close)

    async def owned(self) -> list[Job]:
        """The jobs that are ours."""
        return await self._transactions.read(
            lambda tx: JobQueueQueries(tx).owned(self._terms.owner)
        )

    async def orphans(self) -> list[Job]:
        """Running jobs whose workers are gone."""
        return await self._transactions.read(
            lambda tx: JobQueueQueries(tx).orphans(
                self._dead_letter_handlers.keys(),
                self._terms.owner,
                ORPHANS_AT_ONCE,
                is_exclusive=self._terms.is_exclusive,
            )
        )

    async def take_over(self, orphan: Job) -> Job:
        """End the attempt of a worker that is gone. Raises LeaseLost where it is not, or where
        another process was first.

        Each orphan has its own transaction: one that cannot be buried holds up no other.
        """
        terms = self._terms

        async def close(tx: Transaction) -> Job:
            job = await JobQueueQueries(tx).lock(orphan.claim)
            if not job.is_orphan(terms.owner, await tx.now(), is_exclusive=terms.is_exclusive):
                raise LeaseLost(f"{job.id} has a worker")
            return await self._close(tx, job, AttemptResult(Outcome.LOST))

        return await self._transactions.write(close)

    async def _close(self, tx: Transaction, job: Job, ending: AttemptResult) -> Job:
        ended = job.end_attempt(ending, await tx.now(), self._chance())
        await JobQueueQueries(tx).save(ended)
        if ended.state is JobState.DEAD:
            await self._dead_letter_handlers[job.kind].on_dead(tx, ended)
        return ended
