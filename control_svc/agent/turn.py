"""One turn: builds its request from settings and items, and reads its events until it ends."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress

from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.agent.drafts import CUSTOM_TOOL_TARGET, DraftKind, ToolTarget, TurnDraft
from control_svc.agent.model import PROMPT_LIMIT, HostedTool, LoopSettings, Progress
from control_svc.agent.prompt import CUSTOM_INPUT, compact_json, turn_messages
from control_svc.agent.recorder import TurnRecorder
from control_svc.event_log.model import Held
from control_svc.inference import turns
from control_svc.items.model import Item
from control_svc.tools.model import (
    CustomTool,
    FormatKind,
    FunctionTool,
    ResponseFormat,
    ToolChoice,
)
from control_svc.tools.tool_validation import REGEX
from svc_kit.errors import ContextLengthExceeded, UpstreamUnavailable


class ToolSet:
    """The client and hosted tools of a run or response."""

    def __init__(self, settings: LoopSettings, hosted: Sequence[HostedTool]) -> None:
        tools, enforced = settings.tools, settings.enforces_grammars
        self._client_tools = [
            turn_tool(t, f"tools[{index}]", enforced=enforced)
            for index, t in enumerate(tools)
            if isinstance(t, FunctionTool | CustomTool)
        ]
        self.hosted: Mapping[str, HostedTool] = {
            function.name: tool for tool in hosted for function in tool.functions
        }
        self._hosted_functions = [function for tool in hosted for function in tool.functions]
        custom = {t.name: CUSTOM_TOOL_TARGET for t in tools if isinstance(t, CustomTool)}
        self.targets: Mapping[str, ToolTarget] = custom | {
            name: ToolTarget(DraftKind.HOSTED, t.item_prefix) for name, t in self.hosted.items()
        }
        """How calls are represented, by tool name. Client functions are not included."""

    def offered(self, *, with_hosted: bool) -> tuple[turns.TurnTool, ...]:
        """The tools that the model is shown."""
        return (*self._client_tools, *(self._hosted_functions if with_hosted else ()))

    def choice(
        self,
        request: ToolChoice,
        offered: Sequence[turns.TurnTool],
        *,
        is_first: bool,
        parallel: bool | None,
    ) -> turns.TurnChoice:
        """Convert a tool choice to one among the offered tools; it may name hosted ones by kind."""
        if not offered:
            return turns.DEFAULT_CHOICE
        is_free = request.mode is turns.ChoiceMode.REQUIRED and not is_first
        mode = turns.ChoiceMode.AUTO if is_free else request.mode
        names = {tool.name for tool in offered}
        hosted = (name for name, tool in self.hosted.items() if tool.kind in request.allowed_names)
        allowed = [name for name in (*request.allowed_names, *hosted) if name in names]
        if request.allowed_names and not allowed:  # none of the allowed tools is offered
            return turns.TurnChoice(turns.ChoiceMode.NONE)
        return turns.TurnChoice(mode, tuple(dict.fromkeys(allowed)), parallel)


def turn_request(
    settings: LoopSettings, progress: Progress, tools: ToolSet, items: Sequence[Item]
) -> turns.TurnRequest:
    """The request for the next turn, or for the rest of the open one."""
    limit, work = settings.limits.hosted_calls, progress.work
    has_calls_left = limit is None or work.num_hosted_calls < limit
    offered = tools.offered(with_hosted=has_calls_left)
    return turns.TurnRequest(
        project=settings.project,
        model=settings.model,
        messages=turn_messages(settings.instructions, items, settings.item_names),
        tools=offered,
        choice=tools.choice(
            settings.choice,
            offered,
            is_first=not work.num_turns,
            parallel=settings.parallel_calls,
        ),
        format=turn_format(settings.format),
        options=settings.options,
        max_tokens=tokens_left(settings, progress),
        effort=settings.effort,
        seed=settings.seed + work.num_turns,
        token_ids=tuple(progress.token_ids),
        held_logprobs=tuple(progress.held_logprobs),
        priority=settings.priority,
        label=settings.label,
        keep_for=settings.keep_for,
    )


def tokens_left(settings: LoopSettings, progress: Progress) -> int | None:
    """The token limit of the open turn or, if none is open, the next; None for no limit."""
    limit = settings.limits.completion_tokens
    return None if limit is None else max(0, limit - progress.work.usage.completion_tokens)


def turn_tool(
    tool: FunctionTool | CustomTool, field: str = "", *, enforced: bool
) -> turns.TurnTool:
    """Convert a client tool, which errors name `field`, to a function. The grammar of a custom tool
    is part of its schema if it is `enforced`, else of the text that describes its input."""
    if isinstance(tool, CustomTool):
        return turns.TurnTool(
            tool.name,
            tool.description,
            _custom_schema(tool, enforced=enforced),
            strict=True,
            field=field,
            grammar_field=f"{field}.format.definition" if tool.syntax else "",
        )
    return turns.TurnTool(tool.name, tool.description, tool.parameters_json, tool.strict, field)


def _custom_schema(tool: CustomTool, *, enforced: bool) -> str:
    text = {"type": "string"}
    if tool.syntax == REGEX and enforced:
        text["pattern"] = f"^(?:{tool.definition})$"  # JSON Schema patterns are not anchored
    elif tool.syntax:
        text["description"] = f"Text that matches this {tool.syntax} grammar:\n{tool.definition}"
    return compact_json(
        {
            "type": "object",
            "properties": {CUSTOM_INPUT: text},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
    )


def turn_format(request: ResponseFormat) -> turns.TurnFormat | None:
    """Convert an output format; None for text."""
    match request.kind:
        case FormatKind.JSON_OBJECT:
            return turns.JsonObject()
        case FormatKind.JSON_SCHEMA:
            return turns.JsonSchema(request.schema_json)
        case FormatKind.TEXT:
            return None


class TurnCancelled(Exception):
    """The run or response was cancelled."""


class TurnReader:
    """Reads the events of a turn, from its start or from where it was interrupted."""

    def __init__(
        self,
        number: int,
        draft: TurnDraft,
        recorder: TurnRecorder,
        cancelled: asyncio.Event,
    ) -> None:
        self.draft = draft
        self.usage: turns.TurnUsage | None = None
        """None until the model reports it."""
        self._number = number
        self._recorder = recorder
        self._cancelled = cancelled
        self._continued: list[ChatDelta] = []
        """Output whose tokens come with a later delta: both are recorded together."""
        self._reason: turns.FinishReason | None = None
        self._read_timeout: asyncio.Timeout | None = None

    async def run(
        self, events: AsyncGenerator[turns.TurnEvent, None], prompt_limit: int | None
    ) -> turns.FinishReason:
        """Read the turn to its end.

        Raises TurnCancelled, ContextLengthExceeded for a prompt beyond the limit, and errors of the
        inference service.
        """
        cancellation = asyncio.create_task(self._interrupt_on_cancel())
        try:
            async with aclosing(events):
                while (event := await self._next(events)) is not None:
                    await self._handle(event, prompt_limit)
        finally:
            cancellation.cancel()
            with suppress(asyncio.CancelledError):
                await cancellation
        if self._reason is None:
            raise UpstreamUnavailable(service="inference")
        if self._reason is not turns.FinishReason.LENGTH:
            await self._recorder.record(self._number, list(self.draft.close()), ())
        return self._reason

    async def _interrupt_on_cancel(self) -> None:
        """Interrupt only the wait for the next event, never the recording of one."""
        await self._cancelled.wait()
        if self._read_timeout is not None:
            self._read_timeout.reschedule(0)

    async def _next(self, events: AsyncGenerator[turns.TurnEvent, None]) -> turns.TurnEvent | None:
        if self._cancelled.is_set():
            raise TurnCancelled
        try:
            async with asyncio.timeout(None) as self._read_timeout:
                return await anext(events, None)
        except TimeoutError:
            raise TurnCancelled from None
        finally:
            self._read_timeout = None

    async def _handle(self, event: turns.TurnEvent, prompt_limit: int | None) -> None:
        match event:
            case turns.Started():
                _check_prompt(event, prompt_limit)
                await self._recorder.turn_started(self._number, event)
            case ChatDelta(is_continued=True):
                self._continued.append(event)
            case ChatDelta():
                deltas, self._continued = [*self._continued, event], []
                changes = [change for delta in deltas for change in self.draft.apply(delta)]
                parts = tuple(each.SerializeToString() for each in event.held_logprobs)
                held = Held(parts, event.num_held)
                await self._recorder.record(self._number, changes, tuple(event.token_ids), held)
            case turns.FinishReason():
                self._reason = event
            case turns.TurnUsage():
                self.usage = event


def _check_prompt(started: turns.Started, limit: int | None) -> None:
    if limit is not None and started.prompt_tokens > limit:
        raise ContextLengthExceeded(
            field=PROMPT_LIMIT, prompt_tokens=started.prompt_tokens, context_tokens=limit
        )
