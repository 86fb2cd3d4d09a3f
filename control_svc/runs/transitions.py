"""Ends runs, or makes them wait for tool outputs: rows and events, in one transaction.

Used by workers, cancellation, expiry and dead letters. The caller has locked the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from corral.control.v1.run_event_pb2 import RunEvent

from control_svc.assistants.message_model import IncompleteReason as MessageReason
from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.ids import JOB, IdSource
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import FunctionCall, ItemFilter, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import (
    message_changed,
    run_changed,
    step_changed,
)
from control_svc.runs.model import EXPIRED, Run, RunEnd, RunState
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import StepState
from svc_kit.errors import JobNotRetriable, RunNotFound

EXPIRY_KIND: Final = "run-expiry"
"""Kind of the jobs that expire runs which wait for tool outputs."""
Texts = Mapping[str, tuple[Text, ...]]
"""Texts of messages in progress, by message id."""
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


async def end_run(tx: Transaction, run: Run, end: RunEnd, texts: Texts) -> list[RunEvent]:
    """End a locked run with its open messages, steps and searches; return its last events."""
    now = await tx.now()
    ended = run.end(end, now)
    events: list[RunEvent] = []
    if run.state is RunState.CANCELLING:
        events.append(run_changed(run))
    events += await _end_messages(tx, ended, texts)
    events += await _end_steps(tx, ended, now)
    await _end_searches(tx, ended)
    await RunQueries(tx).update(ended)
    thread = await ThreadQueries(tx).lock(run.thread_id)
    await ThreadQueries(tx).update(replace(thread, active_run_id=""))
    return [*events, run_changed(ended)]


async def wait_for_outputs(
    tx: Transaction, run: Run, calls: Sequence[FunctionCall], timeout: timedelta, ids: IdSource
) -> list[RunEvent]:
    """Make a locked run wait for the outputs of calls; it expires after `timeout`."""
    waiting = run.require_action(calls, await tx.now(), timeout)
    await RunQueries(tx).update(waiting)
    await JobQueries(tx).add(
        NewJob(
            id=ids.new(JOB),
            kind=EXPIRY_KIND,
            subject=_expiry_subject(waiting),
            delay=timeout,
        )
    )
    return [run_changed(waiting)]


def _expiry_subject(run: Run) -> str:
    """Subject of the expiry job of the current wait; each wait of a run has its own."""
    return f"{run.id}/{run.num_turns}"


async def _lock_subject(tx: Transaction, subject: str) -> Run | None:
    """Lock the run of an expiry job. None if it no longer waits; raises RunNotFound."""
    run = await RunQueries(tx).lock(subject.split("/")[0])
    is_waiting = run.state is RunState.REQUIRES_ACTION and _expiry_subject(run) == subject
    return run if is_waiting else None


async def _end_messages(tx: Transaction, run: Run, texts: Texts) -> list[RunEvent]:
    """Mark messages in progress as incomplete. A completed run has none."""
    events: list[RunEvent] = []
    reason = _MESSAGE_REASONS.get(run.state)
    for message in await MessageQueries(tx).created_by_run(run.thread_id, run.id):
        if reason is None or message.item.status is not ItemStatus.IN_PROGRESS:
            continue
        text = texts.get(message.id, ())
        incomplete = message.mark_incomplete(text, reason, await tx.now())
        await MessageQueries(tx).update(incomplete)
        events.append(message_changed(incomplete))
    return events


async def _end_steps(tx: Transaction, run: Run, now: datetime) -> list[RunEvent]:
    events: list[RunEvent] = []
    for step in await RunStepQueries(tx).in_progress(run.id):
        ended = step.end(_STEP_STATES[run.state], now, run.error)
        await RunStepQueries(tx).update(ended)
        events.append(step_changed(ended))
    return events


async def _end_searches(tx: Transaction, run: Run) -> None:
    """Mark searches that were not executed as incomplete."""
    if not run.num_hosted_calls:
        return
    item_filter = ItemFilter(kinds=("file_search_call",), origin=run.id)
    for entry in await TimelineQueries(tx).read(run.thread_id, item_filter=item_filter):
        if entry.item.status is ItemStatus.IN_PROGRESS:
            item = replace(entry.item, status=ItemStatus.INCOMPLETE)
            await TimelineQueries(tx).update(item)


class RunExpiry:
    """Handler of the jobs that expire waiting runs."""

    kind = EXPIRY_KIND
    concurrency = 8

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Expire a run, unless its wait has ended."""
        await context.finish(lambda tx: self._expire(tx, claim))

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Do nothing: the client can still submit outputs or cancel the run."""

    async def _expire(self, tx: Transaction, claim: Claim) -> None:
        try:
            run = await _lock_subject(tx, claim.subject)
        except RunNotFound:  # deleted with its thread
            return
        if run is None or not run.is_overdue(await tx.now()):
            return
        events = await end_run(tx, run, EXPIRED, {})
        await StreamQueries(tx).end(run.id, encode_events(events))


async def retry_expiry(tx: Transaction, job: Job) -> str:
    """The kind of the new job. Raises JobNotRetriable if the run no longer waits."""
    run_id = job.subject.split("/")[0]
    try:
        run = await _lock_subject(tx, job.subject)
    except RunNotFound:
        raise JobNotRetriable(job=job.id, problem=f"the run '{run_id}' is deleted.") from None
    if run is None:
        problem = f"the run '{run_id}' no longer waits for these outputs."
        raise JobNotRetriable(job=job.id, problem=problem)
    return job.kind
