"""The interface of job handlers, and the context of an attempt.

An attempt may end at any `await`: its process stops, or another worker has the job. So a handler
stores state only in transactions, each of which the next attempt can continue from, and does what
is visible outside only where a repetition does no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from control_svc.db.transaction import Transaction
from control_svc.jobs.leases import DeadLetterHandler, Leases
from control_svc.jobs.model import Claim, Job
from svc_kit.errors import JobNotRetriable

ResultT = TypeVar("ResultT")


class JobContext:
    """An attempt, as its handler sees it."""

    def __init__(self, job: Job, leases: Leases) -> None:
        self.claim = job.claim
        self.cancelled = asyncio.Event()
        """Set once the job is to end soon: the handler stops, and finishes with what it has."""
        if job.cancel_requested_at is not None:
            self.cancelled.set()
        self.is_finishing = False
        """Whether the last transaction is under way or committed. If the job is another's, that
        transaction says so."""
        self.is_finished = False
        """Whether it is committed."""
        self._leases = leases

    async def write(
        self, work: Callable[[Transaction], Awaitable[ResultT]], *, progress: bool = False
    ) -> ResultT:
        """Run the work in a transaction that begins by locking the job, and commit.

        `progress`: a part of the job is done for good; attempts that failed before it do not count
        any more. Raises LeaseLost, which the handler lets pass: nothing was written.
        """
        return await self._leases.write(self.claim, work, progress=progress)

    async def finish(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """As `write`, and the job is done with it: the subject's end and the job's are one."""
        self.is_finishing = True
        try:
            result = await self._leases.finish(self.claim, work)
            self.is_finished = True
        finally:
            self.is_finishing = self.is_finished
        return result


class JobHandler(DeadLetterHandler, Protocol):
    """Does one kind of work."""

    @property
    def kind(self) -> str:
        """The jobs that it takes."""

    @property
    def concurrency(self) -> int:
        """How many of them run at the same time in one process."""

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run the job, or what is left of it; returning means that it is done.

        Retryable errors are retried: UNAVAILABLE and RESOURCE_EXHAUSTED later and without limit,
        others at most three times without progress. Any other DomainError makes the job a dead
        letter. EngineDied counts a death of an engine over the job. CancelledError means to stop at
        once.
        """


async def retry_from_start(_tx: Transaction, job: Job) -> str:
    """What needs nothing but to be tried."""
    return job.kind


async def refuse_retry(_tx: Transaction, job: Job) -> str:
    """Raise JobNotRetriable: the subject failed with its job, as its client has seen."""
    problem = f"the {job.kind} '{job.subject}' failed, as its client was told."
    raise JobNotRetriable(job=job.id, problem=problem)
