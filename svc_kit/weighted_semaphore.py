"""A semaphore whose permits have sizes, to bound the memory of concurrent work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class WeightedSemaphore:
    """Bounds the sum of the sizes that are acquired. Waiters are served in FIFO order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._queue = asyncio.Lock()
        self._changed = asyncio.Event()

    async def acquire(self, size: int) -> None:
        """Wait until `size` is free. A size above the total waits until everything is free."""
        size = min(size, self._size)
        async with self._queue:
            while self._free < size:
                self._changed.clear()
                await self._changed.wait()
            self._free -= size

    def release(self, size: int) -> None:
        """Release what `acquire` was called with."""
        self._free += min(size, self._size)
        self._changed.set()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Acquire `size` for the duration of a block."""
        await self.acquire(size)
        try:
            yield
        finally:
            self.release(size)
