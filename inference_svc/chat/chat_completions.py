"""Conversations as OpenAI's API of chat completions has them, for engines that render them."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from inference_svc.chat.conversation import (
    Conversation,
    MediaPart,
    Message,
    Role,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)


def prompt_fields(conversation: Conversation) -> Iterator[tuple[str, Any]]:
    """The fields that the prompt is made from. Of the tools, only those that may be called."""
    yield "messages", [dict(_message(each)) for each in conversation.messages]
    allowed = conversation.tool_choice.allowed_names
    tools = [each for each in conversation.tools if not allowed or each.name in allowed]
    if tools:
        yield "tools", [_tool(each) for each in tools]
        yield from _tool_choice(conversation.tool_choice)


def _message(message: Message) -> Iterator[tuple[str, Any]]:
    """OpenAI's `developer` is not known everywhere."""
    yield "role", "system" if message.role is Role.DEVELOPER else message.role.value
    texts = [part.text for part in message.parts if not isinstance(part, MediaPart)]
    if len(texts) == 1 or message.role is Role.TOOL:
        yield "content", message.text
    else:
        yield "content", [{"type": "text", "text": text} for text in texts] or None
    if message.reasoning:
        yield "reasoning_content", message.reasoning
    if message.tool_calls:
        yield "tool_calls", [_call(each) for each in message.tool_calls]
    if message.tool_call_id:
        yield "tool_call_id", message.tool_call_id
    if message.name:
        yield "name", message.name


def _call(call: ToolCall) -> Mapping[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = orjson.Fragment(tool.parameters_json)  # digit for digit
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Iterator[tuple[str, Any]]:
    if choice.mode is ToolMode.REQUIRED and len(choice.allowed_names) == 1:
        function = {"name": choice.allowed_names[0]}
        yield "tool_choice", {"type": "function", "function": function}
    elif choice.mode is not ToolMode.AUTO:
        yield "tool_choice", choice.mode.value
    if not choice.parallel:
        yield "parallel_tool_calls", False
