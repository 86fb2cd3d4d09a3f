"""One HTTP/1.1 connection to an engine, on httptools: less CPU for a streamed token than an HTTP
client library takes, and bounds on everything that the engine sends.

An exchange is one request and its answer, which a `Receiver` reads as it arrives.
"""

import asyncio
from typing import Any, Final, Protocol, cast

import httptools

from inference_svc.upstream.faults import AnswerInvalid, EngineFault, EngineLost

_HEAD_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 64
"""What a chunk of the transfer encoding may have beside its content."""


class Receiver(Protocol):
    """Reads an answer. Its methods may raise `EngineFault`, which ends the exchange."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The head of the answer; names of headers are in lower case."""

    def body(self, data: bytes) -> bool:
        """The next bytes of the body. Returns whether no more of the answer is wanted."""


class HttpConnection(asyncio.Protocol):
    """A connection, with one exchange at a time. It is reusable until `is_closed`; `is_cut`: the
    peer has closed it.
    """

    def __init__(self) -> None:
        self.is_closed = self.is_cut = False
        self.has_answered = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._num_overhead = self._num_allowed = 0
        self._has_head = self._is_complete = self._keeps_alive = False
        self._token_timeout_s = 0.0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False

    # --- exchanges --------------------------------------------------------------------------------

    async def exchange(
        self, request: bytes, receiver: Receiver, *, first_s: float, between_s: float
    ) -> None:
        """Send a request and return when its answer is complete, or `receiver` wants no more; then
        the connection is closed. Whoever is cancelled closes it too.

        `first_s` is the time until the first `touch`, and `between_s` that between two of them.
        Raises `EngineLost`, `AnswerInvalid`, and what `receiver` raises.
        """
        if self.is_closed or self._transport is None:
            raise EngineLost("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._receiver, self._headers, self._parts = receiver, {}, []
        self._num_overhead, self._num_allowed = 0, _HEAD_BYTES
        self.has_answered = self._has_head = self._is_complete = self._keeps_alive = False
        self._token_timeout_s = between_s
        self._deadline = self._loop.time() + first_s
        self._timer = self._loop.call_at(self._deadline, self._check_silence)
        self._done = self._loop.create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._timer.cancel()
            self._receiver = self._done = None
            self.set_paused(paused=False)
            if not self._keeps_alive:
                self.close()

    def touch(self) -> None:
        """Record that the engine wrote tokens."""
        self._deadline = self._loop.time() + self._token_timeout_s
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()  # the time until the first one is longer
            self._timer = self._loop.call_at(self._deadline, self._check_silence)

    def set_paused(self, *, paused: bool) -> None:
        """Read no more of the answer, or go on. The time of a pause is not the engine's."""
        if paused == self._is_paused or self._transport is None or self.is_closed:
            return
        self._is_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
            self._deadline = max(self._deadline, self._loop.time() + self._token_timeout_s)

    def close(self) -> None:
        """Close the connection, which cancels the request in the engine."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _check_silence(self) -> None:
        now = self._loop.time()
        if self._is_paused:
            self._deadline = max(self._deadline, now + self._token_timeout_s)
        if now < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_silence)
        else:
            self._end(EngineLost("it sent nothing in time"))

    def _end(self, fault: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if fault is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(fault)

    # --- of asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, problem: Exception | None) -> None:
        self.is_cut = not self.is_closed
        self.is_closed = True
        self._end(EngineLost(f"it closed the connection{f' ({problem})' if problem else ''}"))

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done() or self._is_complete:
            self.close()  # bytes that nobody asked for
            return
        self.has_answered = True
        try:
            self._read(data)
        except EngineFault as fault:
            self._end(fault)

    def _read(self, data: bytes) -> None:
        self._num_overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            fault = problem.__context__
            if isinstance(fault, EngineFault):
                raise fault from None
            raise AnswerInvalid(f"its answer is not HTTP ({problem})") from None
        parts, self._parts = self._parts, []
        body = b"".join(parts) if len(parts) > 1 else parts[0] if parts else b""
        self._num_overhead -= len(body)
        if self._num_overhead > self._num_allowed:
            raise AnswerInvalid("the head of its answer is too long")
        receiver = self._receiver
        if receiver is None or (body and receiver.body(body)) or self._is_complete:
            self._end(None)

    # --- of httptools -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise AnswerInvalid("it sent two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._has_head = True
        if self._receiver is not None:
            self._receiver.head(self._parser.get_status_code(), self._headers)

    def on_chunk_header(self) -> None:
        self._num_allowed += _CHUNK_BYTES

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()  # it knows no longer afterwards
