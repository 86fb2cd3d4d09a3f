"""The job handler of runs: restore, run the agent loop, end."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from control_svc.agent.file_search import FileSearch
from control_svc.agent.loop import AgentLoop
from control_svc.agent.model import (
    HostedTool,
    LoopLimits,
    LoopResult,
    LoopSettings,
    Outcome,
    Progress,
)
from control_svc.assistants.queries import MessageQueries
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.group_commit import GroupCommitter
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
from control_svc.runs.events import RunChanged, RunEvent, RunEventCodec, drafts_of
from control_svc.runs.model import (
    ErrorCode,
    IncompleteReason,
    Run,
    RunError,
    RunState,
    run_error_of,
)
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.recorder import LastChange, ResumeState, RunRecorder
from control_svc.runs.transitions import CANCELLED, COMPLETED, RunEnd, end_run, fail_run, let_wait
from control_svc.tools.model import FileSearchTool, ResponseFormat
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import DomainError
from svc_kit.errors.status import is_retryable


class RunTools:
    """What runs may use."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def of_run(self, run: Run) -> Sequence[HostedTool]:
        """Those of a run; a search of no store is not offered to the model."""
        wanted = [tool for tool in run.settings.tools if isinstance(tool, FileSearchTool)]
        stores = run.settings.resources.vector_store_ids
        return [FileSearch(self._search, stores, tool) for tool in wanted if stores]


KIND: Final = "run"
"""The jobs that carry runs out."""


def run_job(job_id: str, run: Run) -> NewJob:
    """The job that executes or resumes a run."""
    return NewJob(id=job_id, kind=KIND, subject=run.id, priority=JobPriority.INTERACTIVE)


class RunHandler:
    """Does the jobs of runs."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: GroupCommitter,
        codec: RunEventCodec,
        loop: AgentLoop,
        counter: TokenCounter,
        tools: RunTools,
        ids: IdSource,
        clock: Callable[[], datetime],
        *,
        wait: timedelta,
        concurrency: int,
    ) -> None:
        """`wait` is how long a run waits for outputs, `concurrency` how many are worked on at a
        time in this process."""
        self.concurrency = concurrency
        self._transactions = transactions
        self._writers = writers
        self._codec = codec
        self._loop = loop
        self._counter = counter
        self._tools = tools
        self._ids = ids
        self._clock = clock
        self._wait = wait

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Work on a run until it has ended, or waits."""
        project = claim.project
        run = await context.write(lambda each: self._begin(each, project, claim.subject))
        if not run.state.is_followed:
            return
        async with self._writers.writer(context, run.id) as writer:
            left, progress = await self._transactions.read(
                lambda each: self._left(each, project, run)
            )
            recorder = RunRecorder(
                project,
                run,
                writer,
                self._codec,
                self._ids,
                self._clock,
                left,
                len(progress.token_ids),
            )
            seen = RunContext(project, run, self._transactions, self._counter, writer)
            settings = loop_settings(project, run)
            try:
                tools = self._tools.of_run(run)
                ending = await self._loop.run(
                    settings, seen, tools, recorder, progress, context.cancelled
                )
            except DomainError as error:
                if is_retryable(error):
                    raise
                failed = RunEnd(RunState.FAILED, run_error_of(error))
                await recorder.conclude(None, _ended(project, failed, recorder))
            else:
                await recorder.conclude(ending.turn, self._last(project, ending, recorder))

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the run whose job is dead, with what it has written."""
        await fail_run(tx, job, self._codec)

    async def _begin(self, tx: Transaction, project: str, run_id: str) -> Run:
        """The run, from now on in progress; one that waits or has ended stays as it is."""
        found = await RunQueries(tx).lock(project, run_id)
        run = found.started(await tx.now())
        if run == found:
            return run
        if not run.num_turns:
            run = run.placed(await first_position(tx, project, run))
        await RunQueries(tx).update(project, run)
        events = RunChanged(what=run.state.value, run=run)
        await StreamQueries(tx).append(project, run.id, [self._codec.encode(events)])
        return run

    async def _left(self, tx: Transaction, project: str, run: Run) -> tuple[ResumeState, Progress]:
        """What is committed of the work."""
        events = await StreamQueries(tx).events_of_turn(project, run.id, run.num_turns)
        left = ResumeState(drafts_of(self._codec.decode(event.data) for event in events))
        progress = Progress(
            num_turns=run.num_turns,
            usage=run.usage,
            num_hosted_calls=run.num_hosted_calls,
            token_ids=await StreamQueries(tx).tokens(project, run.id, run.num_turns),
            drafts=left.drafts,
            awaits_client=run.awaits_client,
        )
        if left.drafts or run.num_hosted_calls:
            left.messages = await MessageQueries(tx).created_by_run(project, run.thread_id, run.id)
            left.steps = await RunStepQueries(tx).open(project, run.id)
        if run.num_hosted_calls:
            item_filter = ItemFilter(kinds=("file_search_call",), origin=run.id)
            placed = await TimelineQueries(tx).read(project, run.thread_id, item_filter=item_filter)
            searches = [each.item for each in placed]
            progress.open_calls = [s for s in searches if s.status is ItemStatus.IN_PROGRESS]
            contents = [search.content for search in searches]
            left.searches = tuple(c for c in contents if isinstance(c, FileSearchCall))
        return left, progress

    def _last(self, project: str, ending: LoopResult, recorder: RunRecorder) -> LastChange:
        """What becomes of the run: it waits, unless it was to be cancelled meanwhile."""
        if ending.outcome is not Outcome.ACTION_REQUIRED:
            return _ended(project, _ENDS[ending.outcome], recorder)
        cancelled = _ended(project, CANCELLED, recorder)

        async def last(tx: Transaction, run: Run) -> tuple[list[RunEvent], bool]:
            if run.state is RunState.CANCELLING:
                return await cancelled(tx, run)
            calls = await _open_calls(tx, project, run)
            return await let_wait(tx, project, run, calls, self._wait, self._ids), False

        return last


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
        RunError(ErrorCode.SERVER_ERROR, "The model called tools over and over."),
    ),
}


def _ended(project: str, end: RunEnd, recorder: RunRecorder) -> LastChange:
    async def last(tx: Transaction, run: Run) -> tuple[list[RunEvent], bool]:
        return await end_run(tx, project, run, end, recorder.texts()), True

    return last


async def _open_calls(tx: Transaction, project: str, run: Run) -> list[FunctionCall]:
    """Calls of the run without output."""
    item_filter = ItemFilter(kinds=("function_call", "function_call_output"), origin=run.id)
    placed = await TimelineQueries(tx).read(project, run.thread_id, item_filter=item_filter)
    waiting: dict[str, FunctionCall] = {}
    for content in (each.item.content for each in placed):
        if isinstance(content, FunctionCall):  # a model may write an id again that was answered
            waiting[content.call_id] = content
        elif isinstance(content, FunctionCallOutput):
            waiting.pop(content.call_id, None)
    return list(waiting.values())


def loop_settings(project: str, run: Run) -> LoopSettings:
    """What is asked of the model."""
    request = run.settings
    return LoopSettings(
        project=project,
        label=run.id,
        model=request.model,
        instructions=request.instructions,
        tools=request.tools,
        choice=request.choice,
        parallel_calls=request.parallel_calls,
        format=request.format or ResponseFormat(),
        options=request.options,
        effort=request.reasoning_effort,
        seed=request.seed,
        limits=LoopLimits(
            completion_tokens=request.max_completion_tokens, prompt_tokens=request.max_prompt_tokens
        ),
        keep_for=run.thread_id,
    )
