"""Items in requests: new items, references to stored ones, and filtering by `include`."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Final

from control_svc.base.validation import check_num_bytes
from control_svc.items import model as item_model
from dialects.shared.media import FileReference, document_part, image_media
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

IMAGE_DETAILS: Final = ("", "auto", "low", "high")


@dataclass(frozen=True, kw_only=True)
class InputItem:
    """An item of a request: content, or the id of a stored item."""

    STORED_AS = "GivenItem"

    content: item_model.Content | None = None
    reference: str = ""
    id: str = ""
    """The caller's id of a new item, such as one copied from the output of a response."""
    status: item_model.ItemStatus = item_model.ItemStatus.COMPLETED

    @property
    def prefix(self) -> str:
        """Prefix of the id of a new item; empty for a reference."""
        return "" if self.content is None else item_model.ITEM_PREFIXES[type(self.content)]

    def check(self, field: str) -> None:
        """Raises MissingField, InvalidField or TooLong for what the limits of the proto do not
        say."""
        content = self.content
        if content is None:
            if not self.reference:
                raise MissingField(field=field)
            return
        _check_text(content, field)
        name = "content" if isinstance(content, item_model.Message) else "output"
        for index, part in enumerate(content_parts(content)):
            _check_part(part, f"{field}.{name}[{index}]")
        if (
            isinstance(content, item_model.Message)
            and content.role is not item_model.Role.ASSISTANT
        ):
            _check_no_refusal(content, field)
        _check_numbers(content, field)


def check_items(items: Sequence[InputItem], field: str) -> None:
    """Check the items of a field. Raises the errors of `InputItem.check`."""
    for index, item in enumerate(items):
        item.check(f"{field}[{index}]")


def content_parts(content: item_model.Content) -> tuple[item_model.Part, ...]:
    """The parts of a message or of a tool output; empty for other items."""
    if isinstance(content, item_model.Message):
        return content.content
    if isinstance(content, item_model.FunctionCallOutput | item_model.CustomToolCallOutput):
        return content.output
    return ()


def referenced_files(items: Sequence[InputItem], field: str) -> Iterator[FileReference]:
    """Yield the files that items refer to; `field` is the field of the items."""
    for index, item in enumerate(items):
        name = "content" if isinstance(item.content, item_model.Message) else "output"
        parts = () if item.content is None else content_parts(item.content)
        for number, part in enumerate(parts):
            if isinstance(part, item_model.Image | item_model.FileInput) and part.file_id:
                yield FileReference(f"{field}[{index}].{name}[{number}].file_id", part.file_id)


def _check_text(content: item_model.Content, field: str) -> None:
    texts = [part.text for part in content_parts(content) if isinstance(part, item_model.Text)]
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    check_num_bytes(f"{field}.content", size, item_model.MAX_TEXT_BYTES)


def _check_part(part: item_model.Part, field: str) -> None:
    """Validate that an image or a file has exactly one source, and that source."""
    if isinstance(part, item_model.Image):
        url, name = part.url, "a URL"
    elif isinstance(part, item_model.FileInput):
        url, name = part.data_url, "a data URL"
    else:
        return
    if bool(url) == bool(part.file_id):
        raise InvalidField(field=field, problem=f"it must have either {name} or a file id")
    if isinstance(part, item_model.Image):
        check_image(part, field)
    elif part.data_url:
        document_part(field, part.data_url, "")


def check_image(image: item_model.Image, field: str) -> None:
    """Validate the URL and the detail of an image. Raises InvalidField or UnsupportedValue."""
    if image.url:
        image_media(field, image.url, "")
    if image.detail not in IMAGE_DETAILS:
        raise UnsupportedValue(field=f"{field}.detail", value=image.detail)


def _check_no_refusal(message: item_model.Message, field: str) -> None:
    if any(isinstance(part, item_model.Refusal) for part in message.content):
        problem = "a refusal is only allowed in a message of the assistant"
        raise InvalidField(field=field, problem=problem)


def _check_numbers(content: item_model.Content, field: str) -> None:
    """Reject NaN and infinity, which JSON cannot store."""
    numbers = [
        logprob.logprob
        for part in content_parts(content)
        if isinstance(part, item_model.Text)
        for token in part.logprobs
        for logprob in (token, *token.top)
    ]
    if isinstance(content, item_model.FileSearchCall):
        numbers += [result.score for result in content.results]
    if not all(map(isfinite, numbers)):
        raise InvalidField(field=field, problem="it has a number that is not finite")


class Include(StrEnum):
    """Values of `include`, in OpenAI's words."""

    LOGPROBS = "message.output_text.logprobs"
    FILE_SEARCH_RESULTS = "file_search_call.results"
    SEALED_REASONING = "reasoning.encrypted_content"
    INPUT_IMAGE_URLS = "message.input_image.image_url"


def apply_include(item: item_model.Item, include: Collection[Include]) -> item_model.Item:
    """Remove the fields that are only returned on request and are not in `include`."""
    return replace(item, content=_filter_content(item.content, include))


def _filter_content(
    content: item_model.Content, include: Collection[Include]
) -> item_model.Content:
    match content:
        case item_model.Message():
            return replace(content, content=_filter_parts(content.content, include))
        case item_model.FunctionCallOutput() | item_model.CustomToolCallOutput():
            return replace(content, output=_filter_parts(content.output, include))
        case item_model.FileSearchCall() if Include.FILE_SEARCH_RESULTS not in include:
            return replace(content, results=())
        case item_model.Reasoning() if Include.SEALED_REASONING not in include:
            return replace(content, sealed="")
        case _:
            return content


def _filter_parts(
    parts: tuple[item_model.Part, ...], include: Collection[Include]
) -> tuple[item_model.Part, ...]:
    return tuple(_filter_part(part, include) for part in parts)


def _filter_part(part: item_model.Part, include: Collection[Include]) -> item_model.Part:
    if isinstance(part, item_model.Text) and Include.LOGPROBS not in include:
        return replace(part, logprobs=())
    if isinstance(part, item_model.Image) and Include.INPUT_IMAGE_URLS not in include:
        return replace(part, url="")
    return part
