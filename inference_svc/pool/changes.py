"""What has changed about models, for whoever waits for it."""

import asyncio
from collections.abc import Callable

from inference_svc.catalog import KnownModel


class Changes:
    """Wakes waiters at every change; a number says which changes a watcher has seen.

    `on_change` hears of each change that others may see.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._event = asyncio.Event()
        self._version = 0

    def of(self, known: KnownModel) -> None:
        """A model has changed."""
        self._version += 1
        known.version = self._version
        self.told()

    def told(self) -> None:
        """Something has changed that is no model's."""
        self.wake()
        self._on_change()

    def wake(self) -> None:
        """Let everyone who waits look again; who comes later waits for the next change."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once a condition holds that changes bring about."""
        while not holds():
            await self._event.wait()
