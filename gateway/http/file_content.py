"""Responses with the content of a file, or one byte range of it (RFC 9110, section 14)."""

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
    """A range of bytes, both ends included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.last - self.first + 1


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Parse a Range header with a single byte range. None means the whole file.

    Malformed headers and multiple ranges are ignored, as the RFC allows. Raises RangeNotSatisfiable
    if the range starts after the end.
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
    """Writes the messages of DownloadFile: first the metadata, then chunks of bytes."""

    def __init__(self, byte_range: ByteRange | None) -> None:
        """`byte_range` is None for the whole file."""
        self._range = byte_range

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Send the bytes as they arrive. An error after the first byte closes the connection."""
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
        byte_range, size = self._range, file.size_bytes
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "content-length": str(size if byte_range is None else byte_range.length),
            "x-content-type-options": "nosniff",
            "content-security-policy": "sandbox; default-src 'none'",
            "cache-control": "private",
            "accept-ranges": "bytes",
            "etag": f'"{file.sha256}"',
        }
        if byte_range is not None:
            headers["content-range"] = f"bytes {byte_range.first}-{byte_range.last}/{size}"
        return {
            "type": "http.response.start",
            "status": 200 if byte_range is None else 206,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }


def _body(chunk: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": chunk, "more_body": more}
