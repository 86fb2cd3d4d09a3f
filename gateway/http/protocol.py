"""HTTP and WebSocket protocols with limits on heads, and a timeout for clients that do not read."""

import asyncio
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from openai_wire.errors import error_body
from svc_kit.errors import InvalidField

LEAST_TAKEN_BYTES: Final = 48 * 1024
"""Who takes less within the limit reads next to nothing: what makes room in a buffer that is just
full, by asyncio's marks."""


class SlowClientCutoff(asyncio.Protocol):
    """Goes before a protocol of uvicorn's: after `unread_limit_s` seconds without room for another
    write, and with next to nothing read, the connection is cut, and what is behind it ends as when
    the client leaves."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *, unread_limit_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._unread_limit_s = unread_limit_s
        self._unread_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Starts the clock."""
        super().pause_writing()
        self._wait_for_room()

    def resume_writing(self) -> None:
        """Stops the clock."""
        self._have_room()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._have_room()
        super().connection_lost(exc)

    def _wait_for_room(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self._unread_limit_s, self._look, unread)

    def _look(self, unread: int) -> None:
        """`unread` is how many bytes waited at the last look."""
        if unread - self.transport.get_write_buffer_size() < LEAST_TAKEN_BYTES:
            self.transport.abort()
        else:
            self._wait_for_room()

    def _have_room(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


MAX_HEAD_BYTES = 64 * 1024


class BoundedHttpProtocol(SlowClientCutoff, HttpToolsProtocol):
    """One connection. A head that is too long gets 431; one that is too slow is cut."""

    def __init__(self, *, head_timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._head_timeout_s = head_timeout_s
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock of the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._have_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Starts the clock of a further head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Stops the clock; the request begins."""
        self._have_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Counts what arrives while a head is incomplete."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            problem = f"its head has more than {MAX_HEAD_BYTES} bytes"
            self._refuse(b"431 Request Header Fields Too Large", problem)

    def send_400_response(self, msg: str) -> None:
        """Refuses what cannot be parsed."""
        self._refuse(b"400 Bad Request", "it is not valid HTTP")

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.close)

    def _have_head(self) -> None:
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
    """One connection that was upgraded to a WebSocket."""
