"""Ollama's messages and tools, converted to a Conversation.

Results of tools may lack the id of their call, as may the calls themselves when a client plays
them back. `_OpenCalls` pairs them.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any, ClassVar, Final

from corral.inference.v1 import chat_pb2
from pydantic import Field

from dialects.ollama.model_body import OTHERS, LenientModel
from dialects.shared.json_body import json_text
from dialects.shared.media import check_media_size, decode_file
from dialects.shared.parameters import Policy
from svc_kit.errors import InvalidField

_ROLES: Final = {
    "system": chat_pb2.ROLE_SYSTEM,
    "developer": chat_pb2.ROLE_DEVELOPER,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "tool": chat_pb2.ROLE_TOOL,
}


class CalledFunction(LenientModel):
    """The function that an earlier message called."""

    name: str = Field(min_length=1)
    arguments: dict[str, Any] | None = Field(None, description="An object, not text.")


class MessageCall(LenientModel):
    """A tool call of an earlier message."""

    id: str | None = None
    function: CalledFunction


class ChatMessageBody(LenientModel):
    role: str = Field(description="system, user, assistant or tool, in any case.")
    content: str | None = None
    thinking: str | None = Field(None, description="The reasoning of an assistant message.")
    images: list[str] | None = Field(None, description="Pictures in base64.")
    tool_calls: list[MessageCall] | None = None
    tool_name: str | None = Field(None, description="The tool whose result this is.")
    tool_call_id: str | None = Field(None, description="The call whose result this is.")


class FunctionSpec(LenientModel):
    """A function that the model may call."""

    policy: ClassVar[Policy] = OTHERS

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="The JSON Schema of its arguments.")


class ToolSpec(LenientModel):
    """A tool that the model may call."""

    policy: ClassVar[Policy] = OTHERS

    type: str | None = None
    function: FunctionSpec


def chat_tools(tools: Sequence[ToolSpec] | None) -> list[chat_pb2.Tool]:
    return [
        chat_pb2.Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters_json=json_text(tool.function.parameters),
        )
        for tool in tools or ()
    ]


def chat_messages(messages: Sequence[ChatMessageBody]) -> list[chat_pb2.ChatMessage]:
    """Convert messages. Raises DomainErrors with paths such as messages[0].images[1]."""
    used_ids = {call.id for message in messages for call in message.tool_calls or ()}
    used_ids |= {message.tool_call_id for message in messages}
    open_calls = _OpenCalls()
    converted = []
    for index, message in enumerate(messages):
        proto = _message(f"messages[{index}]", index, message, used_ids)
        if proto.role == chat_pb2.ROLE_TOOL:
            open_calls.answer(f"messages[{index}]", message, proto)
        elif proto.tool_calls:
            open_calls.answer_unnamed()
            open_calls.add(f"messages[{index}]", proto.tool_calls, message.tool_calls or ())
        converted.append(proto)
    open_calls.answer_unnamed()
    open_calls.check()
    check_media_size(
        (image_path(f"messages[{index}]", number), part)
        for index, message in enumerate(converted)
        for number, part in enumerate(message.parts)
    )
    return converted


def image_parts(path: str, images: Sequence[str] | None) -> list[chat_pb2.ContentPart]:
    """Decode pictures; `path` is that of their message, or empty. Raises InvalidField."""
    parts = []
    for number, image in enumerate(images or ()):
        data, media_type = decode_file(image_path(path, number), image)
        media = chat_pb2.Media(data=data, media_type=media_type)
        parts.append(chat_pb2.ContentPart(image=media))
    return parts


def image_path(path: str, number: int) -> str:
    """The path of a picture, in errors."""
    return f"{path}.images[{number}]" if path else f"images[{number}]"


def image_names(messages: Sequence[ChatMessageBody]) -> dict[str, str]:
    """The paths of pictures by those that OpenAI's API has for them."""
    return {
        f"messages[{index}].content[{number}].image_url{suffix}": image_path(
            f"messages[{index}]", number
        )
        for index, message in enumerate(messages)
        for number in range(len(message.images or ()))
        for suffix in ("", ".url")
    }


def _message(
    path: str, index: int, message: ChatMessageBody, used_ids: Collection[str | None]
) -> chat_pb2.ChatMessage:
    role = _ROLES.get(message.role.lower())
    if role is None:
        known = f"supported values are {', '.join(map(repr, _ROLES))}"
        raise InvalidField(field=f"{path}.role", problem=known)
    is_assistant = role == chat_pb2.ROLE_ASSISTANT
    parts = image_parts(path, message.images)
    if message.content or not (parts or (is_assistant and message.tool_calls)):
        parts.append(chat_pb2.ContentPart(text=message.content or ""))
    return chat_pb2.ChatMessage(
        role=role,
        parts=parts,
        tool_calls=[
            chat_pb2.ToolCall(
                id=call.id or _new_id(f"call_{index}_{number}", used_ids),
                name=call.function.name,
                arguments_json=json_text(call.function.arguments or {}),
            )
            for number, call in enumerate(message.tool_calls or () if is_assistant else ())
        ],
        reasoning=(message.thinking or "") if is_assistant else "",
    )


def _new_id(call_id: str, used_ids: Collection[str | None]) -> str:
    """An id that the request does not have, and the same for each request with these messages."""
    while call_id in used_ids:
        call_id += "_"
    return call_id


class _OpenCalls:
    """The calls without a result."""

    def __init__(self) -> None:
        self._unnamed: list[tuple[str, ChatMessageBody, chat_pb2.ChatMessage]] = []
        """Results that name no call and no function, behind the last calls."""
        self._calls: dict[int, tuple[str, chat_pb2.ToolCall]] = {}
        """Calls without a result and their paths, by number."""
        self._queues: dict[tuple[str | None, str | None], deque[int]] = {}
        """Numbers of calls, also of answered ones, by id ("" if sent without) and name; None stands
        for any."""
        self._num_calls = 0

    def add(
        self, path: str, calls: Iterable[chat_pb2.ToolCall], sent: Iterable[MessageCall]
    ) -> None:
        # Only those of the assistant count.
        for number, (call, body) in enumerate(zip(calls, sent, strict=False)):
            self._calls[self._num_calls] = (f"{path}.tool_calls[{number}]", call)
            for key in product((None, body.id or ""), (None, call.name)):
                self._queues.setdefault(key, deque()).append(self._num_calls)
            self._num_calls += 1

    def answer(self, path: str, message: ChatMessageBody, proto: chat_pb2.ChatMessage) -> None:
        """Set the call that a tool's message answers; later, if the message names nothing."""
        call_id = message.tool_call_id
        if message.tool_name or (call_id and (call_id, None) in self._queues):
            self._pair(path, message, proto)
        else:
            self._unnamed.append((path, message, proto))

    def answer_unnamed(self) -> None:
        """Let messages that name nothing answer, in order, the calls that no other one has."""
        for unnamed in self._unnamed:
            self._pair(*unnamed)
        self._unnamed.clear()

    def check(self) -> None:
        """Raise InvalidField for the first call without a result."""
        for path, call in self._calls.values():
            problem = f"no message with the role 'tool' behind it has the result of '{call.name}'"
            raise InvalidField(field=path, problem=problem)

    def _pair(self, path: str, message: ChatMessageBody, proto: chat_pb2.ChatMessage) -> None:
        """Remove the call that a tool's message answers, the first without a result; set its id.

        By an id that calls have, else by name, among all calls if the message has no id, and among
        those without an id if it has one. Raises InvalidField if there is none.
        """
        call_id, name = message.tool_call_id, message.tool_name
        key = (call_id or None, None if call_id else name or None)
        if call_id and key not in self._queues:
            key = ("", name or None)
        numbers = self._queues.get(key, deque())
        while numbers and numbers[0] not in self._calls:
            numbers.popleft()
        if numbers:
            _, call = self._calls.pop(numbers.popleft())
            proto.tool_call_id, proto.name = call.id, call.name
            return
        if call_id:
            problem = f"no call before it that lacks a result has the id '{call_id}'"
            raise InvalidField(field=f"{path}.tool_call_id", problem=problem)
        if name:
            problem = f"no call of '{name}' before it lacks a result"
            raise InvalidField(field=f"{path}.tool_name", problem=problem)
        problem = "it is the result of a tool, but no call before it lacks one"
        raise InvalidField(field=path, problem=problem)
