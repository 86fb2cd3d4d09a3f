"""Builders of conversations."""

from inference_svc.chat.conversation import (
    Conversation,
    Message,
    RefusalPart,
    Role,
    TemplateOptions,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)

GET_WEATHER = ToolSpec(
    "get_weather",
    "Weather of a city",
    '{"type": "object", "properties": {"city": {"type": "string"}}}',
)


def system(text: str) -> Message:
    return Message(Role.SYSTEM, (TextPart(text),))


def user(*texts: str) -> Message:
    return Message(Role.USER, tuple(TextPart(text) for text in texts))


def assistant(text: str = "", *calls: ToolCall, reasoning: str = "") -> Message:
    """An assistant's turn; without a text it has no content."""
    parts = (TextPart(text),) if text else ()
    return Message(Role.ASSISTANT, parts, calls, reasoning=reasoning)


def refusal(text: str) -> Message:
    return Message(Role.ASSISTANT, (RefusalPart(text),))


def call(call_id: str = "call_1", arguments: str = '{"city": "Paris"}') -> ToolCall:
    return ToolCall(call_id, "get_weather", arguments)


def result(text: str, call_id: str = "call_1") -> Message:
    return Message(Role.TOOL, (TextPart(text),), tool_call_id=call_id)


def conversation(
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (),
    choice: ToolChoice | None = None,
    **options: str | bool | None,
) -> Conversation:
    """A conversation; further names are template options."""
    return Conversation(
        messages,
        tools,
        choice or ToolChoice(),
        TemplateOptions(**options),  # type: ignore[arg-type]
    )
