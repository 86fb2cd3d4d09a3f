"""The work of a response, stored or not: prepare, run the loop, end."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from control_svc.domain.agent import Ending, LoopLimits, LoopSettings, Outcome, Progress
from control_svc.domain.drafts import Draft
from control_svc.domain.items import FileSearchCall, Item, ItemStatus
from control_svc.domain.jobs import JobPriority
from control_svc.domain.ports import Clock
from control_svc.domain.response_events import Moment
from control_svc.domain.response_ports import Seals
from control_svc.domain.responses import (
    IncompleteReason,
    Response,
    ResponseError,
    ResponseState,
    Work,
)
from control_svc.domain.run_ports import TokenCounter
from control_svc.domain.tools import ResponseFormat, ToolChoice
from control_svc.domain.turns import TurnUsage
from control_svc.usecases.agent_loop import AgentLoop
from control_svc.usecases.mcp_preparing import McpPreparing
from control_svc.usecases.response_compacting import Thresholds
from control_svc.usecases.response_narrating import ResponseNarrator
from control_svc.usecases.response_pasts import ResponseContext, visible
from control_svc.usecases.response_tools import ResponseTools
from svc_kit.error_table import is_retryable
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)


@dataclass(frozen=True)
class Begun:
    """How far a response is, when an attempt begins."""

    items: Sequence[Item]
    """Everything that was said, its own items at the end."""
    own: Sequence[Item]
    """Its input and what it has made."""
    drafts: Sequence[Draft] = ()
    """What has been told of the open turn."""
    token_ids: Sequence[int] = ()
    archive_name: str = ""
    """As `LoopSettings.keep_for`; empty for a response that is not stored."""


class ResponseWorker:
    """Works on responses."""

    def __init__(
        self,
        loop: AgentLoop,
        counter: TokenCounter,
        thresholds: Thresholds,
        seals: Seals,
        tools: ResponseTools,
        remote: McpPreparing,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._counter = counter
        self._thresholds = thresholds
        self._seals = seals
        self._tools = tools
        self._remote = remote
        self._clock = clock

    async def work(
        self,
        project: str,
        narrator: ResponseNarrator,
        begun: Begun,
        cancelled: asyncio.Event,
        priority: JobPriority = JobPriority.INTERACTIVE,
    ) -> Outcome | None:
        """Until the response has ended; None: with an error. A cancelled one is not ended here.

        Raises LeaseLost, EngineDied, and errors that another attempt may not meet again.
        """
        try:
            ending = await self._run(project, narrator, begun, cancelled, priority)
        except DomainError as error:
            if is_retryable(error):
                raise
            await fail(narrator, error)
            return None
        if ending.outcome is not Outcome.CANCELLED:
            await self._end(narrator, ending)
        return ending.outcome

    async def _run(
        self,
        project: str,
        narrator: ResponseNarrator,
        begun: Begun,
        cancelled: asyncio.Event,
        priority: JobPriority,
    ) -> Ending:
        response = narrator.response
        settings = replace(loop_settings(project, response, priority), keep_for=begun.archive_name)
        progress = _progress(response, narrator.output, begun)
        seen = visible(project, response, begun.items, self._seals)
        known = [*begun.items, *seen]  # a summary keeps what remote servers have said
        remote = await self._remote.prepare(narrator, known, begun.own)
        progress.allowed_calls = remote.calls
        own = [*begun.own, *remote.items]
        seen += remote.items
        hosted = self._tools.hosted(response.settings.tools, [*known, *remote.lists])
        context = ResponseContext(seen, own, narrator, self._counter, self._thresholds)
        return await self._loop.run(settings, context, hosted, narrator, progress, cancelled)

    async def _end(self, narrator: ResponseNarrator, ending: Ending) -> None:
        response, now = narrator.response, self._clock()
        if ending.outcome in (Outcome.ANSWERED, Outcome.ACTION_REQUIRED):
            await narrator.end(
                ending.turn, Moment.COMPLETED, lambda work: response.completed(work.cost, now)
            )
            return
        reason = IncompleteReason.MAX_OUTPUT_TOKENS
        await narrator.end(
            ending.turn, Moment.INCOMPLETE, lambda work: response.broken_off(work.cost, reason)
        )


async def fail(narrator: ResponseNarrator, error: DomainError) -> None:
    """End a response with an error, and what it has said until then."""
    response, described = narrator.response, failure(error)
    is_refusal = (
        response.state is ResponseState.QUEUED
        and not response.settings.background
        and isinstance(error, InvalidArgument | NotFound | FailedPrecondition)
    )
    told = ResponseError(**{**described.__dict__, "is_refusal": is_refusal})
    await narrator.end(
        narrator.broken_turn(), Moment.FAILED, lambda work: response.failed(_cost(work), told)
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


def _progress(response: Response, output: Sequence[Item], begun: Begun) -> Progress:
    work = response.work
    return Progress(
        num_turns=work.num_turns,
        usage=work.usage,
        num_hosted_calls=work.num_hosted_calls,
        token_ids=list(begun.token_ids),
        drafts=list(begun.drafts),
        open_calls=[item for item in output if item.status is ItemStatus.IN_PROGRESS],
        awaits_client=work.awaits_client,
        num_passages=_num_passages(output),
    )


def _num_passages(output: Sequence[Item]) -> int:
    searches = (item.content for item in output if isinstance(item.content, FileSearchCall))
    return max((search.first + len(search.results) for search in searches), default=0)


def _cost(work: Work) -> TurnUsage | None:
    return work.cost if any(work.cost) else None
