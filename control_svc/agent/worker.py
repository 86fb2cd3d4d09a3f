"""The job handler of runs and responses: restores what earlier attempts recorded, runs the agent
loop, and ends the object.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_svc.agent.loop import AgentLoop
from control_svc.agent.model import LoopResult, LoopWork
from control_svc.agent.recorder import EventSink, TransactionSink, TurnRecorder
from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.inference.turn_client import TokenCounter
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobError
from svc_kit.errors import DomainError, Internal
from svc_kit.errors.status import is_retryable

RecorderT = TypeVar("RecorderT", bound=TurnRecorder)
_NO_ERROR = JobError("INTERNAL", "The server had an error.")


@dataclass(frozen=True)
class LoopWorker(ABC, Generic[RecorderT]):
    """Executes the jobs of runs or responses, whose id is the subject of the job."""

    transactions: Transactions
    writers: GroupCommitter
    loop: AgentLoop
    counter: TokenCounter
    concurrency: int
    """Maximum number of jobs that run at once in this process."""

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run or resume the object, unless it has ended or was deleted."""
        if not await self.start(claim, context):
            return
        async with self.writers.writer(context, claim.subject) as writer:
            recorder = await self.transactions.of(claim.project).read(
                lambda tx: self.restore(tx, claim.subject, writer)
            )
            if recorder is not None:
                await self.execute(recorder, self.prepare(recorder), context.cancelled)

    async def execute(
        self, recorder: RecorderT, prepared: Awaitable[LoopWork], cancelled: asyncio.Event
    ) -> None:
        """Run the loop and end the object.

        Raises LeaseLost, EngineDied, and retryable errors. Other errors end the object.
        """
        try:
            result = await self.loop.run(await prepared, recorder, cancelled)
        except DomainError as error:
            if is_retryable(error):
                raise
            await self.fail(recorder, error)
        else:
            await self.end(recorder, result)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the object of a dead job; it keeps the output that was published."""
        sink = TransactionSink(tx, job.subject)
        recorder = await self.restore(tx, job.subject, sink, locked=True)
        if recorder is not None:
            reason, message = job.error or _NO_ERROR
            await self.fail(recorder, Internal.with_reason(reason=reason, message=message))

    @abstractmethod
    async def start(self, claim: Claim, context: JobContext) -> bool:
        """Whether there is something to run. May store that it starts."""

    @abstractmethod
    async def restore(
        self, tx: Transaction, object_id: str, sink: EventSink, *, locked: bool = False
    ) -> RecorderT | None:
        """Read what was recorded; None if the object has ended or was deleted. `locked` locks it
        until the end of the transaction.
        """

    @abstractmethod
    async def prepare(self, recorder: RecorderT) -> LoopWork:
        """Read what the loop needs."""

    @abstractmethod
    async def end(self, recorder: RecorderT, result: LoopResult) -> None:
        """Store the last turn and the end."""

    @abstractmethod
    async def fail(self, recorder: RecorderT, error: DomainError) -> None:
        """Store that an error ended the object, with its output so far."""
