"""Ends runs, or lets them wait for tool outputs: rows and events, in the transaction that decides.

Workers, callers who cancel, expiry and dead letters all use it. Each holds the lock of the run's
row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from control_svc.agent.drafts import Draft, DraftKind
from control_svc.assistants.message_model import IncompleteReason as MessageReason
from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.ids import JOB, IdSource
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall, ItemFilter, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobError, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import (
    MessageChanged,
    RunChanged,
    RunEvent,
    RunEventCodec,
    StepChanged,
    drafts_of,
)
from control_svc.runs.model import ErrorCode, IncompleteReason, Run, RunError, RunState
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import StepState
from svc_kit.errors import JobNotRetriable, RunNotFound

EXPIRY_KIND: Final = "run-expiry"
"""The jobs that end runs which wait for outputs for too long."""
Texts = Mapping[str, tuple[Text, ...]]
"""What is written of messages that are not whole, by their ids."""
_STEP_STATES: Final = {
    RunState.CANCELLED: StepState.CANCELLED,
    RunState.FAILED: StepState.FAILED,
    RunState.EXPIRED: StepState.EXPIRED,
    RunState.INCOMPLETE: StepState.COMPLETED,
    RunState.COMPLETED: StepState.COMPLETED,
}
_MESSAGE_REASONS: Final = {
    RunState.CANCELLED: MessageReason.RUN_CANCELLED,
    RunState.FAILED: MessageReason.RUN_FAILED,
    RunState.EXPIRED: MessageReason.RUN_EXPIRED,
    RunState.INCOMPLETE: MessageReason.MAX_TOKENS,
}


@dataclass(frozen=True)
class RunEnd:
    """What a run has come to."""

    state: RunState
    error: RunError | None = None
    """Of a failure."""
    reason: IncompleteReason | None = None
    """Of a limit."""

    def of(self, run: Run, now: datetime) -> Run:
        """The run at this end; one that was to be cancelled is cancelled."""
        if self.error is not None:
            return run.failed(self.error, now)
        if self.reason is not None:
            return run.incomplete(self.reason, now)
        return run.ended(self.state, now)


COMPLETED: Final = RunEnd(RunState.COMPLETED)
CANCELLED: Final = RunEnd(RunState.CANCELLED)
EXPIRED: Final = RunEnd(RunState.EXPIRED)


async def end_run(
    tx: Transaction, project: str, run: Run, end: RunEnd, texts: Texts
) -> list[RunEvent]:
    """End a locked run and everything of it that is open; the events of it, the run's last."""
    now = await tx.now()
    ended = end.of(run, now)
    is_late = run.state is RunState.CANCELLING
    events: list[RunEvent] = [RunChanged(what="cancelling", run=run)] if is_late else []
    events += await _end_messages(tx, project, ended, texts)
    events += await _end_steps(tx, project, ended, now)
    await _end_searches(tx, project, ended)
    await RunQueries(tx).update(project, ended)
    thread = await ThreadQueries(tx).lock(project, run.thread_id)
    await ThreadQueries(tx).update(project, replace(thread, active_run_id=""))
    return [*events, RunChanged(what=ended.state.value, run=ended)]


async def let_wait(
    tx: Transaction,
    project: str,
    run: Run,
    calls: Sequence[FunctionCall],
    wait: timedelta,
    ids: IdSource,
) -> list[RunEvent]:
    """Let a locked run wait for the outputs of calls; it expires if they do not come."""
    waiting = run.waiting(calls, await tx.now(), wait)
    await RunQueries(tx).update(project, waiting)
    await JobQueries(tx).add(
        project,
        NewJob(
            id=ids.new(JOB),
            kind=EXPIRY_KIND,
            subject=expiry_subject(waiting),
            delay=wait,
        ),
    )
    return [RunChanged(what=waiting.state.value, run=waiting)]


async def fail_run(tx: Transaction, job: Job, codec: RunEventCodec) -> None:
    """Fail the run whose job is dead: with its error, and what readers have seen of its text."""
    run = await RunQueries(tx).lock(job.project, job.subject)
    if run.state.is_final:
        return
    events = await StreamQueries(tx).events_of_turn(job.project, run.id, run.num_turns)
    drafts = drafts_of(codec.decode(event.data) for event in events)
    written = await StreamQueries(tx).tokens(job.project, run.id, run.num_turns)
    run = run.broken_off(TurnUsage(0, 0, len(written), 0))
    _, message = job.error or JobError("", "The server had an error.")
    failed = RunEnd(RunState.FAILED, RunError(ErrorCode.SERVER_ERROR, message))
    told = await end_run(tx, job.project, run, failed, texts_of(drafts))
    await StreamQueries(tx).end(job.project, run.id, [codec.encode(event) for event in told])


def expiry_subject(run: Run) -> str:
    """Names the run and this wait of it: a later one has a job of its own."""
    return f"{run.id}/{run.num_turns}"


def still_waits(run: Run, subject: str) -> bool:
    """Whether a run waits as it did when that subject was named."""
    return run.state is RunState.REQUIRES_ACTION and expiry_subject(run) == subject


def texts_of(drafts: Sequence[Draft]) -> dict[str, tuple[Text, ...]]:
    """The texts of messages so far."""
    return {
        draft.id: (Text(text=draft.text),) for draft in drafts if draft.kind is DraftKind.MESSAGE
    }


async def _end_messages(tx: Transaction, project: str, run: Run, texts: Texts) -> list[RunEvent]:
    """Break off what is being written: of a run that completed there is nothing."""
    events: list[RunEvent] = []
    reason = _MESSAGE_REASONS.get(run.state)
    for message in await MessageQueries(tx).created_by_run(project, run.thread_id, run.id):
        if reason is None or message.item.status is not ItemStatus.IN_PROGRESS:
            continue
        broken = message.mark_incomplete(texts.get(message.id, ()), reason, await tx.now())
        await MessageQueries(tx).update(project, broken)
        events.append(MessageChanged(what="incomplete", message=broken))
    return events


async def _end_steps(tx: Transaction, project: str, run: Run, now: datetime) -> list[RunEvent]:
    events: list[RunEvent] = []
    for step in await RunStepQueries(tx).open(project, run.id):
        ended = step.ended(_STEP_STATES[run.state], now, run.error)
        await RunStepQueries(tx).update(project, ended)
        events.append(StepChanged(what=ended.state.value, step=ended))
    return events


async def _end_searches(tx: Transaction, project: str, run: Run) -> None:
    """Searches that were not carried out."""
    if not run.num_hosted_calls:
        return
    item_filter = ItemFilter(kinds=("file_search_call",), origin=run.id)
    for placed in await TimelineQueries(tx).read(project, run.thread_id, item_filter=item_filter):
        if placed.item.status is ItemStatus.IN_PROGRESS:
            broken = placed.item.with_content(placed.item.content, ItemStatus.INCOMPLETE)
            await TimelineQueries(tx).update(project, broken)


class RunExpiry:
    """Does the jobs that end waiting runs."""

    kind = EXPIRY_KIND
    concurrency = 8

    def __init__(self, codec: RunEventCodec) -> None:
        self._codec = codec

    async def run(self, claim: Claim, context: JobContext) -> None:
        """End a run, if it still waits as it did when the job was made."""
        await context.finish(lambda tx: self._expire(tx, claim))

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Nothing: the run waits for its client, who can still answer or cancel."""

    async def _expire(self, tx: Transaction, claim: Claim) -> None:
        run_id = claim.subject.split("/")[0]
        try:
            run = await RunQueries(tx).lock(claim.project, run_id)
        except RunNotFound:  # deleted with its thread
            return
        if not still_waits(run, claim.subject) or not run.is_overdue(await tx.now()):
            return
        events = await end_run(tx, claim.project, run, EXPIRED, {})
        told = [self._codec.encode(event) for event in events]
        await StreamQueries(tx).end(claim.project, run.id, told)


async def retry_expiry(tx: Transaction, job: Job) -> str:
    """Let a run that still waits expire. Raises JobNotRetriable where it waits no more."""
    run_id = job.subject.split("/")[0]
    try:
        run = await RunQueries(tx).lock(job.project, run_id)
    except RunNotFound:
        raise JobNotRetriable(job=job.id, problem=f"the run '{run_id}' is deleted.") from None
    if not still_waits(run, job.subject):
        problem = f"the run '{run_id}' does not wait any more as it did."
        raise JobNotRetriable(job=job.id, problem=problem)
    return job.kind
