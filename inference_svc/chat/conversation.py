"""Conversations, tools and template options as plain dataclasses, and their validation.

`Conversation.check` refuses what no template can render and what OpenAI's API refuses; calls and
their results are paired by `tool_turns`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from inference_svc.chat.json_values import json_object
from inference_svc.validation import check_count, count_bytes
from svc_kit.errors import InvalidField, MissingField, TooLong

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Set by the server; a caller who could set them could forge turns.
RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "documents"}
)


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolMode(StrEnum):
    """Whether tools are called."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalPart:
    """An assistant's refusal; templates receive it as text."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A part of the kind "image", "audio" or "document": the bytes of a file, or the address to
    fetch it from. `detail` is "", "auto", "low" or "high"; a document has a `filename`. A page of a
    document has the document's path in the request as its `path`."""

    kind: str
    data: bytes = b""
    media_type: str = ""
    detail: str = ""
    url: str = ""
    filename: str = ""
    path: str = ""


Part = TextPart | RefusalPart | MediaPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of an earlier assistant turn; `arguments_json` is the model's original text."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call. An empty `parameters_json` means no arguments."""

    name: str
    description: str = ""
    parameters_json: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called, and which ones: all if `allowed_names` is empty."""

    mode: ToolMode = ToolMode.AUTO
    allowed_names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `parts` is only empty for an assistant turn with nothing but calls or reasoning; an
    empty text is one empty part. `position` is its number in the request."""

    role: Role
    parts: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    position: int = field(default=0, compare=False)

    @property
    def text(self) -> str:
        """The text of all parts, joined by line breaks as in llama-server."""
        return "\n".join(part.text for part in self.parts if not isinstance(part, MediaPart))

    def content(self, media: Iterator[str]) -> str:
        """The text with the next of `media` in the place of each other part. As in llama-server
        there is no line break beside it."""
        content, follows_text = "", False
        for part in self.parts:
            is_text = not isinstance(part, MediaPart)
            content += "\n" if is_text and follows_text and content else ""
            content += part.text if not isinstance(part, MediaPart) else next(media)
            follows_text = is_text
        return content


class ReasoningEffort(StrEnum):
    """How much the model reasons before it answers."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """Options of the template. None means the default of the template or of Corral."""

    kwargs_json: str = ""
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    template: str | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_budget_tokens: int | None = None
    require_thinking: bool = False


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """Limits of one conversation, whether it may have a chat template of its own, and the lines
    that are removed from it (`vendor_lines`)."""

    max_messages: int = 10_000
    max_text_bytes: int = 8 << 20
    allows_templates: bool = False
    vendor_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that a prompt is rendered from."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    options: TemplateOptions = TemplateOptions()

    @property
    def media(self) -> list[tuple[str, MediaPart]]:
        """The pictures, sounds and documents in order, with their paths in the request."""
        return [
            (part.path or f"messages[{i}].content[{j}].{part.kind}", part)
            for i, message in enumerate(self.messages)
            for j, part in enumerate(message.parts)
            if isinstance(part, MediaPart)
        ]

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call tools in this turn."""
        return bool(self.tools) and self.tool_choice.mode is not ToolMode.NONE

    @property
    def offered_tools(self) -> list[tuple[int, ToolSpec]]:
        """The tools that the model may call in this turn, with their numbers in the request."""
        allowed = self.tool_choice.allowed_names
        return [
            (number, tool)
            for number, tool in enumerate(self.tools)
            if self.offers_tools and (not allowed or tool.name in allowed)
        ]

    @property
    def continues_final_message(self) -> bool:
        """Whether the model continues the last assistant message instead of a new turn."""
        ends_with_assistant = bool(self.messages) and self.messages[-1].role is Role.ASSISTANT
        option = self.options.continue_final_message
        return ends_with_assistant if option is None else option

    @property
    def thinks(self) -> bool | None:
        """Whether the request enables or disables reasoning; None if the template decides."""
        options, switch = self.options, self.template_variables().get("enable_thinking")
        if isinstance(switch, bool):
            return switch
        if options.reasoning_effort is not None:
            return options.reasoning_effort is not ReasoningEffort.NONE
        return False if options.thinking_budget_tokens == 0 else None

    def with_single_calls(self) -> "Conversation":
        """The same with at most one call in the next turn."""
        return replace(self, tool_choice=replace(self.tool_choice, parallel=False))

    def check(self, limits: ConversationLimits) -> None:
        """Raise an INVALID_ARGUMENT error that names the field, e.g. "messages[0].content", if the
        conversation cannot be rendered."""
        if not self.messages:
            raise MissingField(field="messages")
        check_count("messages", self.messages, limits.max_messages)
        size = sum(count_bytes(field, text) for field, text in self._texts())
        if size > limits.max_text_bytes:
            limit = limits.max_text_bytes
            raise TooLong(field="messages", length=size, limit=limit, unit="bytes")
        for index, message in enumerate(self.messages):
            _check_message(message, f"messages[{index}]")
        _check_tools(self.tools)
        _check_tool_choice(self.tool_choice, self.tools)
        self._check_options()

    def template_variables(self) -> dict[str, Any]:
        """Return the caller's variables for the template. Raises `InvalidJson`, `InvalidType` or
        `InvalidField`."""
        field = "chat_template_kwargs"
        options = self.options
        variables = json_object(options.kwargs_json, field) if options.kwargs_json else {}
        for name in variables:
            if name in RESERVED_VARIABLES:
                raise InvalidField(
                    field=f"{field}.{name}", problem="it is reserved and cannot be set by a request"
                )
        if options.enable_thinking is not None:
            value = variables.setdefault("enable_thinking", options.enable_thinking)
            if value is not options.enable_thinking:
                raise InvalidField(
                    field=f"{field}.enable_thinking", problem="it contradicts enable_thinking"
                )
        return variables

    def _check_options(self) -> None:
        self.template_variables()
        if self.continues_final_message and self.messages[-1].role is not Role.ASSISTANT:
            raise InvalidField(
                field="continue_final_message", problem="the last message is not an assistant's"
            )

    def _texts(self) -> Iterator[tuple[str, str]]:
        for index, message in enumerate(self.messages):
            yield from _message_texts(message, f"messages[{index}]")
        for index, tool in enumerate(self.tools):
            yield f"tools[{index}].function.name", tool.name
            yield f"tools[{index}].function.description", tool.description
            yield f"tools[{index}].function.parameters", tool.parameters_json
        yield "chat_template_kwargs", self.options.kwargs_json
        yield "chat_template", self.options.template or ""


def _message_texts(message: Message, field: str) -> Iterator[tuple[str, str]]:
    for part in message.parts:
        if not isinstance(part, MediaPart):
            yield f"{field}.content", part.text
    yield f"{field}.reasoning_content", message.reasoning
    yield f"{field}.name", message.name
    yield f"{field}.tool_call_id", message.tool_call_id
    for index, call in enumerate(message.tool_calls):
        yield f"{field}.tool_calls[{index}].id", call.id
        yield f"{field}.tool_calls[{index}].function.name", call.name
        yield f"{field}.tool_calls[{index}].function.arguments", call.arguments_json


def _check_message(message: Message, field: str) -> None:
    for index, part in enumerate(message.parts):
        if isinstance(part, RefusalPart) and message.role is not Role.ASSISTANT:
            raise InvalidField(
                field=f"{field}.content[{index}].refusal",
                problem="only an assistant message can have refusals",
            )
    is_assistant = message.role is Role.ASSISTANT
    if not message.parts and not (is_assistant and (message.tool_calls or message.reasoning)):
        raise MissingField(field=f"{field}.content")
    if message.tool_calls and not is_assistant:
        raise InvalidField(
            field=f"{field}.tool_calls", problem="only an assistant message can have tool calls"
        )
    if message.role is Role.TOOL and not message.tool_call_id:
        raise MissingField(field=f"{field}.tool_call_id")
    for index, call in enumerate(message.tool_calls):
        if not call.id:
            raise MissingField(field=f"{field}.tool_calls[{index}].id")
        if not call.name:
            raise MissingField(field=f"{field}.tool_calls[{index}].function.name")


def _check_tools(tools: tuple[ToolSpec, ...]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        field = f"tools[{index}].function"
        if not tool.name:
            raise MissingField(field=f"{field}.name")
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidField(
                field=f"{field}.name",
                problem="1 to 128 letters, digits, '_', '-' or '.' are allowed",
            )
        if tool.name in names:
            raise InvalidField(field=f"{field}.name", problem="another tool has this name")
        names.add(tool.name)
        if tool.parameters_json:
            json_object(tool.parameters_json, f"{field}.parameters")


def _check_tool_choice(choice: ToolChoice, tools: tuple[ToolSpec, ...]) -> None:
    names = {tool.name for tool in tools}
    if choice.mode is ToolMode.REQUIRED and not names:
        raise InvalidField(field="tool_choice", problem="it is only allowed when tools are given")
    for name in choice.allowed_names:
        if name not in names:
            raise InvalidField(field="tool_choice", problem=f"no tool is called {name!r}")
