"""Conversations as OpenAI's API of chat completions has them, for engines that render them."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from inference_svc.chat.conversation import (
    Conversation,
    MediaPart,
    Message,
    Part,
    Role,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from inference_svc.media.image_format import image_media_type


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
    has_media = any(isinstance(part, MediaPart) for part in message.parts)
    if message.role is Role.TOOL or (len(message.parts) == 1 and not has_media):
        yield "content", message.text
    else:
        yield "content", [_part(part) for part in message.parts] or None
    if message.reasoning:
        yield "reasoning_content", message.reasoning
    if message.tool_calls:
        yield "tool_calls", [_call(each) for each in message.tool_calls]
    if message.tool_call_id:
        yield "tool_call_id", message.tool_call_id
    if message.name:
        yield "name", message.name


def _part(part: Part) -> Mapping[str, Any]:
    """A part; a picture is in the JSON as it is made here, without a look at each character."""
    if not isinstance(part, MediaPart):
        return {"type": "text", "text": part.text}
    head = f"data:{image_media_type(part.data)};base64,".encode()
    image: dict[str, Any] = {"url": orjson.Fragment(b'"%s%s"' % (head, b64encode(part.data)))}
    if part.detail:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


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
