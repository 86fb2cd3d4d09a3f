"""uvicorn's protocols with limits on what clients send, on how slowly they send and read, and on
the connections of one client address."""

import asyncio
from enum import Enum, auto
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.http.connection_limits import (
    CHUNK_HEAD_BYTES,
    HEAD_ALLOWANCE_BYTES,
    MAX_HEAD_BYTES,
    ConnectionLimits,
)
from gateway.http.errors import error_response
from svc_kit.errors import DomainError, InvalidField, RateLimited

MIN_READ_BYTES: Final = 48 * 1024
"""A client that reads less in `unread_limit_s` is cut off. This is the difference of asyncio's
high and low water marks of a write buffer."""

LINGER_S: Final = 2.0
"""How long bytes that follow a refused request are read and dropped."""


class BoundedConnection(asyncio.Protocol):
    """Mixin for uvicorn's protocols: counts the connection, and aborts it if the write buffer stays
    full for `unread_limit_s` seconds while the client reads less than MIN_READ_BYTES. The request
    then ends as if the client had disconnected."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None

    def __init__(self, *, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._peer: str | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self._peer = self._limits.add(self.client[0] if self.client else "")

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
        self._leave()
        self._cancel_unread_timer()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self._peer is not None:
            self._limits.remove(self._peer)
            self._peer = None

    def _start_unread_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(
            self._limits.unread_limit_s, self._check_read, unread
        )

    def _check_read(self, unread_before: int) -> None:
        if unread_before - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self._limits.closed.labels("slow_reader").inc()
            self.transport.abort()
        else:
            self._start_unread_timer()

    def _cancel_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class _Expected(Enum):
    """What a client may send next."""

    NEW_REQUEST = auto()
    HEAD = auto()
    BODY = auto()
    FRAMES = auto()
    NOTHING = auto()


class _Refusal(Exception):
    """A request that is answered with an error, after which the connection is closed."""

    def __init__(self, status: int, cause: str, error: DomainError) -> None:
        super().__init__(cause)
        self.status = status
        self.cause = cause
        self.error = error


def _bad_request(problem: str, cause: str = "invalid", status: int = 400) -> _Refusal:
    return _Refusal(status, cause, InvalidField(field="request", problem=problem))


def _large_head() -> _Refusal:
    return _bad_request(f"its head has more than {MAX_HEAD_BYTES} bytes", "large_head", 431)


class BoundedHttpProtocol(BoundedConnection, HttpToolsProtocol):
    """An HTTP connection. It is closed, after an error response if none was begun, if a head is
    too long or ambiguous, if too many bytes are neither head nor body, or if a body is too slow;
    without a response if a head is too slow."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._expected = _Expected.HEAD
        self._refusal: _Refusal | None = None
        self._num_overhead = 0
        """Bytes received that are neither a complete head nor body, less an allowance for each."""
        self._num_body = 0
        """Bytes of the body since the timer was started."""
        self._is_held = False
        """Whether the server has stopped reading since then."""
        self._receive_timer: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head, or refuse the connection."""
        super().connection_made(transport)
        if self._limits.is_full(self._peer or ""):
            self._respond(_Refusal(429, "connections", _too_many(self._limits.max_per_address)))
            self.transport.close()
        else:
            self._start_timer(self._limits.receive_timeout_s, self._end_slow_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._cancel_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket protocol, which counts it then."""
        self._expected = _Expected.FRAMES
        self._cancel_timer()
        self._leave()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Parse bytes; bound those that are neither head nor body."""
        if self._expected is _Expected.NOTHING:
            return
        self._num_overhead += len(data)
        super().data_received(data)
        is_between = self._expected is _Expected.NEW_REQUEST
        self._num_overhead = 0 if is_between else max(0, self._num_overhead)
        if self._expected in (_Expected.FRAMES, _Expected.NOTHING):
            return
        if self._num_overhead > MAX_HEAD_BYTES:
            in_body = self._expected is _Expected.BODY
            problem = "its chunk heads or trailers are too long"
            self._refuse(_bad_request(problem, "overhead") if in_body else _large_head())
        elif self._expected is _Expected.BODY:
            self._is_held |= self.flow.read_paused
            if self._receive_timer is None:
                self._start_body_timer()
        elif is_between and self._is_forgotten():
            # An empty line, or the end of a body after its response: a head has to follow.
            self._start_timer(self._limits.receive_timeout_s, self._end_slow_head)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that cannot be parsed."""
        self._refuse(self._refusal or _bad_request("it is not valid HTTP"))

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        """Start the timer of a following head."""
        super().on_message_begin()
        if self._expected is _Expected.NEW_REQUEST:
            self._cancel_timer()
            self._start_timer(self._limits.receive_timeout_s, self._end_slow_head)
        self._expected = _Expected.HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are dropped."""
        if self._expected is _Expected.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head and begin the response."""
        self._refusal = self._head_problem()
        if self._refusal is not None:
            raise self._refusal
        self._cancel_timer()
        self._expected = _Expected.BODY
        self._num_overhead -= self._head_bytes() + HEAD_ALLOWANCE_BYTES
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Allow for the head of a chunk."""
        self._num_overhead -= CHUNK_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self._num_overhead -= len(body)
        self._num_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Cancel the timer of the body."""
        self._expected = _Expected.NEW_REQUEST
        self._cancel_timer()
        super().on_message_complete()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _head_problem(self) -> _Refusal | None:
        """What is wrong with a head: other servers could understand it in another way, or it is too
        long (one read can contain more than the limit)."""
        if self._head_bytes() > MAX_HEAD_BYTES:
            return _large_head()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1:
            return _bad_request(f"it has {hosts} Host headers instead of one")
        encodings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if encodings and (encodings != [b"chunked"] or self.parser.get_http_version() == "1.0"):
            return _bad_request("the only Transfer-Encoding is 'chunked', in HTTP/1.1")
        return None

    # ---- timers

    def _start_timer(self, delay_s: float, act: Any) -> None:
        self._receive_timer = self.loop.call_later(delay_s, act)

    def _cancel_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _is_forgotten(self) -> bool:
        """Whether nothing else ends this connection: no response, and no timer."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self._receive_timer is None and self.timeout_keep_alive_task is None

    def _end_slow_head(self) -> None:
        self._limits.closed.labels("slow_head").inc()
        self.transport.close()

    def _start_body_timer(self) -> None:
        # Twice the time after which the routes stop waiting for a body, whose errors say more.
        self._num_body, self._is_held = 0, self.flow.read_paused
        self._start_timer(2 * self._limits.receive_timeout_s, self._check_body)

    def _check_body(self) -> None:
        least = 2 * self._limits.receive_timeout_s * self._limits.min_body_rate
        cycle = self.cycle
        waits = cycle.waiting_for_100_continue and not cycle.response_complete
        if self._num_body < least and not (waits or self._is_held or self.flow.read_paused):
            problem = f"its body has less than {self._limits.min_body_rate} bytes per second"
            self._refuse(_bad_request(problem, "slow_body", 408))
        else:
            self._start_body_timer()

    # ---- refusals

    def _refuse(self, refusal: _Refusal) -> None:
        """End the running request, respond if possible, and close the connection."""
        self._cancel_timer()
        can_respond, self._expected = self._can_respond(), _Expected.NOTHING
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not can_respond:
            self._limits.closed.labels(refusal.cause).inc()
            self.transport.close()
            return
        self._respond(refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # A connection that is closed with unread bytes is reset, which can lose the response.
        self.flow.resume_reading()
        self._start_timer(LINGER_S, self.transport.close)

    def _respond(self, refusal: _Refusal) -> None:
        self._limits.closed.labels(refusal.cause).inc()
        response = error_response(refusal.error)
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in headers]
        head = b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n"])
        self.transport.write(head + bytes(response.body))

    def _can_respond(self) -> bool:
        if self.cycle is None:
            return True
        if self._expected is _Expected.BODY:
            return not (self.cycle.response_started or self.pipeline)
        return self.cycle.response_complete and not self.pipeline


class BoundedWebSocketProtocol(BoundedConnection, WebSocketsSansIOProtocol):
    """A connection that was upgraded to a WebSocket."""


def _too_many(amount: int | None) -> RateLimited:
    return RateLimited(
        name="connections_per_address",
        limit=f"{amount} connections from one address",
        unit="connections",
        amount=amount or 0,
        remaining=0,
        requested=1,
        window_s=0,
        reset_s=0,
    )
