"""Reads JSON bodies with limits on size, structure and time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from dialects.shared.json_body import StructureCount, is_small
from gateway.http.dialect import Dialect, dialect_of
from gateway.http.large_bodies import UNRESERVED_BYTES, LargeBodies, convert, large_body
from svc_kit.errors import (
    BodyTooSlow,
    CallerCancelled,
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


Parsed = TypeVar("Parsed")


class JsonBodies:
    """Reads bodies of at most `limit` bytes, each within `timeout_s` seconds."""

    def __init__(self, limit: int, timeout_s: float, large: LargeBodies) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._large = large

    async def read(self, request: Request, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Read JSON text and parse it. A large one is parsed in turn, as `convert` will do with
        the result.

        Raises UnsupportedMediaType, RequestTooLarge, TooLong, InvalidJson, QueueFull,
        BodyTooSlow, or CallerCancelled if the client disconnects.
        """
        try:
            raw = await self._read(request)
        except ClientDisconnect:
            raise CallerCancelled from None
        from_browser = any(name in request.headers for name in _OF_BROWSERS)
        if raw and (from_browser or dialect_of(request.scope) not in _LENIENT):
            check_media_type(request.headers.get("content-type", ""))
        return await self.parse(raw, parse)

    async def parse(self, raw: bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Parse a text as `read` does."""
        self.set_large(is_large=not is_small(raw))
        return await convert(parse, raw)

    async def reserve(self, scope: Scope, num_bytes: int) -> None:
        """Reserve memory for a text that did not come as a body, until `release` of the scope.
        Raises QueueFull."""
        await self._large.reserve(scope, num_bytes, arrives=False)

    async def begin(self, scope: Scope) -> None:
        """Wait until a call of the project may begin; it counts until `end_arrival`. Raises
        QueueFull."""
        await self._large.begin(scope, 0)

    def set_large(self, *, is_large: bool) -> None:
        """Set whether `convert` converts in turn, in the running task."""
        large_body.set(self._large if is_large else None)

    async def _read(self, request: Request) -> bytes:
        declared = _declared_size(request)
        if declared > self._limit:
            raise RequestTooLarge(size=declared, limit=self._limit)
        if declared <= UNRESERVED_BYTES:
            return await self.collect(request.scope, request.stream(), UNRESERVED_BYTES)
        await self._large.reserve(request.scope, declared)
        return await self.collect(request.scope, request.stream(), self._limit)

    async def collect(self, scope: Scope, chunks: AsyncIterator[bytes], reserved: int) -> bytes:
        """Join the pieces of a body. One of more than `reserved` bytes reserves memory.

        Raises RequestTooLarge, TooLong, QueueFull or BodyTooSlow.
        """
        pieces, size, structure, allowed = [], 0, StructureCount(), reserved
        try:
            async with asyncio.timeout(self._timeout_s) as timer:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._limit:
                        raise RequestTooLarge(size=size, limit=self._limit)
                    if size > allowed:  # it was sent without its size
                        timer.reschedule(None)  # that time is not the client's
                        await self._large.reserve(scope, self._limit, arrives=False)
                        timer.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                        allowed = self._limit
                    structure.add(chunk)
                    pieces.append(chunk)
        except TimeoutError:
            raise BodyTooSlow(problem=f"it took more than {self._timeout_s:g} s") from None
        if allowed > reserved:
            self._large.shrink(scope, size)
        return b"".join(pieces)


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


def _declared_size(request: Request) -> int:
    """The size of the body in the request's head; 0 if it is not there."""
    declared = request.headers.get("content-length", "0")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        expected = "the body without one"
        raise UnsupportedMediaType(
            media_type=encoding, expected=expected, header="content encoding"
        )
    if not declared.isdigit():
        raise InvalidField(field="content-length", problem="it must be a number")
    return int(declared)
