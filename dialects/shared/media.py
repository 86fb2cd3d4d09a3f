"""Pictures, sounds and documents of request bodies: data URLs, base64, and bytes of stored files.

Nothing is decoded here. The inference service does that in child processes, and decides which
addresses may be fetched.
"""

import binascii
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from corral.inference.v1 import chat_pb2

from svc_kit.errors import InvalidField, TooLong, UnsupportedValue

MAX_FILE_BYTES: Final = 25_000_000
"""Limit of one file. Pictures have a lower one, which the inference service checks."""
MAX_MEDIA_BYTES: Final = 50_000_000
"""Limit of all files of a prompt, as in OpenAI's API. They are sent in one gRPC message."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII)
_MAX_DATA_HEADER: Final = 256
_PIECE_CHARACTERS: Final = 256 * 1024
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}):", re.ASCII)
_PICTURES: Final = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", re.DOTALL)


class StoredFile(NamedTuple):
    filename: str
    data: bytes


class FileReference(NamedTuple):
    field: str
    file_id: str


def image_media(field: str, url: str, detail: str) -> chat_pb2.Media:
    """A picture by a data URL or an address. Raises InvalidField or UnsupportedValue."""
    if scheme_of(field, url) == "data":
        data, media_type = decode_data_url(field, url)
        return chat_pb2.Media(data=data, media_type=media_type, detail=detail)
    return chat_pb2.Media(url=url, detail=detail)


def scheme_of(field: str, url: str) -> str:
    """The scheme of a URL: data, http or https. Raises InvalidField or UnsupportedValue."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise InvalidField(field=field, problem="it must be a data URL or an address with https")
    if scheme[1].lower() not in ("data", "http", "https"):
        raise UnsupportedValue(field=field, value=scheme[1])
    return scheme[1].lower()


def decode_data_url(field: str, url: str) -> tuple[bytes, str]:
    """The bytes and the media type of a data URL in base64. Raises InvalidField."""
    header = _DATA_URL.match(url[:_MAX_DATA_HEADER])
    if header is None:
        raise InvalidField(field=field, problem="it must be a data URL in base64")
    return decode_base64(field, url, header.end()), header[1] or "text/plain"


def decode_base64(field: str, text: str, start: int = 0) -> bytes:
    """Decode base64 from `start` on, which may have line breaks and lack its padding. Raises
    InvalidField if it is malformed or empty.

    It is decoded in pieces, between which other threads can run.
    """
    decoded: list[bytes] = []
    rest = b""
    try:
        for first in range(start, len(text), _PIECE_CHARACTERS):
            piece = text[first : first + _PIECE_CHARACTERS].encode("ascii")
            piece = rest + b"".join(piece.split())
            size = len(piece) // 4 * 4
            rest = piece[size:]
            _decode_piece(decoded, piece[:size])
        _decode_piece(decoded, rest + b"=" * (-len(rest) % 4))
    except ValueError:  # such as binascii.Error
        raise InvalidField(field=field, problem="it is not valid base64") from None
    if not decoded:
        raise InvalidField(field=field, problem="it is empty")
    return b"".join(decoded)


def _decode_piece(decoded: list[bytes], piece: bytes) -> None:
    """Append the bytes of a piece of four characters or a multiple of it, if it has any. Raises
    ValueError for a malformed one, and after one with padding, which is the last."""
    if not piece:
        return
    if decoded and len(decoded[-1]) % 3:
        raise ValueError("it goes on after its padding")
    if piece.endswith(b"==="):  # which Python's decoder lets pass
        raise ValueError("it has more padding than it lacks characters")
    decoded.append(binascii.a2b_base64(piece, strict_mode=True))


def decode_file(field: str, text: str) -> tuple[bytes, str]:
    """The bytes and the media type of a file in a data URL, or in base64 alone, which has no type.

    Raises InvalidField.
    """
    if text.startswith("data:"):
        return decode_data_url(field, text)
    return decode_base64(field, text), ""


def document_part(field: str, source: str, filename: str) -> chat_pb2.ContentPart:
    """The part of a document by a data URL, base64 alone, or an address. Raises InvalidField."""
    if is_address(source):
        return chat_pb2.ContentPart(document=chat_pb2.Media(url=source, filename=filename))
    data, media_type = decode_file(field, source)
    return file_part(data, media_type, filename)


def is_address(url: str) -> bool:
    """Whether a URL has to be fetched."""
    scheme = _SCHEME.match(url)
    return scheme is not None and scheme[1].lower() in ("http", "https")


def file_part(
    data: bytes, media_type: str, filename: str, detail: str = ""
) -> chat_pb2.ContentPart:
    """The part of a file: a picture if its bytes begin like one, else a document."""
    if _PICTURES.match(data):
        media = chat_pb2.Media(data=data, media_type=media_type, detail=detail)
        return chat_pb2.ContentPart(image=media)
    media = chat_pb2.Media(data=data, media_type=media_type, filename=filename)
    return chat_pb2.ContentPart(document=media)


def media_of(part: chat_pb2.ContentPart) -> chat_pb2.Media | None:
    """The picture, sound or document of a part; None for text."""
    kind = part.WhichOneof("part")
    return getattr(part, kind) if kind in ("image", "audio", "document") else None


class MediaBudget:
    """Bounds the bytes of all files of a prompt."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def add(self, field: str, num_bytes: int) -> None:
        """Count a file. Raises TooLong, with the field of the file that is too much."""
        if num_bytes > MAX_FILE_BYTES:
            raise TooLong(field=field, length=num_bytes, limit=MAX_FILE_BYTES, unit="bytes")
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_MEDIA_BYTES:
            length = self._num_bytes
            raise TooLong(field=field, length=length, limit=MAX_MEDIA_BYTES, unit="bytes")


def check_media_size(parts: Iterable[tuple[str, chat_pb2.ContentPart]]) -> None:
    """Check the files in the parts of a prompt, each given with its field. Raises TooLong."""
    budget = MediaBudget()
    for field, part in parts:
        media = media_of(part)
        if media is not None:
            budget.add(field, len(media.data))
