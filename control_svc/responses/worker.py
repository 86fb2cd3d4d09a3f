"""The job handler of responses: prepare, run the agent loop, end."""

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
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FileSearchCall, Item, ItemStatus
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobPriority
from control_svc.responses.compaction import AutoCompaction
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import Past, ResponseContext, read_past, visible
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
from control_svc.responses.tools import McpPreparing, ResponseTools
from control_svc.responses.transitions import Endings
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
class ResumeState:
    """How far a response is, when an attempt begins."""

    items: Sequence[Item]
    """All items, its own at the end."""
    own: Sequence[Item]
    """Its input and what it has made."""
    drafts: Sequence[Draft] = ()
    """Drafts of the open turn."""
    token_ids: Sequence[int] = ()
    archive_name: str = ""
    """As `LoopSettings.keep_for`; empty for a response that is not stored."""


class ResponseWorker:
    """Works on responses."""

    def __init__(
        self,
        loop: AgentLoop,
        counter: TokenCounter,
        thresholds: AutoCompaction,
        cipher: ContentCipher,
        tools: ResponseTools,
        remote: McpPreparing,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._counter = counter
        self._thresholds = thresholds
        self._cipher = cipher
        self._tools = tools
        self._remote = remote
        self._clock = clock

    async def work(
        self,
        project: str,
        recorder: ResponseRecorder,
        started: ResumeState,
        cancelled: asyncio.Event,
        priority: JobPriority = JobPriority.INTERACTIVE,
    ) -> Outcome | None:
        """Until the response has ended; None: with an error. A cancelled one is not ended here.

        Raises LeaseLost, EngineDied, and errors that another attempt may not meet again.
        """
        try:
            ending = await self._run(project, recorder, started, cancelled, priority)
        except DomainError as error:
            if is_retryable(error):
                raise
            await fail(recorder, error)
            return None
        if ending.outcome is not Outcome.CANCELLED:
            await self._end(recorder, ending)
        return ending.outcome

    async def _run(
        self,
        project: str,
        recorder: ResponseRecorder,
        started: ResumeState,
        cancelled: asyncio.Event,
        priority: JobPriority,
    ) -> LoopResult:
        response = recorder.response
        settings = replace(
            loop_settings(project, response, priority), keep_for=started.archive_name
        )
        progress = _progress(response, recorder.output, started)
        seen = visible(project, response, started.items, self._cipher)
        known = [*started.items, *seen]  # a summary keeps what remote servers have said
        remote = await self._remote.prepare(recorder, known, started.own)
        progress.approved_calls = remote.calls
        own = [*started.own, *remote.items]
        seen += remote.items
        hosted = self._tools.hosted(response.settings.tools, [*known, *remote.lists])
        context = ResponseContext(seen, own, recorder, self._counter, self._thresholds)
        return await self._loop.run(settings, context, hosted, recorder, progress, cancelled)

    async def _end(self, recorder: ResponseRecorder, ending: LoopResult) -> None:
        response, now = recorder.response, self._clock()
        if ending.outcome in (Outcome.ANSWERED, Outcome.ACTION_REQUIRED):
            await recorder.end(
                ending.turn, EventType.COMPLETED, lambda work: response.completed(work.cost, now)
            )
            return
        reason = IncompleteReason.MAX_OUTPUT_TOKENS
        await recorder.end(
            ending.turn, EventType.INCOMPLETE, lambda work: response.broken_off(work.cost, reason)
        )


async def fail(recorder: ResponseRecorder, error: DomainError) -> None:
    """End a response with an error and its output so far."""
    response, described = recorder.response, failure(error)
    is_refusal = (
        response.state is ResponseState.QUEUED
        and not response.settings.background
        and isinstance(error, InvalidArgument | NotFound | FailedPrecondition)
    )
    events = ResponseError(**{**described.__dict__, "is_refusal": is_refusal})
    await recorder.end(
        recorder.broken_turn(), EventType.FAILED, lambda work: response.failed(_cost(work), events)
    )


def failure(error: DomainError) -> ResponseError:
    """An error in OpenAI's words for responses."""
    if isinstance(error, ContextLengthExceeded):
        code = "context_length_exceeded"
    elif isinstance(error, InvalidArgument):
        code = "invalid_prompt"
    else:
        code = "server_error"
    return ResponseError(
        code=code,
        message=error.message,
        param=error.field or "",
        reason=error.reason,
        metadata=error.metadata,
    )


def loop_settings(project: str, response: Response, priority: JobPriority) -> LoopSettings:
    """What is asked of the model in every turn."""
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


def _progress(response: Response, output: Sequence[Item], started: ResumeState) -> Progress:
    work = response.work
    return Progress(
        num_turns=work.num_turns,
        usage=work.usage,
        num_hosted_calls=work.num_hosted_calls,
        token_ids=list(started.token_ids),
        drafts=list(started.drafts),
        open_calls=[item for item in output if item.status is ItemStatus.IN_PROGRESS],
        awaits_client=work.awaits_client,
        num_passages=_num_passages(output),
    )


def _num_passages(output: Sequence[Item]) -> int:
    searches = (item.content for item in output if isinstance(item.content, FileSearchCall))
    return max((search.first + len(search.results) for search in searches), default=0)


def _cost(work: Work) -> TurnUsage | None:
    return work.cost if any(work.cost) else None


KIND: Final = "response"
"""The jobs of responses."""


class ResponseHandler:
    """Does the jobs of responses."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: GroupCommitter,
        worker: ResponseWorker,
        endings: Endings,
        codec: EventCodec,
        cipher: ContentCipher,
        concurrency: int,
    ) -> None:
        """`concurrency` is how many responses run at a time in this process."""
        self.concurrency = concurrency
        self._transactions = transactions
        self._writers = writers
        self._worker = worker
        self._endings = endings
        self._codec = codec
        self._cipher = cipher

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run or resume the response, unless it was cancelled or deleted."""
        if await self._response(claim) is None:
            return
        async with self._writers.writer(context, claim.subject) as writer:
            response = await self._response(claim)
            if response is None:
                return
            sink = StoredSink(claim.project, writer, self._codec)
            said = await self._transactions.read(
                lambda tx: self._endings.said(tx, claim.project, response)
            )
            recorder = ResponseRecorder(
                claim.project, response, said.output, sink, self._cipher, said.drafts
            )
            try:
                past, own = await self._output_until(claim)
            except (PreviousResponseNotFound, TooLong) as error:
                await fail(recorder, error)
                return
            started = ResumeState(past.items, own, said.drafts, said.token_ids, past.archive_name)
            await self._worker.work(claim.project, recorder, started, context.cancelled)

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
        await self._endings.end(
            tx,
            job.project,
            response,
            EventType.FAILED,
            lambda work: response.failed(work.cost, error),
        )

    async def _response(self, claim: Claim) -> Response | None:
        """The response, if there is anything to do for it."""

        async def find(tx: Transaction) -> Response | None:
            try:
                return await ResponseQueries(tx).get(claim.project, claim.subject)
            except ResponseNotFound:
                return None

        found = await self._transactions.read(find)
        return None if found is None or found.state.is_final else found

    async def _output_until(self, claim: Claim) -> tuple[Past, list[Item]]:
        """All items, and those of the response."""

        async def read(tx: Transaction) -> tuple[Past, list[Item]]:
            past = await read_past(tx, claim.project, claim.subject)
            own = await TimelineQueries(tx).read(claim.project, claim.subject)
            return past, [placed.item for placed in own]

        return await self._transactions.read(read)
