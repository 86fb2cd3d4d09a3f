"""Responses with the bytes of a file, whole or one range of them (RFC 9110, section 14)."""

import re
from typing import Any, NamedTuple
from urllib.parse import quote

from corral.control.v1 import file_pb2
from starlette.types import Receive, Scope, Send

from gateway.calls import Calls
from gateway.http.middleware import mark_disconnected
from svc_kit.errors import CallerCancelled, RangeNotSatisfiable

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)


class ByteRange(NamedTuple):
    """Bytes of something, both ends included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The one range that a header asks for; None: everything.

    Headers of another form, and those with several ranges, count as absent, as the RFC allows.
    Raises RangeNotSatisfiable for one that begins beyond the end.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        first, last = max(size - int(match[2]), 0), size - 1
    else:
        first, last = int(match[1]), min(int(match[2] or size), size - 1)
        if match[2] and int(match[2]) < first:
            return None
    if first > last:
        raise RangeNotSatisfiable(field="range", size=size)
    return ByteRange(first, last)


class FileContent:
    """An answer made of the messages of DownloadFile: first the file, then its bytes."""

    def __init__(self, wanted: ByteRange | None) -> None:
        """`wanted` is the range that was asked for; None: everything."""
        self._wanted = wanted

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the bytes as they come. What fails in between ends the connection."""
        try:
            async for _, message in calls:
                if message.HasField("file"):
                    await send(self._start(message.file))
                else:
                    await send(_body(message.chunk, more=True))
        except CallerCancelled:
            mark_disconnected(scope)
            return
        await send(_body(b"", more=False))

    def _start(self, file: file_pb2.File) -> dict[str, Any]:
        wanted, size = self._wanted, file.size_bytes
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "content-length": str(size if wanted is None else wanted.length),
            "x-content-type-options": "nosniff",
            "content-security-policy": "sandbox; default-src 'none'",
            "cache-control": "private",
            "accept-ranges": "bytes",
            "etag": f'"{file.sha256}"',
        }
        if wanted is not None:
            headers["content-range"] = f"bytes {wanted.first}-{wanted.last}/{size}"
        return {
            "type": "http.response.start",
            "status": 200 if wanted is None else 206,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }


def _body(chunk: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": chunk, "more_body": more}
