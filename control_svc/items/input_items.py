"""Items in requests: new items, references to stored ones, and which items callers may see."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Final

from control_svc.base.validation import check_text
from control_svc.items.model import (
    ITEM_PREFIXES,
    TEXT_BYTES_A_MESSAGE,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FileInput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemStatus,
    McpApprovalResponse,
    McpListTools,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
)
from svc_kit.errors import InvalidField, MissingField, TooLong

MAX_TOOLS: Final = 128
"""Of a server; the model is shown all of them."""
MAX_CALL_ID_CHARACTERS: Final = 64
MAX_TOOL_NAME_CHARACTERS: Final = 128


@dataclass(frozen=True, kw_only=True)
class InputItem:
    """An item of a request: content, or the id of a stored item."""

    STORED_AS = "GivenItem"

    content: Content | None = None
    reference: str = ""
    id: str = ""
    """What its caller calls a new item: one that an answer had, which he kept and gives back."""
    status: ItemStatus = ItemStatus.COMPLETED

    @property
    def prefix(self) -> str:
        """How the id of a new item begins; empty for the name of a stored one."""
        return "" if self.content is None else ITEM_PREFIXES[type(self.content)]

    def check(self, field: str) -> None:
        """Raises MissingField, InvalidField or TooLong."""
        content = self.content
        if content is None:
            if not self.reference:
                raise MissingField(field=field)
            return
        _check_names(content, field)
        _check_tools(content, field)
        _check_text(content, field)
        for index, part in enumerate(content_parts(content)):
            _check_part(part, f"{field}.content[{index}]")
        if isinstance(content, Message) and content.role is not Role.ASSISTANT:
            _check_no_refusal(content, field)
        _check_numbers(content, field)


def content_parts(content: Content) -> tuple[Part, ...]:
    """The parts of a message or of a tool's output; other items have none."""
    if isinstance(content, Message):
        return content.content
    if isinstance(content, FunctionCallOutput | CustomToolCallOutput):
        return content.output
    return ()


def referenced_files(items: Sequence[InputItem]) -> Iterator[tuple[int, str]]:
    """The files that items name, each with the place of its item."""
    for index, item in enumerate(items):
        for part in () if item.content is None else content_parts(item.content):
            if isinstance(part, Image | FileInput) and part.file_id:
                yield index, part.file_id


def _check_names(content: Content, field: str) -> None:
    if isinstance(content, FunctionCall | CustomToolCall):
        check_text(f"{field}.name", content.name, MAX_TOOL_NAME_CHARACTERS)
    if isinstance(
        content, FunctionCall | CustomToolCall | FunctionCallOutput | CustomToolCallOutput
    ):
        check_text(f"{field}.call_id", content.call_id, MAX_CALL_ID_CHARACTERS)
    if isinstance(content, McpApprovalResponse):
        check_text(
            f"{field}.approval_request_id", content.approval_request_id, MAX_CALL_ID_CHARACTERS
        )


def _check_tools(content: Content, field: str) -> None:
    """That a list of tools is one that a server could have given: each costs a turn its share."""
    if isinstance(content, McpListTools) and len(content.tools) > MAX_TOOLS:
        raise TooLong(field=f"{field}.tools", length=len(content.tools), limit=MAX_TOOLS)


def _check_text(content: Content, field: str) -> None:
    texts = [part.text for part in content_parts(content) if isinstance(part, Text)]
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > TEXT_BYTES_A_MESSAGE:
        raise TooLong(
            field=f"{field}.content", length=size, limit=TEXT_BYTES_A_MESSAGE, unit="bytes"
        )


def _check_part(part: Part, field: str) -> None:
    """Validate that an image or a file has exactly one source."""
    if isinstance(part, Image):
        places = [part.url, part.file_id]
    elif isinstance(part, FileInput):
        places = [part.data_url, part.file_id]
    else:
        return
    if sum(map(bool, places)) != 1:
        raise InvalidField(field=field, problem="exactly one of its places must be given")


def _check_no_refusal(message: Message, field: str) -> None:
    if any(isinstance(part, Refusal) for part in message.content):
        raise InvalidField(field=field, problem="only an assistant refuses")


def _check_numbers(content: Content, field: str) -> None:
    """That a document can hold them: JSON knows no other."""
    numbers = [
        logprob.logprob
        for part in content_parts(content)
        if isinstance(part, Text)
        for token in part.logprobs
        for logprob in (token, *token.top)
    ]
    if isinstance(content, FileSearchCall):
        numbers += [result.score for result in content.results]
    if not all(map(isfinite, numbers)):
        raise InvalidField(field=field, problem="it has a number that is not finite")


class Include(StrEnum):
    """What can be asked for, in OpenAI's words."""

    LOGPROBS = "message.output_text.logprobs"
    FILE_SEARCH_RESULTS = "file_search_call.results"
    SEALED_REASONING = "reasoning.encrypted_content"
    INPUT_IMAGE_URLS = "message.input_image.image_url"


def apply_include(item: Item, include: Collection[Include]) -> Item:
    """The item without what was not asked for."""
    return replace(item, content=_shown(item.content, include))


def _shown(content: Content, include: Collection[Include]) -> Content:
    if isinstance(content, Message):
        return replace(content, content=_parts(content.content, include))
    if isinstance(content, FunctionCallOutput | CustomToolCallOutput):
        return replace(content, output=_parts(content.output, include))
    if isinstance(content, FileSearchCall) and Include.FILE_SEARCH_RESULTS not in include:
        return replace(content, results=())
    if isinstance(content, Reasoning) and Include.SEALED_REASONING not in include:
        return replace(content, sealed="")
    return content


def _parts(parts: tuple[Part, ...], include: Collection[Include]) -> tuple[Part, ...]:
    return tuple(_part(part, include) for part in parts)


def _part(part: Part, include: Collection[Include]) -> Part:
    if isinstance(part, Text) and Include.LOGPROBS not in include:
        return replace(part, logprobs=())
    if isinstance(part, Image) and Include.INPUT_IMAGE_URLS not in include:
        return replace(part, url="")
    return part
