"""The job handler of runs: restores the state, prepares the agent loop, and ends the run."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from corral.control.v1.run_event_pb2 import RunEvent

from control_svc.agent.file_search import FileSearch
from control_svc.agent.model import (
    LoopLimits,
    LoopResult,
    LoopSettings,
    LoopWork,
    Outcome,
    Progress,
)
from control_svc.agent.recorder import EventSink, read_open_turn
from control_svc.agent.worker import LoopWorker
from control_svc.assistants.queries import MessageQueries
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import FunctionCall, FunctionCallOutput, Item, ItemFilter, ItemStatus
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, JobPriority, NewJob
from control_svc.runs.context import RunContext, first_position
from control_svc.runs.events import restore_drafts, run_changed
from control_svc.runs.model import (
    CANCELLED,
    COMPLETED,
    ErrorCode,
    IncompleteReason,
    Run,
    RunEnd,
    RunError,
    RunState,
    to_run_error,
)
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.recorder import RunProgress, RunRecorder
from control_svc.runs.transitions import end_run, wait_for_outputs
from control_svc.tools.model import FileSearchTool, ResponseFormat
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import DomainError
from svc_kit.tracing.span import Attributes, current_span, running_span

KIND: Final = "run"
"""Kind of the jobs that execute runs."""


def run_job(job_id: str, run: Run) -> NewJob:
    """The job that executes or resumes a run."""
    return NewJob(id=job_id, kind=KIND, subject=run.id, priority=JobPriority.INTERACTIVE)


@dataclass(frozen=True)
class RunWorker(LoopWorker[RunRecorder]):
    """Handler of the jobs that execute runs, until they end or wait for outputs."""

    kind = KIND
    search: Search
    ids: IdSource
    clock: Clock
    wait: timedelta
    """How long a run waits for outputs before it expires."""

    async def start(self, claim: Claim, context: JobContext) -> bool:
        """Set a queued run in progress."""
        return await context.write(lambda tx: self._start(tx, claim.subject))

    async def _start(self, tx: Transaction, run_id: str) -> bool:
        queued = await RunQueries(tx).lock(run_id)
        run = queued.start(await tx.now())
        if run != queued:
            if not run.num_turns:
                run = replace(run, first_position=await first_position(tx, run))
            await RunQueries(tx).update(run)
            await StreamQueries(tx).append(run_id, encode_events([run_changed(run)]))
        return run.state.needs_worker

    async def restore(
        self, tx: Transaction, object_id: str, sink: EventSink, *, locked: bool = False
    ) -> RunRecorder | None:
        """Read the run and what earlier attempts committed."""
        queries = RunQueries(tx)
        run = await (queries.lock(object_id) if locked else queries.get(object_id))
        if not run.state.needs_worker:
            return None
        open_turn = await read_open_turn(tx, run.id, run.num_turns, restore_drafts)
        progress = RunProgress(open_turn=open_turn)
        if open_turn.drafts or run.num_hosted_calls:
            progress = RunProgress(
                open_turn=open_turn,
                messages=await MessageQueries(tx).created_by_run(run.thread_id, run.id),
                steps=await RunStepQueries(tx).in_progress(run.id),
                searches=await _items(tx, run, "file_search_call"),
            )
        return RunRecorder(tx.project, run, sink, self.ids, self.clock, progress)

    async def prepare(self, recorder: RunRecorder) -> LoopWork:
        """The settings of the run, its file search, and the items of the thread."""
        run, project = recorder.run, recorder.project
        stores = run.settings.resources.vector_store_ids
        return LoopWork(
            settings=loop_settings(project, run),
            context=RunContext(run, self.transactions.of(project), self.counter, recorder.sink),
            hosted=[
                FileSearch(self.search, stores, tool)
                for tool in run.settings.tools
                if isinstance(tool, FileSearchTool) and stores
            ],
            progress=Progress(
                work=run.work,
                token_ids=list(recorder.open_turn.token_ids),
                held_logprobs=recorder.open_turn.held,
                drafts=list(recorder.open_turn.drafts),
                open_calls=[i for i in recorder.searches if i.status is ItemStatus.IN_PROGRESS],
            ),
        )

    async def execute(
        self, recorder: RunRecorder, prepared: Awaitable[LoopWork], cancelled: asyncio.Event
    ) -> None:
        """Run the loop below a span for the invocation of the assistant."""
        with running_span(current_span().child("invoke_agent")) as span:
            if span.is_recording:
                span.set(_agent_attributes(recorder.run))
            await super().execute(recorder, prepared, cancelled)

    async def end(self, recorder: RunRecorder, result: LoopResult) -> None:
        """End the run, or make it wait for outputs unless cancellation was requested."""

        span = current_span()

        async def finish(tx: Transaction, run: Run) -> Sequence[RunEvent]:
            span.set(_usage_attributes(run) | {"corral.run.outcome": result.outcome})
            is_cancelling = run.state is RunState.CANCELLING
            if result.outcome is Outcome.ACTION_REQUIRED and not is_cancelling:
                calls = await _open_calls(tx, run)
                return await wait_for_outputs(tx, run, calls, self.wait, self.ids)
            return await end_run(tx, run, _ENDS[result.outcome], recorder.texts())

        await recorder.conclude(result.turn, finish)

    async def fail(self, recorder: RunRecorder, error: DomainError) -> None:
        """End the run with the text that was published."""
        failed, span = RunEnd(RunState.FAILED, to_run_error(error)), current_span()

        async def finish(tx: Transaction, run: Run) -> Sequence[RunEvent]:
            span.set(_usage_attributes(run) | {"error.type": error.reason})
            return await end_run(tx, run, failed, recorder.texts())

        await recorder.conclude(None, finish)


def _agent_attributes(run: Run) -> Attributes:
    """Attributes of OpenTelemetry's GenAI conventions."""
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "corral",
        "gen_ai.agent.id": run.assistant_id,
        "gen_ai.conversation.id": run.thread_id,
        "gen_ai.request.model": run.settings.model,
        "corral.run.id": run.id,
    }


def _usage_attributes(run: Run) -> dict[str, str | int]:
    """The usage of all attempts of a run."""
    return {
        "gen_ai.usage.input_tokens": run.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": run.usage.completion_tokens,
    }


_ENDS: Final = {
    Outcome.ANSWERED: COMPLETED,
    Outcome.ACTION_REQUIRED: CANCELLED,  # while it was cancelled; otherwise the run waits
    Outcome.CANCELLED: CANCELLED,
    Outcome.MAX_COMPLETION_TOKENS: RunEnd(
        RunState.INCOMPLETE, reason=IncompleteReason.MAX_COMPLETION_TOKENS
    ),
    Outcome.MAX_PROMPT_TOKENS: RunEnd(
        RunState.INCOMPLETE, reason=IncompleteReason.MAX_PROMPT_TOKENS
    ),
    Outcome.MAX_TURNS: RunEnd(
        RunState.FAILED,
        RunError(ErrorCode.SERVER_ERROR, "The model called tools in too many turns."),
    ),
}


async def _items(tx: Transaction, run: Run, *kinds: str) -> list[Item]:
    item_filter = ItemFilter(kinds=kinds, origin=run.id)
    entries = await TimelineQueries(tx).read(run.thread_id, item_filter=item_filter)
    return [entry.item for entry in entries]


async def _open_calls(tx: Transaction, run: Run) -> list[FunctionCall]:
    """The function calls of the run without output."""
    calls: dict[str, FunctionCall] = {}
    for item in await _items(tx, run, "function_call", "function_call_output"):
        content = item.content
        if isinstance(content, FunctionCall):  # a model may reuse the id of an answered call
            calls[content.call_id] = content
        elif isinstance(content, FunctionCallOutput):
            calls.pop(content.call_id, None)
    return list(calls.values())


def loop_settings(project: str, run: Run) -> LoopSettings:
    """Settings of the agent loop for a run."""
    settings = run.settings
    return LoopSettings(
        project=project,
        label=run.id,
        model=settings.model,
        instructions=settings.instructions,
        tools=settings.tools,
        choice=settings.choice,
        parallel_calls=settings.parallel_calls,
        format=settings.format or ResponseFormat(),
        options=settings.options,
        effort=settings.reasoning_effort,
        seed=settings.seed,
        limits=LoopLimits(
            completion_tokens=settings.max_completion_tokens,
            prompt_tokens=settings.max_prompt_tokens,
        ),
        keep_for=run.thread_id,
    )
