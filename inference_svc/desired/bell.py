"""A bell: whoever waits for a change hears of it at once."""

import asyncio
from contextlib import suppress


class Bell:
    """Rung after a change, heard by all who wait then. Use on one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, at_most_s: float | None = None) -> None:
        """Return at the next ring, or after so many seconds; None: however long it takes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._next.wait()
