"""Tracks running calls, so that a draining gateway can wait for them and cancel the rest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from svc_kit.errors import CallerCancelled, DomainError, Draining


class Stoppable(Protocol):
    """One or several calls that can be cancelled."""

    def stop(self, error: DomainError) -> None:
        """Cancel the calls. Waiting callers get `error`. Further calls have no effect."""


class ActiveCalls:
    def __init__(self) -> None:
        self._running: set[Stoppable] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether new calls are rejected, or will be soon."""
        return self._closing

    def announce_close(self) -> None:
        """Report that new calls will be rejected; they are not yet."""
        self._closing = True

    @property
    def closed(self) -> bool:
        """Whether new calls are rejected."""
        return self._closed

    def close(self) -> None:
        """Reject new calls with Draining."""
        self._closed = self._closing = True

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def track(self, calls: Stoppable) -> Iterator[None]:
        """Count the calls as running during the block, and cancel them when it ends. Raises
        Draining if new calls are rejected."""
        self._running.add(calls)
        self._idle.clear()
        try:
            if self._closed:
                raise Draining
            yield
        finally:
            calls.stop(CallerCancelled())
            self._running.discard(calls)
            if not self._running:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is running. Returns False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def stop_all(self, error: DomainError) -> None:
        """Cancel every running call with `error`."""
        for calls in list(self._running):
            calls.stop(error)
