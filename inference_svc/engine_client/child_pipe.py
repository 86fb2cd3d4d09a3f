"""The parent's end of the pipe of a child, whose other end is a `multiprocessing` connection.

Messages are read on the event loop, without a thread that would have to wake it, and written in a
thread, which may have to wait for the child.
"""

import asyncio
import socket
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from struct import Struct
from typing import Any, Final

_READ_BYTES: Final = 1 << 18
_WAIT_S: Final = 1e6
"""For a child that is stopped; a write to one that has ended fails at once."""
_SIZE: Final = Struct("!i")
_LARGE: Final = -1
_LARGE_SIZE: Final = Struct("!Q")


def open_writer(end: socket.socket) -> socket.socket:
    """Return an end to write to. A loop may make both non-blocking, as uvloop does where it reads:
    with a time limit, Python waits until it can write."""
    writer = end.dup()
    writer.settimeout(_WAIT_S)
    return writer


def send(writer: socket.socket, message: Any) -> None:
    """Write a message. Blocks. Raises OSError."""
    data = ForkingPickler.dumps(message)
    is_large = len(data) >= 1 << 31
    head = _SIZE.pack(_LARGE) + _LARGE_SIZE.pack(len(data)) if is_large else _SIZE.pack(len(data))
    writer.sendall(head)
    writer.sendall(data)


class PipeReader:
    """Receives what a `multiprocessing.connection.Connection` at the other end of `end` sends.

    `on_message` is called on the loop with each message, in order. The sender sees as unread what
    the loop has not come to. The end stays open, and may be written to.
    """

    def __init__(self, end: socket.socket, on_message: Callable[[Any], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._on_message = on_message
        self._buffer = bytearray()
        self._is_open = True
        self._loop.add_reader(end, self._receive)

    def close(self) -> None:
        """Deliver what has arrived, and read no more."""
        while self._receive():
            pass
        self._stop()

    def _stop(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._end)

    def _receive(self) -> bool:
        """Read once, without blocking; returns whether there was something."""
        if not self._is_open:
            return False
        try:
            data = self._end.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop()
            return False
        self._buffer += data
        self._deliver()
        return True

    def _deliver(self) -> None:
        """Deliver the messages that are complete."""
        start = 0
        with memoryview(self._buffer) as view:
            while (bounds := self._next(start)) is not None:
                begin, start = bounds
                # Each by itself, so that an error in one does not keep the others.
                self._loop.call_soon(self._on_message, ForkingPickler.loads(view[begin:start]))
        del self._buffer[:start]

    def _next(self, start: int) -> tuple[int, int] | None:
        """Where the message begins and ends whose head is at `start`; None if it is incomplete."""
        begin = start + _SIZE.size
        if len(self._buffer) < begin:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, start)
        if size == _LARGE:
            begin += _LARGE_SIZE.size
            if len(self._buffer) < begin:
                return None
            (size,) = _LARGE_SIZE.unpack_from(self._buffer, begin - _LARGE_SIZE.size)
        end = begin + size
        return (begin, end) if len(self._buffer) >= end else None
