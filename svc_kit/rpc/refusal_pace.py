"""The pace of refusals: projects that repeat calls which a limit refuses wait for the answers.

A refusal costs nearly as much as a call that is served. Callers who wait before they try again, as
RetryInfo asks, do not notice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

RATE: Final = 20
"""Refusals of a project in a second that are not delayed."""
MAX_DELAY_S: Final = 2.0
MAX_WAITING: Final = 64
"""Refusals of a project that wait. Further ones are answered at once, so that they do not take the
places of calls."""
_MARGIN_S: Final = 0.1
"""Left of a call's deadline for its answer."""
_MAX_PROJECTS: Final = 4096
"""So many are remembered after their turns."""


class RefusalPace:
    """When the refusals of each project are answered."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._turns: dict[str, float] = {}
        """When the next refusal has its turn. It is answered up to a second before that."""
        self._waiting: Counter[str] = Counter()

    def add(self, project: str) -> float:
        """Count a refusal; return the seconds until it is answered."""
        now = self._now()
        turn = max(self._turns.get(project, 0.0), now)
        self._turns[project] = min(turn + 1 / RATE, now + 1 + MAX_DELAY_S)
        if len(self._turns) > _MAX_PROJECTS:
            self._turns = {name: each for name, each in self._turns.items() if each > now}
        return min(max(0.0, turn - now - 1), MAX_DELAY_S)

    async def wait(self, project: str, time_remaining_s: float | None) -> None:
        """Wait until a refusal is answered, at most MAX_DELAY_S, and not beyond the time that the
        call has."""
        delay_s = self.add(project)
        if time_remaining_s is not None:
            delay_s = min(delay_s, time_remaining_s - _MARGIN_S)
        if delay_s <= 0 or self._waiting[project] >= MAX_WAITING:
            return
        self._waiting[project] += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting[project] -= 1
            if not self._waiting[project]:
                del self._waiting[project]
