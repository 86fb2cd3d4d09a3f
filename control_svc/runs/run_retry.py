"""Retries runs whose job is dead, for operators."""

from dataclasses import replace

from control_svc.agent.recorder import items_of_open_turn
from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.pagination import Window
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import ItemFilter, ItemStatus, Message
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.model import Job
from control_svc.runs.events import run_changed, step_changed
from control_svc.runs.model import Run, RunState
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import RunStep, StepState, ToolCalls
from svc_kit.errors import JobNotRetriable, RunNotFound


async def retry_run(tx: Transaction, job: Job) -> str:
    """Queue a failed run again: completed turns stay, the turn that failed starts over.

    Its events follow those that clients have seen. Raises JobNotRetriable if the run is deleted or
    has not failed, or if another run of the thread is active.
    """
    run_id = job.subject
    try:
        failed = await RunQueries(tx).lock(run_id)
    except RunNotFound:
        raise JobNotRetriable(job=job.id, problem=f"the run '{run_id}' is deleted.") from None
    if failed.state is not RunState.FAILED:
        problem = f"the run '{run_id}' is {failed.state.value}."
        raise JobNotRetriable(job=job.id, problem=problem)
    thread = await ThreadQueries(tx).lock(failed.thread_id)
    if thread.active_run_id:
        problem = f"the run '{thread.active_run_id}' of its thread is active."
        raise JobNotRetriable(job=job.id, problem=problem)
    run = failed.reopen()
    await ThreadQueries(tx).update(replace(thread, active_run_id=run_id))
    await RunQueries(tx).update(run)
    await _reopen_items(tx, failed)
    steps = await _reopen_steps(tx, failed)
    events = [run_changed(run), *(step_changed(step) for step in steps)]
    await StreamQueries(tx).reopen(run_id, encode_events(events))
    return job.kind


async def _reopen_items(tx: Transaction, run: Run) -> None:
    """Delete what the failed turn has written, and reopen searches that were not executed."""
    timelines, item_filter = TimelineQueries(tx), ItemFilter(origin=run.id)
    placed = await timelines.read(run.thread_id, item_filter=item_filter)
    items = [each.item for each in placed]
    for item in items_of_open_turn(items, awaits_client=run.awaits_client):
        if isinstance(item.content, Message):
            await MessageQueries(tx).delete(run.thread_id, item.id)
        else:
            await timelines.remove(run.thread_id, item.id)
    for item in items:
        if item.kind == "file_search_call" and item.status is ItemStatus.INCOMPLETE:
            await timelines.update(replace(item, status=ItemStatus.IN_PROGRESS))


async def _reopen_steps(tx: Transaction, run: Run) -> list[RunStep]:
    """Reopen the steps of searches that failed with the run. Returns them."""
    steps = await RunStepQueries(tx).page(run.id, Window(_ALL_STEPS))
    failed = [
        step
        for step in steps
        if step.state is StepState.FAILED
        and step.ended_at == run.ended_at
        and isinstance(step.details, ToolCalls)
        and not step.all_searches_done
    ]
    reopened = [
        replace(step, state=StepState.IN_PROGRESS, ended_at=None, error=None) for step in failed
    ]
    for step in reopened:
        await RunStepQueries(tx).update(step)
    return reopened


_ALL_STEPS = 10_000
"""More than the limits of turns permit."""
