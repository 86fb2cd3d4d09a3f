"""What of an item is shown only where a caller asks for it: it is large, or of use to few."""

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

from control_svc.domain.items import (
    Content,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Text,
)


class Include(StrEnum):
    """What can be asked for, in OpenAI's words."""

    LOGPROBS = "message.output_text.logprobs"
    FILE_SEARCH_RESULTS = "file_search_call.results"
    SEALED_REASONING = "reasoning.encrypted_content"
    INPUT_IMAGE_URLS = "message.input_image.image_url"


def shown(item: Item, include: Collection[Include]) -> Item:
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
