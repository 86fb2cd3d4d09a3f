"""A semaphore whose permits have sizes, shared fairly between clients such as projects."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from svc_kit.fairness import FairTurns


@dataclass(eq=False, slots=True)
class _Waiter:
    size: int
    granted: asyncio.Future[None]


class FairSemaphore:
    """Bounds the sum of the sizes that are acquired.

    Clients that wait are served in turns, by the sizes that they got, and the waiters of a client
    in FIFO order. A client holds at most `client_limit`, so that the rest is free for others.
    """

    def __init__(self, size: int, client_limit: int | None = None) -> None:
        self._size = size
        self._client_limit = client_limit or size
        self._free = size
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Waiter]] = {}
        self._turns: FairTurns[str] = FairTurns()

    async def acquire(self, size: int, client: str = "") -> None:
        """Wait until `size` is free. A size above a limit waits until all of that is free."""
        size = self._bounded(size)
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiter)
        self._grant()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._grant()  # the next waiter may fit
            else:
                self.release(size, client)
            raise

    def release(self, size: int, client: str = "") -> None:
        """Release what `acquire` was called with."""
        size = self._bounded(size)
        self._free += size
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
        self._grant()

    @asynccontextmanager
    async def reserve(self, size: int, client: str = "") -> AsyncIterator[None]:
        """Acquire `size` for the duration of a block."""
        await self.acquire(size, client)
        try:
            yield
        finally:
            self.release(size, client)

    def _bounded(self, size: int) -> int:
        return min(size, self._client_limit)

    def _grant(self) -> None:
        """Serve clients in turns. A large size is not overtaken by smaller ones of others."""
        while ready := [client for client in [*self._waiting] if self._is_next_allowed(client)]:
            client = self._turns.next(ready)
            size = self._waiting[client][0].size
            if size > self._free:
                return
            self._free -= size
            self._held[client] += size
            self._turns.charge(client, size)
            self._waiting[client].popleft().granted.set_result(None)

    def _is_next_allowed(self, client: str) -> bool:
        """Whether the client waits and may hold what it waits for. Drops cancelled waiters."""
        waiting = self._waiting[client]
        while waiting and waiting[0].granted.done():
            waiting.popleft()
        if not waiting:
            del self._waiting[client]
            return False
        return self._held[client] + waiting[0].size <= self._client_limit
