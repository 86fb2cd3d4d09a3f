"""What ends a connection whose client does not read: a write waits for room, but not for ever.

The kernel's own limit (TCP_USER_TIMEOUT) knows only some systems, and begins anew with every byte
that the client takes. This one looks how much is left of what waits: an answer that was written as
a whole may take a client with a slow line longer than the limit, and it is not cut for that.
"""

import asyncio
from typing import Any, Final

LEAST_TAKEN_BYTES: Final = 48 * 1024
"""Who takes less within the limit reads next to nothing: what makes room in a buffer that is just
full, by asyncio's marks."""


class CutsUnread(asyncio.Protocol):
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
