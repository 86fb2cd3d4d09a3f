"""The interface of job handlers, and the context of an attempt.

An attempt can end at any `await`, because the process stops or another worker has taken the job
over. So a handler stores state only in transactions from which the next attempt can continue, and
its other side effects must be idempotent.
"""

import asyncio
from typing import Protocol, TypeVar

from control_svc.db.transaction import Transaction, Work
from control_svc.jobs.leases import DeadLetterHandler, Leases
from control_svc.jobs.model import Claim, Job

ResultT = TypeVar("ResultT")


class JobContext:
    """An attempt of a job, for its handler."""

    def __init__(self, job: Job, leases: Leases) -> None:
        self.claim = job.claim
        self.cancelled = asyncio.Event()
        """Set when cancellation is requested: the handler stops early and calls `finish`."""
        if job.cancel_requested_at is not None:
            self.cancelled.set()
        self.has_progress = False
        """Whether the attempt has made progress that the next one need not repeat."""
        self.is_finishing = False
        """Whether the final transaction is in progress or committed."""
        self.is_finished = False
        """Whether the final transaction is committed."""
        self._leases = leases

    async def write(self, work: Work[ResultT], *, progress: bool = False) -> ResultT:
        """Run `work` in a transaction of the project that first locks the job, and commit.

        `progress` resets the count of failed attempts, since part of the job is now durable. Raises
        LeaseLost if the job belongs to another worker; nothing was written, and the handler must
        not catch it.
        """
        result = await self._leases.write(self.claim, work, progress=progress)
        self.has_progress = self.has_progress or progress
        return result

    async def finish(self, work: Work[ResultT]) -> ResultT:
        """Run `work` and mark the job as done, in one transaction. Raises LeaseLost."""
        self.is_finishing = True
        try:
            result = await self._leases.finish(self.claim, work)
            self.is_finished = True
        finally:
            self.is_finishing = self.is_finished
        return result


class JobHandler(DeadLetterHandler, Protocol):
    @property
    def kind(self) -> str:
        """Kind of the jobs."""

    @property
    def concurrency(self) -> int:
        """Maximum number of these jobs that run at the same time in one process."""

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run the job, or resume it. Returning marks it as done.

        UNAVAILABLE and RESOURCE_EXHAUSTED are retried without limit, those of the sandbox up to
        `MAX_POSTPONED_BY_SANDBOX` times, and then as other retryable errors: up to `MAX_ATTEMPTS`
        times without progress. Any other DomainError makes the job a dead letter.
        Raise EngineDied if an engine died while it computed for the job. CancelledError means to
        stop at once.
        """


async def retry_from_start(_tx: Transaction, job: Job) -> str:
    """Retry hook of jobs whose subject needs no preparation."""
    return job.kind
