"""A mixin for uvicorn's protocols: a connection that is counted, whose bytes are parsed in turns,
and whose client has to read."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, cast

from gateway.http.connection_limits import ConnectionLimits

MIN_READ_BYTES: Final = 48 * 1024
"""A client that reads less in `unread_limit_s` is cut off. This is the difference of asyncio's
high and low water marks of a write buffer."""

READ_AHEAD_BYTES: Final = 16 * 1024
"""Reading pauses while more than this waits for the parser."""

MASK_BYTES: Final = 4
"""Of the mask of a WebSocket's frame."""


class _HeldTransport:
    """A transport whose reading uvicorn's protocol pauses by not parsing what was received."""

    def __init__(self, transport: asyncio.Transport, connection: "BoundedConnection") -> None:
        self.transport = transport
        self.write, self.is_closing = transport.write, transport.is_closing
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def pause_reading(self) -> None:
        """Parse nothing for now."""
        self._connection.is_held = True

    def resume_reading(self) -> None:
        """Parse what was received meanwhile, and go on."""
        self._connection.is_held = False
        self._connection.parse_later()


class BoundedConnection(asyncio.Protocol):
    """Mixin for uvicorn's protocols. It counts the connection, and parses what it received in
    slices, in its turns and while no response waits to be read. It aborts the connection if the
    write buffer stays full for `unread_limit_s` seconds while the client reads less than
    MIN_READ_BYTES. The request then ends as if the client had disconnected."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None

    def __init__(self, *, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._is_counted = False
        self._unread_timer: asyncio.TimerHandle | None = None
        self.peer = ""
        self.busy_until = 0.0
        self.is_queued = False
        self.is_held = False
        """Whether uvicorn wants no more bytes."""
        self._is_write_full = False
        self._is_read_paused = False
        self._unparsed = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = transport.transport if isinstance(transport, _HeldTransport) else transport
        held: Any = _HeldTransport(cast("asyncio.Transport", real), self)
        super().connection_made(held)
        self.peer = self._limits.add(self.client[0] if self.client else "")
        self._is_counted = True

    def data_received(self, data: bytes) -> None:
        """Parse bytes, or keep them until it is their turn."""
        self._unparsed += data
        if self._can_parse():
            self._limits.parsers.parse(self)
        self._pause_or_resume()

    def parse_later(self) -> None:
        """Go on with what was received, if there is any."""
        if self._can_parse():
            self._limits.parsers.queue(self)

    def parse_slice(self) -> bool:
        """Parse a slice of what was received; return whether another one can follow."""
        size = self._slice_size() if self._can_parse() else 0
        if not size:
            return False
        data = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        self._parse(data)
        self._pause_or_resume()
        return self._can_parse()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _can_parse(self) -> bool:
        return bool(self._unparsed) and not (self.is_held or self.transport.is_closing())

    def _slice_size(self) -> int:
        """Bytes to parse now; 0 if more have to come first."""
        raise NotImplementedError

    def _parse(self, data: bytes) -> None:
        super().data_received(data)

    def _pause_or_resume(self) -> None:
        """Read ahead of the parser a little, so that a disconnect is noticed."""
        is_full = len(self._unparsed) > READ_AHEAD_BYTES
        if is_full != self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = is_full
            real = cast("_HeldTransport", self.transport).transport
            (real.pause_reading if is_full else real.resume_reading)()

    def pause_writing(self) -> None:
        """Start the timer: the write buffer is full."""
        super().pause_writing()
        self._is_write_full = True
        self._start_unread_timer()

    def resume_writing(self) -> None:
        """Cancel the timer."""
        self._is_write_full = False
        self._cancel_unread_timer()
        super().resume_writing()
        self.parse_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer, and drop what was not parsed."""
        self._unparsed.clear()
        self._leave()
        self._cancel_unread_timer()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if self._is_counted:
            self._limits.remove(self.peer)
            self._is_counted = False

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


@dataclass
class SplitFrame:
    """A WebSocket frame that is parsed as fragments while it arrives, so that it is never held
    whole."""

    first: int = 0
    """The first byte of its next fragment, if that is the last."""
    mask: bytes = b""
    num_left: int = 0
    """Bytes of its payload that are not parsed."""

    def next_head(self, size: int) -> bytes:
        """The head of its next fragment, of `size` bytes."""
        self.num_left -= size
        first = self.first & 0x7F if self.num_left else self.first
        head = bytes((first, 0xFF if self.mask else 0x7F)) + size.to_bytes(8) + self.mask
        turn = size % MASK_BYTES
        self.first, self.mask = self.first & 0x80, self.mask[turn:] + self.mask[:turn]
        return head
