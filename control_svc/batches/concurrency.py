"""Limits on the batch lines that run at a time, and on the memory that they use.

The concurrency limit adapts to the inference service: high enough that no slot is idle, low enough
that its queue does not overflow. RESOURCE_EXHAUSTED halves the limit, and successes raise it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

MAX_BACKOFF_S: Final = 10.0


class AdaptiveConcurrency:
    """A semaphore whose limit grows with successes and is halved by rejections (AIMD)."""

    def __init__(self, max_limit: int) -> None:
        self.max_limit = max_limit
        self._limit = float(max_limit)
        self._num_acquired = 0
        self._num_exclusive = 0
        """Exclusive permits that are held or waited for."""
        self._changed = asyncio.Condition()
        self._resume_at = 0.0
        self._epoch = 0
        """Number of reductions of the limit."""
        self._consecutive_rejections = 0

    @property
    def limit(self) -> int:
        """How many permits may be held now."""
        return int(self._limit)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[int]:
        """Wait for a permit, then for the end of the backoff. Yields the epoch of the permit."""
        async with self._acquire(
            lambda: not self._num_exclusive and self._num_acquired < self.limit
        ) as epoch:
            yield epoch

    @asynccontextmanager
    async def acquire_exclusive(self) -> AsyncIterator[int]:
        """As `acquire`, but nothing else holds a permit meanwhile. Has precedence over others."""
        self._num_exclusive += 1
        try:
            async with self._acquire(lambda: not self._num_acquired) as epoch:
                yield epoch
        finally:
            self._num_exclusive -= 1
            await asyncio.shield(self._notify())

    def record_success(self) -> None:
        """Raise the limit by one per `limit` successes."""
        self._consecutive_rejections = 0
        self._limit = min(self.max_limit, self._limit + 1 / self._limit)

    def record_rejection(self, epoch: int, retry_after_s: float) -> None:
        """Halve the limit and back off for at least `retry_after_s`.

        `epoch` is what `acquire` yielded. Rejections from earlier epochs are ignored: they were
        caused by the limit before its last reduction.
        """
        if epoch != self._epoch:
            return
        self._epoch += 1
        self._limit = max(1.0, self._limit / 2)
        backoff_s = retry_after_s * 2**self._consecutive_rejections
        backoff_s = min(backoff_s, max(MAX_BACKOFF_S, retry_after_s))
        self._consecutive_rejections = min(self._consecutive_rejections + 1, 10)
        self._resume_at = asyncio.get_running_loop().time() + backoff_s

    @asynccontextmanager
    async def _acquire(self, is_free: Callable[[], bool]) -> AsyncIterator[int]:
        async with self._changed:
            await self._changed.wait_for(is_free)
            self._num_acquired += 1
        try:
            backoff_s = self._resume_at - asyncio.get_running_loop().time()
            if backoff_s > 0:
                await asyncio.sleep(backoff_s)
            yield self._epoch
        finally:
            self._num_acquired -= 1
            # Shielded from a second cancellation: other tasks wait for the notification.
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
