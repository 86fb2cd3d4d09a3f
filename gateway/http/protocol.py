"""uvicorn's protocols with limits on what clients send, on how slowly they send and read, and on
the connections of one client address."""

import asyncio
import codecs
from enum import Enum, auto
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from gateway.http.bounded_connection import MASK_BYTES, BoundedConnection, SplitFrame
from gateway.http.connection_limits import (
    CHUNK_HEAD_BYTES,
    HEAD_ALLOWANCE_BYTES,
    MAX_HEAD_BYTES,
)
from gateway.http.errors import error_response
from svc_kit.errors import BodyTooSlow, DomainError, InvalidField, RateLimited

HEAD_SLICE_BYTES: Final = 4096
"""Of heads and of chunked bodies, whose chunks have six bytes or more."""
BODY_SLICE_BYTES: Final = 256 * 1024
"""Of bodies whose length is known."""
MAX_FRAMES: Final = 64
"""Of WebSockets, in a slice, which has one message at most."""
MESSAGE_PART_BYTES: Final = 256 * 1024
"""Of a message of a WebSocket; the application gets larger ones in parts."""
FRAGMENT_BYTES: Final = 4096
"""The least of a frame that is parsed before the rest is here."""
MAX_HEADERS: Final = 256
END_OF_LINES: Final = b"\r\n\r\n"
"""The end of every head and of every chunked body, with its trailers."""

_FRAME_HEAD_BYTES: Final = 10
_UTF_8: Final = codecs.getincrementaldecoder("utf-8")

LINGER_S: Final = 2.0
"""How long bytes that follow a refused request are read and dropped."""
LINGER_BYTES: Final = 2**20
"""How many."""


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
        self._was_held = False
        """Whether the server has stopped parsing since then."""
        self._num_left = 0
        """Bytes of the body that are to come, if it has a length."""
        self._last_bytes = b""
        self._receive_timer: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head, or refuse the connection."""
        super().connection_made(transport)
        if self._limits.is_full(self.peer):
            self._expected = _Expected.NOTHING
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
        frames, self._unparsed = bytes(self._unparsed), bytearray()
        self._pause_or_resume()
        super().handle_websocket_upgrade()
        if frames:
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(frames)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, or drop those that follow a refusal."""
        if self._expected is _Expected.NOTHING and self._num_overhead < LINGER_BYTES:
            self._num_overhead += len(data)
        else:
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self.parse_later()

    def _can_parse(self) -> bool:
        if self._expected is _Expected.NEW_REQUEST:
            can_begin = self.cycle.response_complete and not self._is_write_full
            return can_begin and super()._can_parse()
        return self._expected is not _Expected.NOTHING and super()._can_parse()

    def _slice_size(self) -> int:
        """A slice is as short as the parser may be slow, and never has the ends of two requests."""
        if self._expected is _Expected.BODY and self._num_left:
            return min(self._num_left, BODY_SLICE_BYTES)
        window = self._last_bytes + self._unparsed[:HEAD_SLICE_BYTES]
        end = window.find(END_OF_LINES)
        if end < 0:
            return HEAD_SLICE_BYTES
        return end + len(END_OF_LINES) - len(self._last_bytes)

    def _parse(self, data: bytes) -> None:
        """Parse bytes; bound those that are neither head nor body."""
        kept = 1 - len(END_OF_LINES)
        self._last_bytes = (self._last_bytes + data[kept:])[kept:]
        self._num_overhead += len(data)
        super()._parse(data)
        is_between = self._expected is _Expected.NEW_REQUEST
        self._num_overhead = 0 if is_between else max(0, self._num_overhead)
        if self._expected in (_Expected.FRAMES, _Expected.NOTHING):
            return
        if self._num_overhead > MAX_HEAD_BYTES:
            in_body = self._expected is _Expected.BODY
            problem = "its chunk heads or trailers are too long"
            self._refuse(_bad_request(problem, "overhead") if in_body else _large_head())
        elif self._expected is _Expected.BODY:
            self._was_held |= self._is_slow()
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
            if len(self.headers) > MAX_HEADERS:
                problem = f"it has more than {MAX_HEADERS} headers"
                self._refusal = _bad_request(problem, "large_head", 431)
                raise self._refusal

    def on_headers_complete(self) -> None:
        """Check the head and begin the response."""
        self._refusal = self._head_problem()
        if self._refusal is not None:
            raise self._refusal
        self._cancel_timer()
        self._expected = _Expected.BODY
        self._num_overhead -= self._head_bytes() + HEAD_ALLOWANCE_BYTES
        self._num_left = next((int(v) for k, v in self.headers if k == b"content-length"), 0)
        self._limits.parsers.charge_request(self)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Allow for the head of a chunk."""
        self._num_overhead -= CHUNK_HEAD_BYTES

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self._num_overhead -= len(body)
        self._num_body += len(body)
        self._num_left = max(0, self._num_left - len(body))
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

    def _is_slow(self) -> bool:
        """Whether it is the server that does not go on with the body."""
        return self.is_held or bool(self._unparsed)

    def _end_slow_head(self) -> None:
        self._limits.closed.labels("slow_head").inc()
        self.transport.close()

    def _start_body_timer(self) -> None:
        # Twice the time after which the routes stop waiting for a body, whose errors say more.
        self._num_body, self._was_held = 0, self._is_slow()
        self._start_timer(2 * self._limits.receive_timeout_s, self._check_body)

    def _check_body(self) -> None:
        least = 2 * self._limits.receive_timeout_s * self._limits.min_body_rate
        cycle = self.cycle
        waits = cycle.waiting_for_100_continue and not cycle.response_complete
        if self._num_body < least and not (waits or self._was_held or self._is_slow()):
            problem = f"it has less than {self._limits.min_body_rate} bytes per second"
            self._refuse(_Refusal(408, "slow_body", BodyTooSlow(problem=problem)))
        else:
            self._start_body_timer()

    # ---- refusals

    def _refuse(self, refusal: _Refusal) -> None:
        """End the running request, respond if possible, and close the connection."""
        self._cancel_timer()
        can_respond, self._expected = self._can_respond(), _Expected.NOTHING
        self._unparsed.clear()
        self._num_overhead = 0
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
        self._pause_or_resume()
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
    """A connection that was upgraded to a WebSocket. It passes messages on in parts; all but the
    last of a message have "more_body", as in ASGI's events of HTTP requests. It logs no errors for
    what clients cause: uvicorn does for a refused handshake, and for text that is not UTF-8."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._split = SplitFrame()
        self._part = bytearray()
        self._decoder = _UTF_8()

    def handle_text(self, event: Frame) -> None:
        self.curr_msg_data_type = "text"
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        """Begin a message that is no text."""
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to its message."""
        self._part += event.data
        if event.fin or len(self._part) >= MESSAGE_PART_BYTES:
            self._pass_part_on(is_last=event.fin)

    def _pass_part_on(self, *, is_last: bool) -> None:
        """The last part begins a request. Close the connection if a text is not UTF-8."""
        data, self._part = self._part, bytearray()
        if self.close_sent:
            return
        event: Any = {"type": "websocket.receive", "more_body": not is_last}
        if self.curr_msg_data_type == "bytes":
            event["bytes"] = bytes(data)
        else:
            try:
                event["text"] = self._decoder.decode(data, final=is_last)
            except UnicodeDecodeError:
                self.conn.fail(1007, "a text frame is not UTF-8")
                self.handle_parser_exception()
                return
        if is_last:
            self._limits.parsers.charge_request(self)
        self.queue.put_nowait(event)
        self.read_paused = True
        self.transport.pause_reading()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless what was received waits here for the application."""
        if self.read_paused:
            self.pong_timer = self.loop.call_later(self.ping_timeout or 0.0, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    async def send(self, message: Any) -> None:
        """Send a message; the whole response of a refusal completes the handshake. Frames that came
        before the first message, which accepts, follow it.

        Raises ClientDisconnected after a frame that ended the connection.
        """
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)
        self.parse_later()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def _can_parse(self) -> bool:
        is_accepted = self.handshake_complete or not self.handshake_initiated
        return is_accepted and not self._is_write_full and super()._can_parse()

    def _slice_size(self) -> int:
        """A slice ends with a message, or with the MAX_FRAMES-th frame."""
        if not self.handshake_initiated:
            return self._unparsed.find(END_OF_LINES) + len(END_OF_LINES)
        if self._split.num_left:
            return self._fragment_size()
        received, end = len(self._unparsed), 0
        for _ in range(MAX_FRAMES):
            head = self._unparsed[end : end + _FRAME_HEAD_BYTES]
            num_extended = {126: 2, 127: 8}.get(head[1] & 0x7F, 0) if len(head) > 1 else 0
            mask_at = end + 2 + num_extended
            if mask_at > received:
                break
            length = int.from_bytes(head[2 : 2 + num_extended]) if num_extended else head[1] & 0x7F
            payload_at = mask_at + (MASK_BYTES if head[1] & 0x80 else 0)
            if length > self.config.ws_max_size:
                return mask_at  # it is refused by its head
            if payload_at + length > received:
                return end or self._split_frame(head[0], mask_at, payload_at, length)
            end = payload_at + length
            if head[0] & 0x80 and head[0] & 0x0F <= Opcode.BINARY:
                break
        return end

    def _split_frame(self, first: int, mask_at: int, payload_at: int, length: int) -> int:
        """Parse the first frame as fragments if more than a little of it is here."""
        if len(self._unparsed) < payload_at + FRAGMENT_BYTES:
            return 0
        self._split = SplitFrame(first, bytes(self._unparsed[mask_at:payload_at]), length)
        del self._unparsed[:payload_at]
        return self._fragment_size()

    def _fragment_size(self) -> int:
        left, received = self._split.num_left, len(self._unparsed)
        return min(left, received) if received >= min(left, FRAGMENT_BYTES) else 0

    def _parse(self, data: bytes) -> None:
        super()._parse(self._split.next_head(len(data)) + data if self._split.num_left else data)


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
