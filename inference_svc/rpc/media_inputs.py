"""Reads the pictures, sounds and documents of conversations."""

from dataclasses import dataclass, replace
from typing import Final

from inference_svc.chat.conversation import Conversation, MediaPart, Part, TextPart
from inference_svc.engine.media import MediaKind
from inference_svc.media.decoder import MediaLimits, check_file_bytes
from inference_svc.media.document import DocumentReader
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.media.image_format import UNSUPPORTED_FORMAT, image_media_type
from inference_svc.media.processor import MediaInput, MediaProcessor
from inference_svc.validation import check_count
from svc_kit.errors import InvalidField, UnsupportedField

MAX_PARTS: Final = 100
"""Maximum number of pictures, sounds and documents of a conversation."""
MAX_FETCHED_BYTES: Final = 25_000_000
_DOCUMENT: Final = "document"


@dataclass(frozen=True, slots=True)
class MediaInputs:
    fetcher: MediaFetcher
    documents: DocumentReader

    async def read(
        self, conversation: Conversation, processor: MediaProcessor | None
    ) -> Conversation:
        """Fetch files that are given by their addresses, and replace documents by their text, with
        pictures of the pages of a PDF for a model that reads images.

        Raises `UnsupportedField` for a picture or a sound without a `processor`, and the errors of
        `MediaFetcher` and `DocumentReader`.
        """
        media = conversation.media
        check_count("messages", media, MAX_PARTS)
        encoded = [_input(field, part) for field, part in media if _is_encoded(part)]
        if processor is not None:
            processor.check(encoded)
        elif encoded:
            raise UnsupportedField(field=encoded[0].field)
        if all(_is_encoded(part) and not part.url for _, part in media):
            return conversation
        return await self._read_parts(conversation, processor)

    async def read_for_engine(self, conversation: Conversation) -> Conversation:
        """Like `read`, for an engine that gets pictures as files and no sounds; whether it reads
        them only the engine knows. Raises `TooLong` and `InvalidField` for files that are no
        pictures."""
        media = conversation.media
        check_count("messages", media, MAX_PARTS)
        for field, part in media:
            if _is_encoded(part) and part.kind != MediaKind.IMAGE.value:
                raise UnsupportedField(field=field)
        conversation, limit = await self._read_parts(conversation, None), MediaLimits().image_bytes
        for field, part in conversation.media:
            check_file_bytes(field, part.data, limit)
            if image_media_type(part.data) is None:
                raise InvalidField(field=field, problem=UNSUPPORTED_FORMAT)
        return conversation

    async def _read_parts(
        self, conversation: Conversation, processor: MediaProcessor | None
    ) -> Conversation:
        media = conversation.media
        with_pages = processor is not None and processor.ready.reads_images
        fields = (field for field, _ in media)
        messages = []
        for message in conversation.messages:
            parts: list[Part] = []
            for part in message.parts:
                if isinstance(part, MediaPart):
                    parts += await self._read_part(next(fields), part, with_pages=with_pages)
                else:
                    parts.append(part)
            messages.append(replace(message, parts=tuple(parts)))
        conversation = replace(conversation, messages=tuple(messages))
        check_count("messages", conversation.media, MAX_PARTS)
        return conversation

    async def _read_part(self, field: str, part: MediaPart, *, with_pages: bool) -> list[Part]:
        if part.url:
            data = await self.fetcher.fetch(field, part.url, MAX_FETCHED_BYTES)
            part = replace(part, data=data, url="")
        if _is_encoded(part):
            return [part]
        content = await self.documents.read(field, part.data, part.filename, with_pages=with_pages)
        pages = [MediaPart("image", page, path=field) for page in content.pages]
        return [TextPart(content.text), *pages]


def has_encoded(conversation: Conversation) -> bool:
    """Whether there are pictures or sounds."""
    return any(_is_encoded(part) for _, part in conversation.media)


def _is_encoded(part: MediaPart) -> bool:
    return part.kind != _DOCUMENT


def media_files(conversation: Conversation) -> list[MediaInput]:
    """The pictures and sounds of a conversation that was read."""
    return [_input(field, part) for field, part in conversation.media]


def _input(field: str, part: MediaPart) -> MediaInput:
    return MediaInput(field, MediaKind(part.kind), part.data, part.detail == "low")
