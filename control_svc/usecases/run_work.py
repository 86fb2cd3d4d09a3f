"""The work of a run's job: its turns, until it has ended or waits for the client.

An attempt begins from what is committed: the run's row, the items it has made, and of the open turn
the events and tokens in the log.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from control_svc.domain.agent import Ending, LoopLimits, LoopSettings, Outcome, Progress
from control_svc.domain.ids import IdSource
from control_svc.domain.items import FileSearchCall, FunctionCall, FunctionCallOutput, ItemStatus
from control_svc.domain.jobs import Claim, Job, JobPriority, NewJob
from control_svc.domain.run_events import RunChanged, RunEvent, drafts_of
from control_svc.domain.run_ports import RunEventCodec, TokenCounter
from control_svc.domain.runs import (
    ErrorCode,
    IncompleteReason,
    Run,
    RunError,
    RunState,
    run_error_of,
)
from control_svc.domain.timeline_ports import ItemFilter
from control_svc.domain.tools import ResponseFormat
from control_svc.storage.repositories.messages import SqlMessages
from control_svc.storage.repositories.runs import SqlRuns, SqlRunSteps
from control_svc.storage.repositories.streams import SqlEventStreams
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.agent_loop import AgentLoop
from control_svc.usecases.run_context import RunContext, first_position
from control_svc.usecases.run_ending import (
    CANCELLED,
    COMPLETED,
    RunEnd,
    bury_run,
    end_run,
    let_wait,
)
from control_svc.usecases.run_narrating import LastChange, OpenWork, RunNarrator
from control_svc.usecases.run_tools import RunTools
from control_svc.usecases.streaming import StreamWriters
from control_svc.usecases.working import JobContext
from svc_kit.error_table import is_retryable
from svc_kit.errors import DomainError

KIND: Final = "run"
"""The jobs that carry runs out."""


def run_job(job_id: str, run: Run) -> NewJob:
    """The job that carries a run out, or goes on with it."""
    return NewJob(id=job_id, kind=KIND, subject=run.id, priority=JobPriority.INTERACTIVE)


class RunHandler:
    """Does the jobs of runs."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: StreamWriters,
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
            narrator = RunNarrator(
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
                    settings, seen, tools, narrator, progress, context.cancelled
                )
            except DomainError as error:
                if is_retryable(error):
                    raise
                failed = RunEnd(RunState.FAILED, run_error_of(error))
                await narrator.conclude(None, _ended(project, failed, narrator))
            else:
                await narrator.conclude(ending.turn, self._last(project, ending, narrator))

    async def bury(self, tx: Transaction, job: Job) -> None:
        """Fail the run whose job is dead, with what it has written."""
        await bury_run(tx, job, self._codec)

    async def _begin(self, tx: Transaction, project: str, run_id: str) -> Run:
        """The run, from now on in progress; one that waits or has ended stays as it is."""
        found = await SqlRuns(tx).lock(project, run_id)
        run = found.started(await tx.now())
        if run == found:
            return run
        if not run.num_turns:
            run = run.placed(await first_position(tx, project, run))
        await SqlRuns(tx).update(project, run)
        told = RunChanged(what=run.state.value, run=run)
        await SqlEventStreams(tx).append(project, run.id, [self._codec.encode(told)])
        return run

    async def _left(self, tx: Transaction, project: str, run: Run) -> tuple[OpenWork, Progress]:
        """What is committed of the work."""
        events = await SqlEventStreams(tx).events_of_turn(project, run.id, run.num_turns)
        left = OpenWork(drafts_of(self._codec.decode(event.data) for event in events))
        progress = Progress(
            num_turns=run.num_turns,
            usage=run.usage,
            num_hosted_calls=run.num_hosted_calls,
            token_ids=await SqlEventStreams(tx).tokens(project, run.id, run.num_turns),
            drafts=left.drafts,
            awaits_client=run.awaits_client,
        )
        if left.drafts or run.num_hosted_calls:
            left.messages = await SqlMessages(tx).of_run(project, run.thread_id, run.id)
            left.steps = await SqlRunSteps(tx).open(project, run.id)
        if run.num_hosted_calls:
            wanted = ItemFilter(kinds=("file_search_call",), origin=run.id)
            placed = await SqlTimelines(tx).since(project, run.thread_id, wanted=wanted)
            searches = [each.item for each in placed]
            progress.open_calls = [s for s in searches if s.status is ItemStatus.IN_PROGRESS]
            contents = [search.content for search in searches]
            left.searches = tuple(c for c in contents if isinstance(c, FileSearchCall))
        return left, progress

    def _last(self, project: str, ending: Ending, narrator: RunNarrator) -> LastChange:
        """What becomes of the run: it waits, unless it was to be cancelled meanwhile."""
        if ending.outcome is not Outcome.ACTION_REQUIRED:
            return _ended(project, _ENDS[ending.outcome], narrator)
        cancelled = _ended(project, CANCELLED, narrator)

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


def _ended(project: str, end: RunEnd, narrator: RunNarrator) -> LastChange:
    async def last(tx: Transaction, run: Run) -> tuple[list[RunEvent], bool]:
        return await end_run(tx, project, run, end, narrator.texts()), True

    return last


async def _open_calls(tx: Transaction, project: str, run: Run) -> list[FunctionCall]:
    """The calls that the run has made and nobody has answered."""
    wanted = ItemFilter(kinds=("function_call", "function_call_output"), origin=run.id)
    placed = await SqlTimelines(tx).since(project, run.thread_id, wanted=wanted)
    waiting: dict[str, FunctionCall] = {}
    for content in (each.item.content for each in placed):
        if isinstance(content, FunctionCall):  # a model may write an id again that was answered
            waiting[content.call_id] = content
        elif isinstance(content, FunctionCallOutput):
            waiting.pop(content.call_id, None)
    return list(waiting.values())


def loop_settings(project: str, run: Run) -> LoopSettings:
    """What is asked of the model."""
    asked = run.settings
    return LoopSettings(
        project=project,
        label=run.id,
        model=asked.model,
        instructions=asked.instructions,
        tools=asked.tools,
        choice=asked.choice,
        parallel_calls=asked.parallel_calls,
        format=asked.format or ResponseFormat(),
        options=asked.options,
        effort=asked.reasoning_effort,
        seed=asked.seed,
        limits=LoopLimits(
            completion_tokens=asked.max_completion_tokens, prompt_tokens=asked.max_prompt_tokens
        ),
        keep_for=run.thread_id,
    )
