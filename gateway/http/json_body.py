"""Reads JSON bodies with limits on size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from gateway.http.dialect import Dialect, dialect_of
from svc_kit.errors import (
    CallerCancelled,
    DeadlineExpired,
    InvalidField,
    RequestTooLarge,
    UnsupportedMediaType,
)

_MEDIA_TYPE = "application/json"
_LENIENT = (Dialect.OLLAMA, Dialect.LLAMA_SERVER)
"""The servers of these APIs do not read the type, and scripts rely on it: curl sends that of forms.
"""
_OF_BROWSERS = ("origin", "referer", "sec-fetch-mode", "sec-fetch-site")
"""Headers of which a browser sends at least one with a form."""


async def read_body(request: Request, limit: int, timeout_s: float) -> bytes:
    """Read JSON text of at most `limit` bytes within `timeout_s` seconds.

    Raises UnsupportedMediaType, RequestTooLarge, DeadlineExpired, or CallerCancelled if the client
    disconnects.
    """
    try:
        async with asyncio.timeout(timeout_s):
            raw = await _read(request, limit)
    except TimeoutError:
        raise DeadlineExpired(phase="call") from None
    except ClientDisconnect:
        raise CallerCancelled from None
    from_browser = any(name in request.headers for name in _OF_BROWSERS)
    if raw and (from_browser or dialect_of(request.scope) not in _LENIENT):
        check_media_type(request.headers.get("content-type", ""))
    return raw


def check_media_type(content_type: str) -> None:
    """Raise UnsupportedMediaType for anything but JSON in UTF-8.

    Other types would allow cross-site requests: browsers send forms and plain text without a CORS
    preflight request.
    """
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    is_json = media_type == _MEDIA_TYPE or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    charsets = [part for part in parameters if part.startswith("charset=")]
    if not is_json or any(part.strip('"')[8:].strip('"') != "utf-8" for part in charsets):
        raise UnsupportedMediaType(media_type=content_type)


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType(
            media_type=f"content-encoding {request.headers['content-encoding']}"
        )
    if not declared.isdigit():
        raise InvalidField(field="content-length", problem="it must be a number")
    if int(declared) > limit:
        raise RequestTooLarge(size=int(declared), limit=limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(size=size, limit=limit)
        chunks.append(chunk)
    return b"".join(chunks)
