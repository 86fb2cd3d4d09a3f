"""Turns of content blocks, converted to messages of the typed conversation.

Neighbours of one role are one message. Results of tools, which are blocks of the user's turn,
become messages of their own before it. A system turn after the first message is read as the user's,
since templates want the system message first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from corral.inference.v1 import chat_pb2

from dialects.anthropic.blocks import (
    Block,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    InlineSource,
    InnerBlock,
    MessageParam,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from dialects.anthropic.signatures import read_signature
from dialects.shared.json_body import json_text
from dialects.shared.media import (
    check_media_size,
    decode_base64,
    document_part,
    file_part,
    image_media,
)
from svc_kit.errors import InvalidField, UnsupportedValue

TOOL_USE_PREFIX: Final = "toolu_"
"""What the ids of blocks have before those of calls."""
ERROR_MARK: Final = "Error:"
"""The text before the content of a result with `is_error`."""
_Placed = tuple[str, chat_pb2.ContentPart]
"""A part and its path in the body."""


@dataclass
class ConvertedMessages:
    """Messages, and for each one its path in the body and those of its parts."""

    messages: list[chat_pb2.ChatMessage] = field(default_factory=list)
    paths: list[list[str]] = field(default_factory=list)

    def add(self, path: str, message: chat_pb2.ChatMessage, parts: Sequence[_Placed]) -> None:
        message.parts.extend(part for _, part in parts)
        self.messages.append(message)
        self.paths.append([path, *(place for place, _ in parts)])


def convert_messages(
    system: str | Sequence[TextBlock] | None, messages: Sequence[MessageParam]
) -> ConvertedMessages:
    """Convert a system prompt and turns. Raises DomainErrors with paths of the body."""
    converted = ConvertedMessages()
    num_leading = next(
        (index for index, message in enumerate(messages) if message.role != "system"),
        len(messages),
    )
    texts = [*_system_parts(system), *_leading_parts(messages[:num_leading])]
    if texts:
        message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_SYSTEM)
        converted.add("system" if system else "messages[0]", message, texts)
    turns = enumerate(messages[num_leading:], num_leading)
    for is_assistant, group in groupby(turns, key=lambda turn: turn[1].role == "assistant"):
        numbered = list(group)
        path = f"messages[{numbered[0][0]}]"
        blocks = [each for index, turn in numbered for each in _blocks(index, turn)]
        if is_assistant:
            _add_assistant(converted, path, blocks)
        else:
            _add_user(converted, path, blocks)
    _check_results(each for turn in enumerate(messages) for each in _blocks(*turn))
    check_media_size(
        (place, part)
        for message, (_, *places) in zip(converted.messages, converted.paths, strict=True)
        for place, part in zip(places, message.parts, strict=True)
    )
    return converted


def called_tools(messages: Sequence[MessageParam]) -> Iterator[tuple[str, str]]:
    """The names of tools that were called, and of those that results of tools refer to, each with
    its path in the body."""
    for index, message in enumerate(messages):
        for path, block in _blocks(index, message):
            if isinstance(block, ToolUseBlock):
                yield f"{path}.name", block.name
            elif isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
                for number, inner in enumerate(block.content or ()):
                    if isinstance(inner, ToolReferenceBlock):
                        yield f"{path}.content[{number}].tool_name", inner.tool_name


def _check_results(blocks: Iterable[tuple[str, Block]]) -> None:
    """Raise InvalidField for calls without results, results without calls, and repeated ids. A
    result may come anywhere after its call."""
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    for place, block in blocks:
        match block:
            case ToolUseBlock(id=call_id) if call_id in waiting:
                raise InvalidField(
                    field=f"{place}.id", problem="`tool_use` ids must be unique until their result"
                )
            case ToolUseBlock(id=call_id):
                waiting[call_id] = place
            case ToolResultBlock(tool_use_id=call_id) if waiting.pop(call_id, None) is None:
                problem = (
                    f"each tool_use must have a single result. Found multiple `tool_result` blocks "
                    f"with id: {call_id}"
                    if call_id in answered
                    else f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block before it."
                )
                raise InvalidField(field=f"{place}.tool_use_id", problem=problem)
            case ToolResultBlock(tool_use_id=call_id):
                answered.add(call_id)
    if waiting:
        raise InvalidField(
            field=next(iter(waiting.values())),
            problem=f"`tool_use` ids were found without `tool_result` blocks: {', '.join(waiting)}."
            " Each `tool_use` block must have a corresponding `tool_result` block after it.",
        )


def _system_parts(system: str | Sequence[TextBlock] | None) -> Iterator[_Placed]:
    if isinstance(system, str):
        if system:
            yield "system", chat_pb2.ContentPart(text=system)
        return
    for index, block in enumerate(system or ()):
        yield f"system[{index}]", chat_pb2.ContentPart(text=block.text)


def _leading_parts(messages: Sequence[MessageParam]) -> Iterator[_Placed]:
    """The parts of system turns before all others."""
    for index, message in enumerate(messages):
        for path, block in _blocks(index, message):
            yield from _parts(path, block)


def _blocks(index: int, message: MessageParam) -> Iterator[tuple[str, Block]]:
    path = f"messages[{index}].content"
    if isinstance(message.content, str):
        yield path, TextBlock(type="text", text=message.content)
        return
    for number, block in enumerate(message.content):
        yield f"{path}[{number}]", block


def _add_assistant(
    converted: ConvertedMessages, path: str, blocks: Sequence[tuple[str, Block]]
) -> None:
    """Add an assistant's turn. Blocks of kinds that only Anthropic's servers write are dropped."""
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT)
    parts: list[_Placed] = []
    thoughts = []
    for place, block in blocks:
        match block:
            case TextBlock():
                parts.append((place, chat_pb2.ContentPart(text=block.text)))
            case ToolUseBlock():
                message.tool_calls.add(
                    id=block.id, name=block.name, arguments_json=json_text(block.input)
                )
            case ThinkingBlock():
                thoughts.append(block.thinking or read_signature(block.signature))
            case RedactedThinkingBlock():
                thoughts.append(read_signature(block.data))
            case ToolResultBlock():
                raise InvalidField(field=place, problem="it is only allowed in user messages")
    message.reasoning = "".join(thoughts)
    if not (parts or message.tool_calls or message.reasoning):
        parts.append((path, chat_pb2.ContentPart(text="")))
    converted.add(path, message, parts)


def _add_user(converted: ConvertedMessages, path: str, blocks: Sequence[tuple[str, Block]]) -> None:
    """Add the results of tools, then the rest of a user's turn."""
    results = [(place, block) for place, block in blocks if isinstance(block, ToolResultBlock)]
    for place, result in results:
        message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_TOOL, tool_call_id=result.tool_use_id)
        converted.add(place, message, _result_parts(place, result))
    parts = [
        part
        for place, block in blocks
        if not isinstance(block, ToolResultBlock)
        for part in _parts(place, block)
    ]
    if parts or not results:
        converted.add(path, chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER), parts)


def _result_parts(path: str, result: ToolResultBlock) -> list[_Placed]:
    parts: list[_Placed] = []
    if result.is_error:
        parts.append((path, chat_pb2.ContentPart(text=ERROR_MARK)))
    if isinstance(result.content, str):
        parts.append((f"{path}.content", chat_pb2.ContentPart(text=result.content)))
    else:
        for index, block in enumerate(result.content or ()):
            parts.extend(_parts(f"{path}.content[{index}]", block))
    return parts or [(path, chat_pb2.ContentPart(text=""))]


def _parts(path: str, block: Block | InnerBlock) -> Iterator[_Placed]:
    """The parts of a block of a turn that is not the assistant's."""
    match block:
        case TextBlock():
            yield path, chat_pb2.ContentPart(text=block.text)
        case ImageBlock():
            yield path, _image(path, block)
        case DocumentBlock():
            yield from _document(path, block)
        case SearchResultBlock():
            lines = (block.title, block.source, *(each.text for each in block.content))
            yield path, chat_pb2.ContentPart(text="\n".join(lines))
        case ToolReferenceBlock():
            yield path, chat_pb2.ContentPart(text=block.tool_name)
        case ToolUseBlock() | ThinkingBlock() | RedactedThinkingBlock():
            raise InvalidField(field=path, problem="it is only allowed in assistant messages")
        case _:
            raise UnsupportedValue(field=f"{path}.type", value=block.type)


def _content(path: str, content: str | Sequence[TextBlock | ImageBlock]) -> Iterator[_Placed]:
    if isinstance(content, str):
        yield path, chat_pb2.ContentPart(text=content)
        return
    for index, inner in enumerate(content):
        yield from _parts(f"{path}[{index}]", inner)


def _image(path: str, block: ImageBlock) -> chat_pb2.ContentPart:
    match block.source:
        case InlineSource() as source:
            data = decode_base64(f"{path}.source.data", source.data)
            return chat_pb2.ContentPart(
                image=chat_pb2.Media(data=data, media_type=source.media_type)
            )
        case UrlSource() as source:
            return chat_pb2.ContentPart(image=image_media(f"{path}.source.url", source.url, ""))
        case source:
            raise UnsupportedValue(field=f"{path}.source.type", value=source.type)


def _document(path: str, block: DocumentBlock) -> Iterator[_Placed]:
    title = block.title or ""
    if block.context:
        yield path, chat_pb2.ContentPart(text=block.context)
    match block.source:
        case InlineSource() as source:
            data = decode_base64(f"{path}.source.data", source.data)
            yield path, file_part(data, source.media_type, title)
        case UrlSource() as source:
            yield path, document_part(f"{path}.source.url", source.url, title)
        case TextSource() as source:
            data = source.data.encode("utf-8", "replace")
            yield path, file_part(data, "text/plain", title)
        case ContentSource() as source:
            yield from _content(f"{path}.source.content", source.content)
        case source:
            raise UnsupportedValue(field=f"{path}.source.type", value=source.type)
