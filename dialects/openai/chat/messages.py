"""Chat messages, converted to protos."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

from corral.inference.v1 import chat_pb2
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from dialects.openai.chat.legacy_functions import FunctionResults, call_id
from dialects.openai.chat.policy import CACHE_CONTROL
from dialects.shared.fields import BY_KIND, EchoedModel, WireModel
from dialects.shared.json_body import json_text
from dialects.shared.media import (
    FileReference,
    StoredFile,
    check_media_size,
    decode_base64,
    decode_file,
    file_part,
    image_media,
)
from dialects.shared.parameters import Ignored, Policy, Refused
from svc_kit.errors import InvalidField, MissingField

StoredFiles = Mapping[str, StoredFile]
"""The stored files of a body, by id."""
NO_FILES: Final[StoredFiles] = MappingProxyType({})
_MEDIA_TYPE: Final[Policy] = {"format": Ignored("the bytes say which format they have")}
"""litellm names the media type of a file beside it."""
_ID: Final[Policy] = {"id": Ignored("it is a label of the caller's, and is not stored")}


class ImageUrl(WireModel):
    policy: ClassVar[Policy] = _MEDIA_TYPE

    url: str = Field(description="A data URL, or an address of a host that the operator allows.")
    detail: Literal["auto", "low", "high"] | None = None


class InputAudio(WireModel):
    data: str = Field(description="The file in base64.")
    format: Literal["wav", "mp3", "flac"]


class FileContent(WireModel):
    """A document or an image in a message, given by either `file_data` or `file_id`."""

    policy: ClassVar[Policy] = _MEDIA_TYPE

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
    file: FileContent | None = None


class EarlierPart(ContentPart):
    """A part of an earlier answer, or of the output of a tool."""

    model_config = ConfigDict(extra="ignore")


class FunctionCall(EchoedModel):
    """The function that an earlier message called."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="JSON text.")


class CustomCall(EchoedModel):
    """The custom tool that an earlier message called."""

    name: str = Field(min_length=1)
    input: str


class MessageToolCall(EchoedModel):
    """A tool call of an earlier message."""

    id: str = Field(min_length=1)
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


Content = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[ContentPart], Tag("~array")], BY_KIND
]
EarlierContent = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[EarlierPart], Tag("~array")], BY_KIND
]


_OF_ANSWERS: Final = (
    "annotations audio function_call reasoning reasoning_content refusal tool_calls"
)


def _known_role(role: object) -> object:
    """Refuse an unknown role with the roles of all messages, not only of inputs."""
    if isinstance(role, str) and role not in _ROLES:
        *names, last = map(repr, _ROLES)
        expected = {"expected": f"{', '.join(names)} or {last}"}
        raise PydanticCustomError("literal_error", "unknown role", expected)
    return role


class InputMessage(WireModel):
    """A message of the user, or instructions."""

    policy: ClassVar[Policy] = {
        **CACHE_CONTROL,
        **_ID,
        **dict.fromkeys(
            _OF_ANSWERS.split(), Refused("only messages of the assistant have it", ("", []))
        ),
        "tool_call_id": Refused("only messages of tools have it", ("",)),
    }

    role: Annotated[Literal["developer", "system", "user"], BeforeValidator(_known_role)]
    content: Content
    name: str | None = None


class ToolMessage(EchoedModel):
    policy: ClassVar[Policy] = _ID

    role: Literal["tool"]
    content: EarlierContent | None
    tool_call_id: str = Field(min_length=1)
    name: str | None = None


class FunctionMessage(EchoedModel):
    """The result of a function, for the `function_call` before it."""

    policy: ClassVar[Policy] = _ID

    role: Literal["function"]
    content: EarlierContent | None
    name: str = Field(min_length=1)


class AssistantMessage(EchoedModel):
    """An earlier answer."""

    policy: ClassVar[Policy] = {**_ID, "audio": Refused("generations have text only")}

    role: Literal["assistant"]
    content: EarlierContent | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: FunctionCall | None = Field(None, description="The older form of tool_calls.")
    reasoning_content: str | None = Field(
        None, description="The reasoning, for templates that use it."
    )
    reasoning: str | None = Field(None, description="Another name for reasoning_content.")


def _message_kind(value: object) -> str:
    """The union tag of a message: by its role, input if the role is not known."""
    role = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)
    return f"~{role}" if role in ("assistant", "function", "tool") else "~input"


Message = Annotated[
    Annotated[InputMessage, Tag("~input")]
    | Annotated[AssistantMessage, Tag("~assistant")]
    | Annotated[ToolMessage, Tag("~tool")]
    | Annotated[FunctionMessage, Tag("~function")],
    Discriminator(_message_kind),
]


def _content_parts(message: Message) -> Sequence[ContentPart]:
    """The parts of the content; none if it is a text."""
    return message.content if isinstance(message.content, list) else ()


def referenced_files(messages: Sequence[Message]) -> Iterator[FileReference]:
    """Yield the file ids of messages, for `chat_messages`."""
    for path, file in _files(messages):
        if file.file_id:
            yield FileReference(f"{path}.file.file_id", file.file_id)


def picture_names(messages: Sequence[Message]) -> dict[str, str]:
    """The names of files in errors, by those that they would have as pictures."""
    names: dict[str, str] = {}
    for path, file in _files(messages):
        source = "file_id" if file.file_id else "file_data"
        names[f"{path}.image_url"] = f"{path}.file"
        names[f"{path}.image_url.url"] = f"{path}.file.{source}"
    return names


def _files(messages: Sequence[Message]) -> Iterator[tuple[str, FileContent]]:
    """The files of messages, each with the path of its part."""
    for index, message in enumerate(messages):
        for number, part in enumerate(_content_parts(message)):
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
    _pair_functions(messages, converted)
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
    "function": chat_pb2.ROLE_TOOL,
}


def _message(path: str, message: Message, files: StoredFiles) -> chat_pb2.ChatMessage:
    proto = chat_pb2.ChatMessage(
        role=_ROLES[message.role], parts=_parts(path, message, files), name=message.name or ""
    )
    if isinstance(message, ToolMessage):
        proto.tool_call_id = message.tool_call_id
    if isinstance(message, AssistantMessage):
        _add_answer(path, message, proto)
    return proto


def _pair_functions(messages: Sequence[Message], converted: Sequence[chat_pb2.ChatMessage]) -> None:
    """Add the calls of functions, and their ids to the results. Raises InvalidField."""
    results = FunctionResults()
    for index, (message, proto) in enumerate(zip(messages, converted, strict=True)):
        match message:
            case FunctionMessage():
                proto.tool_call_id = results.result(index, message.name)
            case AssistantMessage(function_call=FunctionCall() as call):
                if message.tool_calls:
                    problem = "it cannot be combined with 'tool_calls'"
                    raise InvalidField(field=f"messages[{index}].function_call", problem=problem)
                results.call(index, call.name)
                proto.tool_calls.add(
                    id=call_id(index), name=call.name, arguments_json=call.arguments
                )
    results.check()


def _add_answer(path: str, message: AssistantMessage, proto: chat_pb2.ChatMessage) -> None:
    """Add what only answers have. Raises MissingField for one without anything: an answer that was
    cut off in its reasoning has no content, which some clients then omit."""
    proto.reasoning = message.reasoning_content or message.reasoning or ""
    is_empty = not (message.tool_calls or message.function_call) and message.refusal is None
    if is_empty and not proto.reasoning and "content" not in message.model_fields_set:
        raise MissingField(field=f"{path}.content")
    if message.refusal is not None:
        proto.parts.add(refusal=message.refusal)
    elif is_empty and not proto.parts:
        proto.parts.add(text="")
    for index, call in enumerate(message.tool_calls or ()):
        proto.tool_calls.append(_tool_call(f"{path}.tool_calls[{index}]", call))


def _parts(path: str, message: Message, files: StoredFiles) -> list[chat_pb2.ContentPart]:
    if isinstance(message.content, str):
        return [chat_pb2.ContentPart(text=message.content)]
    if not message.content:
        is_result = isinstance(message, ToolMessage | FunctionMessage)
        return [chat_pb2.ContentPart(text="")] if is_result else []
    return [
        _part(f"{path}.content[{index}]", part, files) for index, part in enumerate(message.content)
    ]


def _part(path: str, part: ContentPart, files: StoredFiles) -> chat_pb2.ContentPart:
    match part:
        case ContentPart(type="image_url", image_url=ImageUrl() as image):
            media = image_media(f"{path}.image_url.url", image.url, image.detail or "")
            return chat_pb2.ContentPart(image=media)
        case ContentPart(type="input_audio", input_audio=InputAudio() as audio):
            data = decode_base64(f"{path}.input_audio.data", audio.data)
            media = chat_pb2.Media(data=data, media_type=f"audio/{audio.format}")
            return chat_pb2.ContentPart(audio=media)
        case ContentPart(type="file", file=FileContent() as file):
            return _file(f"{path}.file", file, files)
        case ContentPart(type="refusal", refusal=str() as refusal):
            return chat_pb2.ContentPart(refusal=refusal)
        case ContentPart(type="text", text=str() as text):
            return chat_pb2.ContentPart(text=text)
        case _:
            raise MissingField(field=f"{path}.{part.type}")


def _file(path: str, file: FileContent, files: StoredFiles) -> chat_pb2.ContentPart:
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
    """Convert a call. The input of a custom tool becomes the argument `input` of a function."""
    function, custom = call.function, call.custom
    if call.type == "custom" and custom is not None:
        arguments = json_text({"input": custom.input})
        return chat_pb2.ToolCall(id=call.id, name=custom.name, arguments_json=arguments)
    if function is None:
        raise MissingField(field=f"{path}.{call.type}")
    return chat_pb2.ToolCall(id=call.id, name=function.name, arguments_json=function.arguments)
