"""Messages of threads: items of kind message with the additional fields of the Assistants API."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.base.validation import (
    check_num_bytes,
)
from control_svc.items.input_items import check_image
from control_svc.items.model import (
    MAX_TEXT_BYTES,
    Image,
    Item,
    ItemStatus,
    Message,
    Part,
    Role,
    Text,
)
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue

MAX_URL_BYTES: Final = 8 * 1_048_576
"""Limit of the image URLs of a message, data URLs included; larger images are sent as files."""


class IncompleteReason(StrEnum):
    """Why a message is incomplete, in OpenAI's words."""

    CONTENT_FILTER = "content_filter"
    MAX_TOKENS = "max_tokens"
    RUN_CANCELLED = "run_cancelled"
    RUN_EXPIRED = "run_expired"
    RUN_FAILED = "run_failed"


class AttachmentTool(StrEnum):
    """A tool that uses an attached file."""

    FILE_SEARCH = "file_search"


class Attachment(NamedTuple):
    """A file attached to a message."""

    file_id: str
    tools: tuple[AttachmentTool, ...] = ()


class FileUse(NamedTuple):
    """A file that a message refers to, and the field that does."""

    field: str
    file_id: str


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    role: Role
    content: tuple[Part, ...]
    attachments: tuple[Attachment, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self, path: str = "") -> None:
        """Validate the message; `path` is a prefix for field names in errors.

        Raises MissingField, TooLong, InvalidField or UnsupportedValue.
        """
        if self.role not in (Role.USER, Role.ASSISTANT):
            raise UnsupportedValue(field=f"{path}role", value=self.role.value)
        _check_content(f"{path}content", self.content)

    def files(self, path: str = "") -> Iterator[FileUse]:
        """Yield the files that the message refers to; `path` is a prefix for field names."""
        for index, part in enumerate(self.content):
            if isinstance(part, Image) and part.file_id:
                yield FileUse(f"{path}content[{index}].image_file.file_id", part.file_id)
        for index, attachment in enumerate(self.attachments):
            yield FileUse(f"{path}attachments[{index}].file_id", attachment.file_id)

    def make(self, message_id: str, thread_id: str, now: datetime) -> "ThreadMessage":
        content = Message(role=self.role, content=self.content)
        return ThreadMessage(
            item=Item(id=message_id, status=ItemStatus.COMPLETED, created_at=now, content=content),
            thread_id=thread_id,
            attachments=self.attachments,
            metadata=self.metadata,
        )


@dataclass(frozen=True, kw_only=True)
class AddedMessage:
    thread_id: str
    message: NewMessage
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, TooLong, InvalidField or UnsupportedValue."""
        self.message.check()


@dataclass(frozen=True, kw_only=True)
class ThreadMessage:
    item: Item
    """Its content is a `Message`."""
    thread_id: str
    assistant_id: str = ""
    """Empty if a caller created the message."""
    run_id: str = ""
    attachments: tuple[Attachment, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    completed_at: datetime | None = None
    incomplete_at: datetime | None = None
    incomplete_reason: IncompleteReason | None = None

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def message(self) -> Message:
        """Role and content of the item."""
        if not isinstance(self.item.content, Message):
            raise TypeError(f"{self.item.id} is not a message")
        return self.item.content

    def complete(self, content: tuple[Part, ...], now: datetime) -> "ThreadMessage":
        """The completed message, with its final content."""
        item = self._end_item(content, ItemStatus.COMPLETED)
        return replace(self, item=item, completed_at=now)

    def mark_incomplete(
        self, content: tuple[Part, ...], reason: IncompleteReason, now: datetime
    ) -> "ThreadMessage":
        """The incomplete message, with the content written so far."""
        item = self._end_item(content, ItemStatus.INCOMPLETE)
        return replace(self, item=item, incomplete_at=now, incomplete_reason=reason)

    def _end_item(self, content: tuple[Part, ...], status: ItemStatus) -> Item:
        return self.item.with_content(replace(self.message, content=content), status)


def start_message(
    message_id: str, thread_id: str, run_id: str, assistant_id: str, now: datetime
) -> ThreadMessage:
    """An empty message in progress, written by an assistant."""
    content = Message(role=Role.ASSISTANT, content=())
    return ThreadMessage(
        item=Item(id=message_id, status=ItemStatus.IN_PROGRESS, created_at=now, content=content),
        thread_id=thread_id,
        run_id=run_id,
        assistant_id=assistant_id,
    )


def _check_content(path: str, content: tuple[Part, ...]) -> None:
    for index, part in enumerate(content):
        _check_part(f"{path}[{index}]", part)
    texts = sum(len(part.text.encode()) for part in content if isinstance(part, Text))
    urls = sum(len(part.url) for part in content if isinstance(part, Image))
    check_num_bytes(path, texts, MAX_TEXT_BYTES)
    check_num_bytes(path, urls, MAX_URL_BYTES)


def _check_part(path: str, part: Part) -> None:
    if isinstance(part, Text):
        if not part.text:
            raise MissingField(field=f"{path}.text")
    elif not isinstance(part, Image):
        raise UnsupportedValue(field=f"{path}.type", value=part.kind)
    elif bool(part.url) == bool(part.file_id):
        raise InvalidField(field=path, problem="it must have either a URL or a file id")
    else:
        check_image(part, path)
