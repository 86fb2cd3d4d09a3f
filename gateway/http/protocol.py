"""uvicorn's protocols with limits on request heads and a timeout for clients that do not read."""

import asyncio
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from openai_wire.errors import error_body
from svc_kit.errors import InvalidField

MIN_READ_BYTES: Final = 48 * 1024
"""A client that reads less in `unread_limit_s` is cut off. This is the difference of asyncio's
high and low water marks of a write buffer."""


class SlowClientCutoff(asyncio.Protocol):
    """Mixin for uvicorn's protocols: aborts the connection if the write buffer stays full for
    `unread_limit_s` seconds while the client reads less than MIN_READ_BYTES. The request then ends
    as if the client had disconnected."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *, unread_limit_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._unread_limit_s = unread_limit_s
        self._unread_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Start the timer: the write buffer is full."""
        super().pause_writing()
        self._start_unread_timer()

    def resume_writing(self) -> None:
        """Cancel the timer."""
        self._cancel_unread_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._cancel_unread_timer()
        super().connection_lost(exc)

    def _start_unread_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self._unread_limit_s, self._check_read, unread)

    def _check_read(self, unread_before: int) -> None:
        if unread_before - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._start_unread_timer()

    def _cancel_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


MAX_HEAD_BYTES = 64 * 1024


class BoundedHttpProtocol(SlowClientCutoff, HttpToolsProtocol):
    """An HTTP connection. A head that is too long gets 431; one that is too slow is cut off."""

    def __init__(self, *, head_timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._head_timeout_s = head_timeout_s
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._cancel_head_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start the timer of a following head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        """Cancel the timer: the head is complete."""
        self._cancel_head_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of an incomplete head."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            problem = f"its head has more than {MAX_HEAD_BYTES} bytes"
            self._refuse(b"431 Request Header Fields Too Large", problem)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that cannot be parsed."""
        self._refuse(b"400 Bad Request", "it is not valid HTTP")

    def _start_head_timer(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.close)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: bytes, problem: str) -> None:
        body = orjson.dumps(error_body(InvalidField(field="request", problem=problem)))
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self.transport.close()


class BoundedWebSocketProtocol(SlowClientCutoff, WebSocketsSansIOProtocol):
    """A connection that was upgraded to a WebSocket."""
