"""Chat messages, converted to protos."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from corral.inference.v1 import chat_pb2
from pydantic import Field, Tag

from openai_wire.shared.fields import BY_KIND, WireModel
from svc_kit.errors import InvalidField, MissingField, UnsupportedField, UnsupportedValue

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII)


class ImageUrl(WireModel):
    """An image in a message."""

    url: str = Field(
        description="A data URL. Other URLs are rejected: this server does not download images."
    )
    detail: Literal["auto", "low", "high"] | None = None


class InputAudio(WireModel):
    """Audio in a message."""

    data: str = Field(description="The file in base64.")
    format: Literal["wav", "mp3"]


class ContentPart(WireModel):
    """A part of a message. The field named by `type` contains it."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None
    file: dict[str, Any] | None = Field(None, description="Not supported.")


class FunctionCall(WireModel):
    """The function that an earlier message called."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="JSON text.")


class MessageToolCall(WireModel):
    """A tool call of an earlier message."""

    id: str = Field(min_length=1)
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: dict[str, Any] | None = Field(None, description="Not supported.")
    index: int | None = Field(None, description="Accepted and ignored: streams carry it.")


Content = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[ContentPart], Tag("~array")], BY_KIND
]


class Message(WireModel):
    """A message of the conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(
        None, description="The reasoning of an assistant message."
    )
    reasoning: str | None = Field(None, description="Another name for reasoning_content.")
    annotations: list[Any] | None = Field(None, description="Accepted and ignored.")
    audio: dict[str, Any] | None = Field(None, description="Not supported.")
    function_call: dict[str, Any] | None = Field(None, description="Not supported; use tool_calls.")


def chat_messages(messages: Sequence[Message]) -> list[chat_pb2.ChatMessage]:
    """Convert messages. Raises DomainErrors with paths such as messages[0].content."""
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


_ROLES = {
    "developer": chat_pb2.ROLE_DEVELOPER,
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "tool": chat_pb2.ROLE_TOOL,
}
_ASSISTANT_ONLY = ("refusal", "tool_calls", "reasoning_content", "reasoning")


def _message(path: str, message: Message) -> chat_pb2.ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise UnsupportedValue(field=f"{path}.role", value=message.role)
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise UnsupportedField(field=f"{path}.{name}")
    _check_role(path, message)
    return chat_pb2.ChatMessage(
        role=role,
        parts=_parts(path, message),
        tool_calls=[
            _tool_call(f"{path}.tool_calls[{index}]", call)
            for index, call in enumerate(message.tool_calls or ())
        ],
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def _check_role(path: str, message: Message) -> None:
    if message.role == "assistant":
        if message.content is None and not message.tool_calls and message.refusal is None:
            raise MissingField(field=f"{path}.content")
        return
    for name in _ASSISTANT_ONLY:
        if getattr(message, name):
            raise InvalidField(
                field=f"{path}.{name}", problem="it is only allowed in assistant messages"
            )
    if message.content is None:
        raise MissingField(field=f"{path}.content")
    if message.role == "tool" and not message.tool_call_id:
        raise MissingField(field=f"{path}.tool_call_id")


def _parts(path: str, message: Message) -> list[chat_pb2.ContentPart]:
    if isinstance(message.content, str):
        parts = [chat_pb2.ContentPart(text=message.content)]
    else:
        parts = [
            _part(f"{path}.content[{index}]", part)
            for index, part in enumerate(message.content or ())
        ]
    if message.refusal is not None:
        parts.append(chat_pb2.ContentPart(refusal=message.refusal))
    return parts


def _part(path: str, part: ContentPart) -> chat_pb2.ContentPart:
    if part.type == "file":
        raise UnsupportedValue(field=f"{path}.type", value="file")
    if getattr(part, part.type) is None:
        raise MissingField(field=f"{path}.{part.type}")
    if part.image_url is not None and part.type == "image_url":
        return chat_pb2.ContentPart(image=_image(f"{path}.image_url", part.image_url))
    if part.input_audio is not None and part.type == "input_audio":
        field, audio = f"{path}.input_audio.data", part.input_audio
        return chat_pb2.ContentPart(
            audio=chat_pb2.Media(
                data=_decode_base64(field, audio.data), media_type=f"audio/{audio.format}"
            )
        )
    if part.type == "refusal":
        return chat_pb2.ContentPart(refusal=part.refusal)
    return chat_pb2.ContentPart(text=part.text)


def _image(path: str, image: ImageUrl) -> chat_pb2.Media:
    header = _DATA_URL.match(image.url[:256])
    if header is None:
        scheme = image.url.partition(":")[0][:16]
        raise UnsupportedValue(field=f"{path}.url", value=scheme)
    return chat_pb2.Media(
        data=_decode_base64(f"{path}.url", image.url[header.end() :]),
        media_type=header[1] or "text/plain",
        detail=image.detail or "",
    )


def _decode_base64(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidField(field=field, problem="it is not valid base64") from None


def _tool_call(path: str, call: MessageToolCall) -> chat_pb2.ToolCall:
    if call.type != "function":
        raise UnsupportedValue(field=f"{path}.type", value=call.type)
    if call.function is None:
        raise MissingField(field=f"{path}.function")
    return chat_pb2.ToolCall(
        id=call.id, name=call.function.name, arguments_json=call.function.arguments
    )
