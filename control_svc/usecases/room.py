"""Room for things of different sizes: what bounds memory, where a number of things would not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """So much room in all; who comes first is served first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, size: int) -> None:
        """Return once so much is free, and is ours. What is larger than all of it, is alone."""
        size = min(size, self._size)
        async with self._turn:
            while self._free < size:
                self._changed.clear()
                await self._changed.wait()
            self._free -= size

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._free += min(size, self._size)
        self._changed.set()

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Hold so much of it."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)
