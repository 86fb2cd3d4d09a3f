"""Chat messages, converted to protos."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from corral.inference.v1 import chat_pb2
from pydantic import Field, Tag

from dialects.openai.chat.policy import CACHE_CONTROL
from dialects.shared.fields import BY_KIND, WireModel
from dialects.shared.media import (
    FileReference,
    StoredFile,
    check_media_size,
    decode_base64,
    decode_file,
    file_part,
    image_media,
)
from dialects.shared.parameters import Policy
from svc_kit.errors import InvalidField, MissingField, UnsupportedField, UnsupportedValue

StoredFiles = Mapping[str, StoredFile]
"""The stored files of a body, by id."""
NO_FILES: Final[StoredFiles] = MappingProxyType({})


class ImageUrl(WireModel):
    """An image in a message."""

    url: str = Field(description="A data URL, or an address of a host that the operator allows.")
    detail: Literal["auto", "low", "high"] | None = None


class InputAudio(WireModel):
    """Audio in a message."""

    data: str = Field(description="The file in base64.")
    format: Literal["wav", "mp3", "flac"]


class File(WireModel):
    """A document or an image in a message, given by either `file_data` or `file_id`."""

    file_data: str | None = Field(None, description="A data URL, or the file in base64.")
    file_id: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A file of the project."
    )
    filename: str | None = Field(None, description="The model reads it. Default: the stored name.")


class ContentPart(WireModel):
    """A part of a message. The field named by `type` contains it."""

    policy: ClassVar[Policy] = CACHE_CONTROL

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None
    input_audio: InputAudio | None = None
    file: File | None = None


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

    policy: ClassVar[Policy] = CACHE_CONTROL

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

    @property
    def content_parts(self) -> Sequence[ContentPart]:
        """The parts of the content; none if it is a text."""
        return self.content if isinstance(self.content, list) else ()


def referenced_files(messages: Sequence[Message]) -> Iterator[FileReference]:
    """Yield the file ids of messages, for `chat_messages`."""
    for path, file in _files(messages):
        if file.file_id:
            yield FileReference(f"{path}.file.file_id", file.file_id)


def num_media_characters(messages: Sequence[Message]) -> int:
    """The length of all pictures, sounds and files in messages, which have to be decoded."""
    return sum(
        len(part.image_url.url if part.image_url else "")
        + len(part.input_audio.data if part.input_audio else "")
        + len(part.file.file_data or "" if part.file else "")
        for message in messages
        for part in message.content_parts
    )


def picture_names(messages: Sequence[Message]) -> dict[str, str]:
    """The names of files in errors, by those that they would have as pictures."""
    names: dict[str, str] = {}
    for path, file in _files(messages):
        source = "file_id" if file.file_id else "file_data"
        names[f"{path}.image_url"] = f"{path}.file"
        names[f"{path}.image_url.url"] = f"{path}.file.{source}"
    return names


def _files(messages: Sequence[Message]) -> Iterator[tuple[str, File]]:
    """The files of messages, each with the path of its part."""
    for index, message in enumerate(messages):
        for number, part in enumerate(message.content_parts):
            if part.file is not None:
                yield f"messages[{index}].content[{number}]", part.file


def chat_messages(
    messages: Sequence[Message], files: StoredFiles = NO_FILES
) -> list[chat_pb2.ChatMessage]:
    """Convert messages; `files` are those of `referenced_files`.

    Raises DomainErrors with paths such as messages[0].content.
    """
    converted = [
        _message(f"messages[{index}]", message, files) for index, message in enumerate(messages)
    ]
    check_media_size(
        (f"messages[{index}].content[{number}]", part)
        for index, message in enumerate(converted)
        for number, part in enumerate(message.parts)
    )
    return converted


_ROLES = {
    "developer": chat_pb2.ROLE_DEVELOPER,
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "tool": chat_pb2.ROLE_TOOL,
}
_ASSISTANT_ONLY = ("refusal", "tool_calls", "reasoning_content", "reasoning")


def _message(path: str, message: Message, files: StoredFiles) -> chat_pb2.ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise UnsupportedValue(field=f"{path}.role", value=message.role)
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise UnsupportedField(field=f"{path}.{name}")
    _check_role(path, message)
    return chat_pb2.ChatMessage(
        role=role,
        parts=_parts(path, message, files),
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


def _parts(path: str, message: Message, files: StoredFiles) -> list[chat_pb2.ContentPart]:
    if isinstance(message.content, str):
        parts = [chat_pb2.ContentPart(text=message.content)]
    else:
        parts = [
            _part(f"{path}.content[{index}]", part, files)
            for index, part in enumerate(message.content or ())
        ]
    if message.refusal is not None:
        parts.append(chat_pb2.ContentPart(refusal=message.refusal))
    return parts


def _part(path: str, part: ContentPart, files: StoredFiles) -> chat_pb2.ContentPart:
    match part:
        case ContentPart(type="image_url", image_url=ImageUrl() as image):
            media = image_media(f"{path}.image_url.url", image.url, image.detail or "")
            return chat_pb2.ContentPart(image=media)
        case ContentPart(type="input_audio", input_audio=InputAudio() as audio):
            data = decode_base64(f"{path}.input_audio.data", audio.data)
            media = chat_pb2.Media(data=data, media_type=f"audio/{audio.format}")
            return chat_pb2.ContentPart(audio=media)
        case ContentPart(type="file", file=File() as file):
            return _file(f"{path}.file", file, files)
        case ContentPart(type="refusal", refusal=str() as refusal):
            return chat_pb2.ContentPart(refusal=refusal)
        case ContentPart(type="text", text=str() as text):
            return chat_pb2.ContentPart(text=text)
        case _:
            raise MissingField(field=f"{path}.{part.type}")


def _file(path: str, file: File, files: StoredFiles) -> chat_pb2.ContentPart:
    if file.file_id is not None and file.file_data is not None:
        raise InvalidField(field=path, problem="it must have either 'file_data' or 'file_id'")
    if file.file_id is not None:
        stored = files[file.file_id]
        return file_part(stored.data, "", file.filename or stored.filename)
    if file.file_data is None:
        raise MissingField(field=f"{path}.file_data")
    data, media_type = decode_file(f"{path}.file_data", file.file_data)
    return file_part(data, media_type, file.filename or "")


def _tool_call(path: str, call: MessageToolCall) -> chat_pb2.ToolCall:
    if call.type != "function":
        raise UnsupportedValue(field=f"{path}.type", value=call.type)
    if call.function is None:
        raise MissingField(field=f"{path}.function")
    return chat_pb2.ToolCall(
        id=call.id, name=call.function.name, arguments_json=call.function.arguments
    )
