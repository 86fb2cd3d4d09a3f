"""The bytes of a file as an HTTP answer.

They are somebody's, served from our origin: always as an attachment of no type, which no browser
shows, guesses or runs.
"""

from typing import Any
from urllib.parse import quote

from corral.control.v1 import file_pb2
from starlette.types import Receive, Scope, Send

from gateway.calls import Calls
from gateway.edge import mark_disconnected
from gateway.ranges import ByteRange
from svc_kit.errors import CallerCancelled


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
