"""Whether the frontend, the engine's parent, has less than its share of the cores."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

WINDOW_S: Final = 0.1
"""The time over which it is measured."""
WAITING_SHARE: Final = 0.1
"""The least share of the time that its thread waits for a core if it lacks cores."""
BUSY_SHARE: Final = 0.5
"""The least share that it runs or waits then: one that is seldom woken waits too, but rarely."""
_UNKNOWN: Final = (0, 0)


class _Sample(NamedTuple):
    """The clock, and how long the thread has run and waited for a core since it began. All are in
    nanoseconds."""

    at: int
    run: int
    waited: int


class FrontendLoad:
    """Measures the thread in which the frontend's event loop runs.

    `has_unread` tells whether the frontend has not read all that was sent to it, which needs no
    measurement.
    """

    def __init__(
        self,
        has_unread: Callable[[], bool],
        times: Callable[[], tuple[int, int]] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`times` are those of `_Sample`, in place of the parent's; `clock` is in nanoseconds."""
        self._has_unread = has_unread
        self._times = times or ThreadTimes(os.getppid())
        self._clock = clock
        self._last = _Sample(clock(), *self._times())
        self._lacks_cores = False

    def is_behind(self) -> bool:
        """Whether tokens should be sent together."""
        now = self._clock()
        if now - self._last.at >= WINDOW_S * 1e9:
            self._measure(now)
        return self._lacks_cores or self._has_unread()

    def _measure(self, now: int) -> None:
        last = self._last
        self._last = sample = _Sample(now, *self._times())
        elapsed, waited = sample.at - last.at, sample.waited - last.waited
        busy = sample.run - last.run + waited
        self._lacks_cores = busy >= BUSY_SHARE * elapsed and waited >= WAITING_SHARE * elapsed


class ThreadTimes:
    """How long the main thread of a process has run and waited, as Linux tells it in
    /proc/PID/schedstat; nothing elsewhere."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/schedstat")

    def __call__(self) -> tuple[int, int]:
        try:
            run, waited, _ = self._path.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return _UNKNOWN
        return int(run), int(waited)
