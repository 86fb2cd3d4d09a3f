"""Batches events on their way to the frontend.

A token that is sent alone wakes a thread of each process on its way, half a millisecond of CPU
time; tokens of one interval are sent together.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from inference_svc.engine.events import (
    Cancelled,
    Delta,
    DiskCacheLoad,
    Embedded,
    Event,
    Failed,
    Finished,
    ModelLoad,
    Moved,
    Preempted,
    Resumed,
    Started,
)
from inference_svc.engine_client.messages import DeviceMemoryReport, SnapshotDone

Outputs = list[Event] | SnapshotDone | DeviceMemoryReport
# With more streams the interval grows in proportion to their number, up to a factor: each stream is
# a message. Sixteen streams in 7.2 s: 220 ms of processor time with 80 ms, 160 with 128.
_FEW_STREAMS = 10
_MOST_INTERVALS = 2.0


def usual_interval_s(*, threads: int, cores: int) -> float:
    """The default interval between messages, in seconds: longer where the engine uses every core.

    Measured with half a billion parameters on two cores: a message costs 0.9 ms of processor time
    in frontend and gateway. One stream, 12 ms a token: 0.39 ms a token with 40 ms instead of 0.94
    with none. Where the engine uses every core: 11.7 ms a token with 80 ms instead of 12.05.
    """
    return 0.08 if threads >= cores else 0.04


class _Item(NamedTuple):
    """News, the sequences of which it must not wait, and whether nothing else may wait either."""

    news: Outputs
    urgent: frozenset[int]
    ends_waiting: bool


class OutputBatcher:
    """A queue with one reader. `put` never waits, and wakes the reader only where it must."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`interval_s`: how long tokens of few streams may wait for others to go with; 0 sends them
        one by one."""
        self._interval_s = interval_s
        self._clock = clock
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._has_urgent = threading.Event()
        self._streams: set[int] = set()  # sequences that have started and not ended
        self._silent: set[int] = set()  # those of them that have said nothing yet
        # The reader's: what waits, in order, and which of it does not wait any longer.
        self._waiting: list[Outputs] = []
        self._urgent: set[int] = set()
        self._ends_waiting = False
        self._taken_at = -interval_s

    def put(self, news: Outputs) -> None:
        """Add news, after all that was put before."""
        item = self._item(news)
        self._queue.put(item)
        if item.urgent or item.ends_waiting:
            self._has_urgent.set()

    def _item(self, news: Outputs) -> _Item:
        if not isinstance(news, list):
            return _Item(news, frozenset(), ends_waiting=True)
        urgent, ends_waiting = set(), False
        for event in news:
            match event:
                case ModelLoad() | DiskCacheLoad():
                    pass
                case Delta(sequence_id):
                    if sequence_id in self._silent:
                        self._silent.remove(sequence_id)
                        urgent.add(sequence_id)
                case Started(sequence_id):
                    self._streams.add(sequence_id)
                    self._silent.add(sequence_id)
                    urgent.add(sequence_id)
                case Finished(sequence_id) | Failed(sequence_id) | Cancelled(sequence_id):
                    self._streams.discard(sequence_id)
                    self._silent.discard(sequence_id)
                    urgent.add(sequence_id)
                case Preempted() | Resumed() | Moved() | Embedded():
                    urgent.add(event.sequence_id)
                case _:
                    ends_waiting = True
        return _Item(news, frozenset(urgent), ends_waiting)

    @property
    def left_s(self) -> float:
        """How long tokens wait from now on; 0 or less: not at all."""
        growth = min(max(len(self._streams) / _FEW_STREAMS, 1.0), _MOST_INTERVALS)
        return self._taken_at + self._interval_s * growth - self._clock()

    def take(self) -> list[Outputs]:
        """What there is, in order, lists of events joined: waits until there is something, and
        until an interval after the last time; where a sequence has urgent news, all but the tokens
        of others at once."""
        while True:
            if (left_s := self.left_s) > 0:
                self._has_urgent.wait(left_s)
            self._gather()
            if self._ends_waiting or self.left_s <= 0:
                return self._take_all()
            if self._urgent:
                return self._take_urgent()

    def _gather(self) -> None:
        if not self._waiting:
            self._add(self._queue.get())
        # Cleared before the rest is taken: what is put from here on, and urgent, sets it again.
        self._has_urgent.clear()
        try:
            while True:
                self._add(self._queue.get_nowait())
        except Empty:
            return

    def _add(self, item: _Item) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, list) and isinstance(item.news, list):
            last += item.news
        else:
            self._waiting.append(item.news)
        self._urgent |= item.urgent
        self._ends_waiting |= item.ends_waiting

    def _take_all(self) -> list[Outputs]:
        taken, self._waiting = self._waiting, []
        self._urgent.clear()
        self._ends_waiting = False
        self._taken_at = self._clock()
        return taken

    def _take_urgent(self) -> list[Outputs]:
        """All but the tokens of sequences without urgent news, in order; the order between
        sequences matters to nobody."""
        events = [event for news in self._waiting if isinstance(news, list) for event in news]
        taken: list[Event] = []
        left: list[Event] = []
        for event in events:
            waits = isinstance(event, Delta) and event.sequence_id not in self._urgent
            (left if waits else taken).append(event)
        self._waiting = [left] if left else []
        self._urgent.clear()
        return [taken]
