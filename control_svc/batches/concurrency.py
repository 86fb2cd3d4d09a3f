"""Limits how many lines of batches run at a time, and how many bytes they hold.

The limit adapts: more than the slots of the inference service, so that none is idle, but fewer than
its queue. RESOURCE_EXHAUSTED lowers it, successes raise it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

LONGEST_PAUSE_S: Final = 10.0


class AdaptiveConcurrency:
    """Places for lines that run."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = float(most)
        self._num_taken = 0
        self._num_alone = 0
        """How many want, or have, all places."""
        self._changed = asyncio.Condition()
        self._resume_at = 0.0
        self._round = 0
        """How often it was too much; who began in an earlier round knows nothing new."""
        self._failures = 0
        """Rounds in a row in which nothing ended well."""

    @property
    def limit(self) -> int:
        """How many may run now."""
        return int(self._limit)

    @asynccontextmanager
    async def one(self) -> AsyncIterator["Permit"]:
        """A place beside others."""
        async with self._held(self._has_room) as place:
            yield place

    @asynccontextmanager
    async def alone(self) -> AsyncIterator["Permit"]:
        """All places: nothing else runs meanwhile."""
        self._num_alone += 1
        try:
            async with self._held(lambda: not self._num_taken) as place:
                yield place
        finally:
            self._num_alone -= 1
            await asyncio.shield(self._notify())

    def went_well(self) -> None:
        """A line has ended."""
        self._failures = 0
        self._limit = min(self.most, self._limit + 1 / self._limit)

    def was_too_much(self, in_round: int, wait_s: float) -> None:
        """A line was sent back; `wait_s` is what was asked for before the next try."""
        if in_round != self._round:
            return
        self._round += 1
        self._limit = max(1.0, self._limit / 2)
        pause = min(wait_s * 2**self._failures, max(LONGEST_PAUSE_S, wait_s))
        self._failures = min(self._failures + 1, 10)
        self._resume_at = asyncio.get_running_loop().time() + pause

    @asynccontextmanager
    async def _held(self, has_room: Callable[[], bool]) -> AsyncIterator["Permit"]:
        async with self._changed:
            await self._changed.wait_for(has_room)
            self._num_taken += 1
        try:
            await self._pause()
            yield Permit(self, self._round)
        finally:
            self._num_taken -= 1
            # Not to be broken off by a second cancellation: others wait for it.
            await asyncio.shield(self._notify())

    def _has_room(self) -> bool:
        return not self._num_alone and self._num_taken < self.limit

    async def _pause(self) -> None:
        wait_s = self._resume_at - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Permit:
    """A place that is taken, by a line that began in a round."""

    def __init__(self, places: AdaptiveConcurrency, in_round: int) -> None:
        self._places = places
        self._round = in_round

    def went_well(self) -> None:
        """The line has ended."""
        self._places.went_well()

    def was_too_much(self, wait_s: float) -> None:
        """The line was sent back."""
        self._places.was_too_much(self._round, wait_s)


class ByteSemaphore:
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
