"""The engine's news on its way to the frontend: what can wait a moment travels together.

A token that travels alone wakes a thread of each process on its way to the client, half a
millisecond of processor time altogether, which on a machine whose cores all compute is taken from
the next token. Nobody reads that fast: so tokens of an interval make one message for each stream,
and with many streams, which all cost that much, the interval is longer. Everything else
(beginnings, ends, failures), a sequence's first token, and one after a pause, goes at once.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from inference_svc.engine.events import (
    ArchiveLoad,
    Cancelled,
    Delta,
    Event,
    Failed,
    Finished,
    ModelLoad,
    Started,
)
from inference_svc.runtime.messages import DevicesTaken, SnapshotDone

News = list[Event] | SnapshotDone | DevicesTaken

# With more streams than so many the interval grows as their number does, up to a factor.
_FEW_STREAMS = 10
_MOST_INTERVALS = 2.0


def usual_interval_s(*, threads: int, cores: int) -> float:
    """How long tokens wait where the operator does not say: what wakes frontends costs more where
    no core is left for them."""
    return 0.08 if threads >= cores else 0.04


class Outbox:
    """A queue with one reader. `put` never waits, and wakes the reader only where it must."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`interval_s`: how long tokens of few streams may wait for others to go with; 0 sends them
        one by one."""
        self._interval_s = interval_s
        self._clock = clock
        self._news: SimpleQueue[News] = SimpleQueue()
        self._urgent = threading.Event()
        self._streams: set[int] = set()  # sequences that have started and not ended
        self._silent: set[int] = set()  # those of them that have said nothing yet
        self._taken_at = -interval_s

    def put(self, news: News) -> None:
        """Add news, after all that was put before."""
        is_urgent = not isinstance(news, list) or any([*map(self._is_urgent, news)])
        self._news.put(news)
        if is_urgent:
            self._urgent.set()

    def _is_urgent(self, event: Event) -> bool:
        match event:
            case ModelLoad() | ArchiveLoad():
                return False
            case Delta(sequence_id):
                is_first = sequence_id in self._silent
                self._silent.discard(sequence_id)
                return is_first
            case Started(sequence_id):
                self._streams.add(sequence_id)
                self._silent.add(sequence_id)
            case Finished(sequence_id) | Failed(sequence_id) | Cancelled(sequence_id):
                self._streams.discard(sequence_id)
                self._silent.discard(sequence_id)
        return True

    @property
    def left_s(self) -> float:
        """How long tokens wait from now on; 0 or less: not at all."""
        growth = min(max(len(self._streams) / _FEW_STREAMS, 1.0), _MOST_INTERVALS)
        return self._taken_at + self._interval_s * growth - self._clock()

    def take(self) -> list[News]:
        """What there is, in order, lists of events joined: waits until there is something, and
        until an interval after the last time unless something is urgent."""
        left_s = self.left_s
        if left_s > 0:
            self._urgent.wait(left_s)
        taken = [self._news.get()]
        # Cleared before the rest is taken: what is put from here on, and urgent, sets it again.
        self._urgent.clear()
        while (more := self._next()) is not None:
            last = taken[-1]
            if isinstance(last, list) and isinstance(more, list):
                last += more
            else:
                taken.append(more)
        self._taken_at = self._clock()
        return taken

    def _next(self) -> News | None:
        try:
            return self._news.get_nowait()
        except Empty:
            return None
