"""The formats of pictures that are supported, by the first bytes of a file."""

from typing import Final

UNSUPPORTED_FORMAT: Final = "the format is not supported; supported are PNG, JPEG, WebP and GIF"


def image_media_type(data: bytes) -> str | None:
    """The MIME type of a picture, None if its format is not supported."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None
