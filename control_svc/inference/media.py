"""Pictures and documents of turns: reads and converts their files, and names them in errors."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final, Protocol

from corral.inference.v1 import chat_pb2 as chat

from control_svc.inference.turns import (
    DocumentPart,
    ImagePart,
    RefusalPart,
    TextPart,
    TurnMessage,
    TurnPart,
)
from dialects.shared.errors import with_field
from dialects.shared.media import (
    FileReference,
    StoredFile,
    check_media_size,
    document_part,
    file_part,
    image_media,
)
from svc_kit.errors import DomainError, FileNotFound, InvalidField

_PART: Final = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\]")
Files = Mapping[str, StoredFile]


class FileSource(Protocol):
    def open(
        self, project: str, references: Sequence[FileReference]
    ) -> AbstractAsyncContextManager[Files]:
        """Yield the files by id. Raises FileNotFound or TooLong, with the field of a reference."""


@asynccontextmanager
async def read_files(
    source: FileSource, project: str, messages: Sequence[TurnMessage]
) -> AsyncIterator[Files]:
    """Yield the files of messages, by id. Raises InvalidField or TooLong, with the field of a part.

    A file can be missing here that was there when the item was created.
    """
    references = [
        FileReference(part.field, part.file_id)
        for message in messages
        for part in message.parts
        if isinstance(part, ImagePart | DocumentPart) and part.file_id
    ]
    try:
        async with source.open(project, references) as files:
            yield files
    except FileNotFound as error:
        file_id, field = error.metadata["file"], error.field or ""
        problem = f"the file '{file_id}' does not exist; it was deleted or has expired"
        raise InvalidField(field=field, problem=problem) from None


def check_media(messages: Sequence[TurnMessage], converted: Sequence[chat.ChatMessage]) -> None:
    """Check the size of all files of converted messages. Raises TooLong."""
    check_media_size(
        (part.field, sent)
        for message, chat_message in zip(messages, converted, strict=True)
        for part, sent in zip(message.parts, chat_message.parts, strict=True)
        if isinstance(part, ImagePart | DocumentPart)
    )


def has_media(message: TurnMessage) -> bool:
    """Whether a message has pictures or documents."""
    return any(isinstance(part, ImagePart | DocumentPart) for part in message.parts)


def content_part(part: TurnPart, files: Files) -> chat.ContentPart:
    """Convert a part. Raises InvalidField or UnsupportedValue for a malformed URL."""
    match part:
        case TextPart(text=text):
            return chat.ContentPart(text=text)
        case RefusalPart(text=refusal):
            return chat.ContentPart(refusal=refusal)
        case ImagePart(file_id=""):
            return chat.ContentPart(image=image_media(part.field, part.url, part.detail))
        case ImagePart():
            data = files[part.file_id].data
            return chat.ContentPart(image=chat.Media(data=data, detail=part.detail))
        case DocumentPart(file_id=""):
            return document_part(part.field, part.data, part.filename)
        case DocumentPart():
            stored = files[part.file_id]
            return file_part(stored.data, "", part.filename or stored.filename)


@contextmanager
def part_names(messages: Sequence[TurnMessage]) -> Iterator[None]:
    """Name pictures and documents in errors of the block by their fields in items.

    The inference service knows only their places in the messages of the turn.
    """
    try:
        yield
    except DomainError as error:
        match = _PART.match(error.field or "")
        if match is None:
            raise
        message, number = int(match[1]), int(match[2])
        parts = messages[message].parts if message < len(messages) else ()
        part = parts[number] if number < len(parts) else None
        if not isinstance(part, ImagePart | DocumentPart):
            raise
        raise with_field(error, part.field) from error.__cause__
