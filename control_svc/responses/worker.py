"""The job handler of responses. It reads the context, runs the agent loop and stores the end."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.agent.drafts import Draft
from control_svc.agent.loop import AgentLoop
from control_svc.agent.model import LoopLimits, LoopResult, LoopSettings, Outcome, Progress
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.inference.turn_client import TokenCounter
from control_svc.items.model import FileSearchCall, Item, ItemStatus
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobPriority
from control_svc.responses.compaction import AutoCompaction
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import History, ResponseContext, prompt_items, read_history
from control_svc.responses.events import EventCodec, EventType
from control_svc.responses.model import (
    IncompleteReason,
    Response,
    ResponseError,
    ResponseState,
    Work,
)
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import ResponseRecorder, StoredSink
from control_svc.responses.tools import McpPreparer, ResponseTools
from control_svc.responses.transitions import ResponseTransitions
from control_svc.tools.model import ResponseFormat, ToolChoice
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PreviousResponseNotFound,
    ResponseNotFound,
    TooLong,
)
from svc_kit.errors.status import is_retryable


@dataclass(frozen=True)
class StartState:
    """The state of a response at the start of an attempt."""

    items: Sequence[Item]
    """The history, followed by `own`."""
    own: Sequence[Item]
    """Input items and output items of the response."""
    drafts: Sequence[Draft] = ()
    """Drafts of the open turn."""
    token_ids: Sequence[int] = ()
    """Sampled tokens of the open turn."""
    keep_for: str = ""
    """As in `LoopSettings`; empty for a response that is not stored."""


class ResponseWorker:
    """Runs responses in the agent loop."""

    def __init__(
        self,
        loop: AgentLoop,
        counter: TokenCounter,
        compaction: AutoCompaction,
        cipher: ContentCipher,
        tools: ResponseTools,
        mcp: McpPreparer,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._counter = counter
        self._compaction = compaction
        self._cipher = cipher
        self._tools = tools
        self._mcp = mcp
        self._clock = clock

    async def run(
        self,
        project: str,
        recorder: ResponseRecorder,
        start: StartState,
        cancelled: asyncio.Event,
        priority: JobPriority = JobPriority.INTERACTIVE,
    ) -> None:
        """Run a response to its end. A cancelled response is not ended here.

        Raises LeaseLost, EngineDied, and retryable errors.
        """
        try:
            result = await self._run_loop(project, recorder, start, cancelled, priority)
        except DomainError as error:
            if is_retryable(error):
                raise
            await fail(recorder, error)
            return
        response, now = recorder.response, self._clock()
        match result.outcome:
            case Outcome.CANCELLED:
                pass
            case Outcome.ANSWERED | Outcome.ACTION_REQUIRED:
                await recorder.end(
                    result.turn,
                    EventType.COMPLETED,
                    lambda work: response.complete(work.total_usage, now),
                )
            case _:
                reason = IncompleteReason.MAX_OUTPUT_TOKENS
                await recorder.end(
                    result.turn,
                    EventType.INCOMPLETE,
                    lambda work: response.reach_limit(work.total_usage, reason),
                )

    async def _run_loop(
        self,
        project: str,
        recorder: ResponseRecorder,
        start: StartState,
        cancelled: asyncio.Event,
        priority: JobPriority,
    ) -> LoopResult:
        response = recorder.response
        settings = replace(loop_settings(project, response, priority), keep_for=start.keep_for)
        progress = _progress(response, recorder.output, start)
        items = prompt_items(project, response, start.items, self._cipher)
        known = [*start.items, *items]  # summaries may contain MCP items
        tool_lists, calls = await self._mcp.prepare(recorder, known, start.own)
        progress.approved_calls = calls
        new_items = [*tool_lists, *calls]
        hosted = self._tools.hosted(response.settings.tools, [*known, *tool_lists])
        context = ResponseContext(
            [*items, *new_items],
            [*start.own, *new_items],
            recorder,
            self._counter,
            self._compaction,
        )
        return await self._loop.run(settings, context, hosted, recorder, progress, cancelled)


async def fail(recorder: ResponseRecorder, error: DomainError) -> None:
    """End a response with an error and its output so far."""
    response = recorder.response
    is_refusal = (
        response.state is ResponseState.QUEUED
        and not response.settings.background
        and isinstance(error, InvalidArgument | NotFound | FailedPrecondition)
    )
    if isinstance(error, ContextLengthExceeded):
        code = "context_length_exceeded"
    elif isinstance(error, InvalidArgument):
        code = "invalid_prompt"
    else:
        code = "server_error"
    response_error = ResponseError(
        code=code,
        message=error.message,
        param=error.field or "",
        reason=error.reason,
        metadata=error.metadata,
        is_refusal=is_refusal,
    )

    def finish(work: Work) -> Response:
        usage = work.total_usage
        return response.fail(usage if any(usage) else None, response_error)

    await recorder.end(recorder.interrupted_turn(), EventType.FAILED, finish)


def loop_settings(project: str, response: Response, priority: JobPriority) -> LoopSettings:
    """Return the settings of all turns of a response."""
    settings = response.settings
    return LoopSettings(
        project=project,
        label=response.id,
        model=response.model,
        instructions=settings.instructions or "",
        tools=settings.tools,
        choice=settings.choice or ToolChoice(),
        parallel_calls=settings.parallel_tool_calls,
        format=settings.format or ResponseFormat(),
        options=settings.options,
        effort=settings.effort,
        seed=response.seed,
        limits=LoopLimits(
            completion_tokens=settings.max_output_tokens, hosted_calls=settings.max_tool_calls
        ),
        priority=priority,
    )


def _progress(response: Response, output: Sequence[Item], start: StartState) -> Progress:
    work = response.work
    searches = [item.content for item in output if isinstance(item.content, FileSearchCall)]
    passages = (search.first + len(search.results) for search in searches)
    return Progress(
        num_turns=work.num_turns,
        usage=work.usage,
        num_hosted_calls=work.num_hosted_calls,
        token_ids=list(start.token_ids),
        drafts=list(start.drafts),
        open_calls=[item for item in output if item.status is ItemStatus.IN_PROGRESS],
        awaits_client=work.awaits_client,
        num_passages=max(passages, default=0),
    )


KIND: Final = "response"
"""Job kind."""


class ResponseHandler:
    """The job handler."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: GroupCommitter,
        worker: ResponseWorker,
        transitions: ResponseTransitions,
        codec: EventCodec,
        cipher: ContentCipher,
        concurrency: int,
    ) -> None:
        """`concurrency` is the maximum number of responses that run at once in this process."""
        self.concurrency = concurrency
        self._transactions = transactions
        self._writers = writers
        self._worker = worker
        self._transitions = transitions
        self._codec = codec
        self._cipher = cipher

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run or resume the response, unless it has ended or was deleted."""
        if await self._find_running(claim) is None:
            return
        async with self._writers.writer(context, claim.subject) as writer:
            response = await self._find_running(claim)
            if response is None:
                return
            sink = StoredSink(claim.project, writer, self._codec)
            output = await self._transactions.read(
                lambda tx: self._transitions.read_output(tx, claim.project, response)
            )
            recorder = ResponseRecorder(
                claim.project, response, output.items, sink, self._cipher, output.drafts
            )
            try:
                history, own = await self._read_history(claim)
            except (PreviousResponseNotFound, TooLong) as error:
                await fail(recorder, error)
                return
            start = StartState(
                history.items, own, output.drafts, output.token_ids, history.keep_for
            )
            await self._worker.run(claim.project, recorder, start, context.cancelled)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the response of a dead job, with its output so far."""
        try:
            response = await ResponseQueries(tx).lock(job.project, job.subject)
        except ResponseNotFound:
            return
        if response.state.is_final:
            return
        reason, message = job.error or ("INTERNAL", "")
        error = ResponseError(code="server_error", message=message, reason=reason)
        await self._transitions.end(
            tx,
            job.project,
            response,
            EventType.FAILED,
            lambda work: response.fail(work.total_usage, error),
        )

    async def _find_running(self, claim: Claim) -> Response | None:
        """Return the response of a job; None if it has ended or was deleted."""
        try:
            response = await self._transactions.read(
                lambda tx: ResponseQueries(tx).get(claim.project, claim.subject)
            )
        except ResponseNotFound:
            return None
        return None if response.state.is_final else response

    async def _read_history(self, claim: Claim) -> tuple[History, list[Item]]:
        """Read all items, and those of the response itself."""

        async def read(tx: Transaction) -> tuple[History, list[Item]]:
            history = await read_history(tx, claim.project, claim.subject)
            own = await TimelineQueries(tx).read(claim.project, claim.subject)
            return history, [placed.item for placed in own]

        return await self._transactions.read(read)
