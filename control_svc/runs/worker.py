"""The job handler of runs: restores the state, runs the agent loop, and ends the run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from corral.control.v1.run_event_pb2 import RunEvent

from control_svc.agent.file_search import FileSearch
from control_svc.agent.loop import AgentLoop
from control_svc.agent.model import (
    HostedTool,
    LoopLimits,
    LoopSettings,
    Outcome,
    Progress,
)
from control_svc.assistants.queries import MessageQueries
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.inference.turn_client import TokenCounter
from control_svc.items.model import (
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    ItemFilter,
    ItemStatus,
)
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobPriority, NewJob
from control_svc.runs.context import RunContext, first_position
from control_svc.runs.events import decode_event, restore_drafts, run_changed
from control_svc.runs.model import (
    ErrorCode,
    IncompleteReason,
    Run,
    RunError,
    RunState,
    to_run_error,
)
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.recorder import FinalChange, ResumeState, RunRecorder
from control_svc.runs.transitions import (
    CANCELLED,
    COMPLETED,
    RunEnd,
    end_run,
    fail_run,
    wait_for_outputs,
)
from control_svc.tools.model import FileSearchTool, ResponseFormat
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import DomainError
from svc_kit.errors.status import is_retryable


class RunTools:
    """Creates the hosted tools of runs."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def for_run(self, run: Run) -> Sequence[HostedTool]:
        """The file search of a run. It is left out if there is no store to search."""
        stores = run.settings.resources.vector_store_ids
        return [
            FileSearch(self._search, stores, tool)
            for tool in run.settings.tools
            if isinstance(tool, FileSearchTool) and stores
        ]


KIND: Final = "run"
"""Kind of the jobs that execute runs."""


def run_job(job_id: str, run: Run) -> NewJob:
    """The job that executes or resumes a run."""
    return NewJob(id=job_id, kind=KIND, subject=run.id, priority=JobPriority.INTERACTIVE)


class RunHandler:
    """Handler of the jobs that execute runs."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: GroupCommitter,
        loop: AgentLoop,
        counter: TokenCounter,
        tools: RunTools,
        ids: IdSource,
        clock: Callable[[], datetime],
        *,
        wait: timedelta,
        concurrency: int,
    ) -> None:
        """`wait` is how long a run waits for outputs before it expires. `concurrency` limits the
        runs that this process executes at the same time."""
        self.concurrency = concurrency
        self._transactions = transactions
        self._writers = writers
        self._loop = loop
        self._counter = counter
        self._tools = tools
        self._ids = ids
        self._clock = clock
        self._wait = wait

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Execute a run until it ends or waits for outputs."""
        project = claim.project
        run = await context.write(lambda tx: self._start(tx, project, claim.subject))
        if not run.state.needs_worker:
            return
        async with self._writers.writer(context, run.id) as writer:
            resume, progress = await self._transactions.read(
                lambda tx: self._load_progress(tx, project, run)
            )
            recorder = RunRecorder(
                project,
                run,
                writer,
                self._ids,
                self._clock,
                resume,
                len(progress.token_ids),
            )
            prompt_context = RunContext(project, run, self._transactions, self._counter, writer)
            try:
                result = await self._loop.run(
                    loop_settings(project, run),
                    prompt_context,
                    self._tools.for_run(run),
                    recorder,
                    progress,
                    context.cancelled,
                )
            except DomainError as error:
                if is_retryable(error):
                    raise
                failed = RunEnd(RunState.FAILED, to_run_error(error))
                await recorder.conclude(None, _end_change(project, failed, recorder))
            else:
                last = self._final_change(project, result.outcome, recorder)
                await recorder.conclude(result.turn, last)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the run of a dead job; it keeps the text that was published."""
        await fail_run(tx, job)

    async def _start(self, tx: Transaction, project: str, run_id: str) -> Run:
        """Set a queued run in progress; a run in another state is returned unchanged."""
        current = await RunQueries(tx).lock(project, run_id)
        run = current.start(await tx.now())
        if run == current:
            return run
        if not run.num_turns:
            run = replace(run, first_position=await first_position(tx, project, run))
        await RunQueries(tx).update(project, run)
        await StreamQueries(tx).append(project, run.id, encode_events([run_changed(run)]))
        return run

    async def _load_progress(
        self, tx: Transaction, project: str, run: Run
    ) -> tuple[ResumeState, Progress]:
        """Load the committed state of earlier attempts."""
        events = await StreamQueries(tx).events_of_turn(project, run.id, run.num_turns)
        resume = ResumeState(restore_drafts(decode_event(event.data) for event in events))
        progress = Progress(
            num_turns=run.num_turns,
            usage=run.usage,
            num_hosted_calls=run.num_hosted_calls,
            token_ids=await StreamQueries(tx).tokens(project, run.id, run.num_turns),
            drafts=resume.drafts,
            awaits_client=run.awaits_client,
        )
        if resume.drafts or run.num_hosted_calls:
            resume.messages = await MessageQueries(tx).created_by_run(
                project, run.thread_id, run.id
            )
            resume.steps = await RunStepQueries(tx).in_progress(project, run.id)
        if run.num_hosted_calls:
            item_filter = ItemFilter(kinds=("file_search_call",), origin=run.id)
            timelines = TimelineQueries(tx)
            entries = await timelines.read(project, run.thread_id, item_filter=item_filter)
            items = [entry.item for entry in entries]
            progress.open_calls = [i for i in items if i.status is ItemStatus.IN_PROGRESS]
            contents = [item.content for item in items]
            resume.searches = tuple(c for c in contents if isinstance(c, FileSearchCall))
        return resume, progress

    def _final_change(self, project: str, outcome: Outcome, recorder: RunRecorder) -> FinalChange:
        """End the run, or make it wait for outputs unless cancellation was requested."""
        if outcome is not Outcome.ACTION_REQUIRED:
            return _end_change(project, _ENDS[outcome], recorder)
        cancel = _end_change(project, CANCELLED, recorder)

        async def change(tx: Transaction, run: Run) -> tuple[list[RunEvent], bool]:
            if run.state is RunState.CANCELLING:
                return await cancel(tx, run)
            calls = await _open_calls(tx, project, run)
            return await wait_for_outputs(tx, project, run, calls, self._wait, self._ids), False

        return change


_ENDS: Final = {
    Outcome.ANSWERED: COMPLETED,
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


def _end_change(project: str, end: RunEnd, recorder: RunRecorder) -> FinalChange:
    async def change(tx: Transaction, run: Run) -> tuple[list[RunEvent], bool]:
        return await end_run(tx, project, run, end, recorder.texts()), True

    return change


async def _open_calls(tx: Transaction, project: str, run: Run) -> list[FunctionCall]:
    """The function calls of the run without output."""
    item_filter = ItemFilter(kinds=("function_call", "function_call_output"), origin=run.id)
    calls: dict[str, FunctionCall] = {}
    for entry in await TimelineQueries(tx).read(project, run.thread_id, item_filter=item_filter):
        content = entry.item.content
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
