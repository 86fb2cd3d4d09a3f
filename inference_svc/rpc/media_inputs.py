"""Encodes the pictures and sounds of conversations, or counts their tokens."""

from collections.abc import Sequence

from inference_svc.chat.conversation import Conversation
from inference_svc.engine.media import MediaKind
from inference_svc.media.model import EncodedMedia
from inference_svc.media.processor import MediaInput, MediaLease, MediaProcessor
from inference_svc.model_pool.catalog import LoadedModel
from inference_svc.validation import check_count
from svc_kit.errors import UnsupportedField

MAX_PARTS = 100
"""Maximum number of pictures and sounds of a conversation."""
NO_MEDIA = MediaLease((), lambda: None)


async def encode_media(
    conversation: Conversation, loaded: LoadedModel, *, owner: str, project: str
) -> MediaLease:
    """Encode the pictures and sounds of a conversation.

    Raises `UnsupportedField` if the model takes none, and like `MediaProcessor.encode`.
    """
    if not conversation.media:
        return NO_MEDIA
    processor, inputs = _prepare(conversation, loaded)
    return await processor.encode(inputs, owner=owner, project=project)


async def count_media(
    conversation: Conversation, loaded: LoadedModel, *, project: str
) -> Sequence[EncodedMedia]:
    """Return them without vectors. Raises like `encode_media`."""
    processor, inputs = _prepare(conversation, loaded)
    return await processor.count(inputs, project=project)


def _prepare(
    conversation: Conversation, loaded: LoadedModel
) -> tuple[MediaProcessor, list[MediaInput]]:
    media = conversation.media
    check_count("messages", media, MAX_PARTS)
    if loaded.media is None:
        raise UnsupportedField(field=media[0][0])
    return loaded.media, [
        MediaInput(field, MediaKind(part.kind), part.data, part.detail == "low")
        for field, part in media
    ]
