"""The running calls, so that a draining gateway can end those that outlast the grace period."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from svc_kit.errors import DomainError, Draining


class Stoppable(Protocol):
    """A call, or several, that can be ended from outside."""

    def stop(self, error: DomainError) -> None:
        """Cancel it; waiting callers get `error`."""


class ActiveCalls:
    """The running calls of one gateway."""

    def __init__(self) -> None:
        self._running: set[Stoppable] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the gateway takes nothing new."""
        return self._closed

    def close(self) -> None:
        """Refuses further calls with Draining."""
        self._closed = True

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def holding(self, calls: Stoppable) -> Iterator[None]:
        """Counts the calls as running. Raises Draining when nothing new is taken."""
        if self._closed:
            raise Draining
        self._running.add(calls)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(calls)
            if not self._running:
                self._idle.set()

    async def finished(self, grace_s: float) -> bool:
        """Waits until nothing runs; False when something still does after `grace_s` seconds."""
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def stop_all(self, error: DomainError) -> None:
        """Ends every running call with `error`."""
        for calls in list(self._running):
            calls.stop(error)
