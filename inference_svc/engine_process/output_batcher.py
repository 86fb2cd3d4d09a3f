"""Batches events for the frontend.

A token is sent when it is computed, unless the frontend is behind (`frontend_load.py`): then it has
less than its share of the cores, where each message costs it and the gateway about half a
millisecond of CPU time, and the tokens of an interval are sent together.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from inference_svc.engine import events
from inference_svc.engine_client.messages import DeviceMemoryReport, SnapshotDone

Output = list[events.Event] | SnapshotDone | DeviceMemoryReport
_DELAYED = (events.Delta, events.PromptTokens)
# Above _FEW_STREAMS the interval grows in proportion to the number of streams, up to a factor: each
# stream is a message.
_FEW_STREAMS = 16
_MAX_GROWTH = 2.0
MOST_DELAY_S: Final = 0.02
"""How long tokens of up to 16 streams wait for a frontend that is behind."""
_POLL_S: Final = 0.001


class _Item(NamedTuple):
    """An output, the sequences whose outputs must be sent now, and whether everything must be."""

    output: Output
    urgent: frozenset[int]
    flush_all: bool


class OutputBatcher:
    """A queue with one reader. `put` never blocks."""

    def __init__(
        self,
        interval_s: float,
        is_behind: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval_s` is how long the tokens of up to 16 streams may be delayed, while the
        receiver `is_behind`, if that is given; 0 disables batching."""
        self._interval_s = interval_s
        self._is_behind = is_behind
        self._clock = clock
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._has_urgent = threading.Event()
        self._streams: set[int] = set()  # sequences that have started and not ended
        self._awaiting_first_token: set[int] = set()
        # Used by the reader only.
        self._pending: list[Output] = []
        self._urgent: set[int] = set()
        self._flush_all = False
        self._last_sent_at = -interval_s

    def put(self, output: Output) -> None:
        item = self._classify(output)
        self._queue.put(item)
        if item.urgent or item.flush_all:
            self._has_urgent.set()

    def _classify(self, output: Output) -> _Item:
        if not isinstance(output, list):
            return _Item(output, frozenset(), flush_all=True)
        urgent, flush_all = set(), False
        for event in output:
            if isinstance(event, events.Delta):  # nearly all are
                if event.sequence_id in self._awaiting_first_token:
                    self._awaiting_first_token.remove(event.sequence_id)
                    urgent.add(event.sequence_id)
                continue
            match event:
                case events.ModelLoad() | events.DiskCacheLoad() | events.PromptTokens():
                    pass
                case events.Started(sequence_id):
                    self._streams.add(sequence_id)
                    self._awaiting_first_token.add(sequence_id)
                    urgent.add(sequence_id)
                case (
                    events.Finished(sequence_id)
                    | events.Failed(sequence_id)
                    | events.Cancelled(sequence_id)
                ):
                    self._streams.discard(sequence_id)
                    self._awaiting_first_token.discard(sequence_id)
                    urgent.add(sequence_id)
                case events.Preempted() | events.Resumed() | events.Moved() | events.Embedded():
                    urgent.add(event.sequence_id)
                case _:
                    flush_all = True
        return _Item(output, frozenset(urgent), flush_all)

    @property
    def _is_due(self) -> bool:
        if self.remaining_s <= 0:
            return True
        return self._is_behind is not None and not self._is_behind()

    @property
    def remaining_s(self) -> float:
        """Seconds until pending tokens are sent; 0 or less if they are due."""
        growth = min(max(len(self._streams) / _FEW_STREAMS, 1.0), _MAX_GROWTH)
        return self._last_sent_at + self._interval_s * growth - self._clock()

    @property
    def _pause_s(self) -> float:
        """How long to wait before asking again whether pending tokens are due."""
        return max(self.remaining_s, 0.0) if self._is_behind is None else _POLL_S

    def get(self) -> list[Output]:
        """Return pending outputs in order, with adjacent lists of events joined.

        Blocks until there is an output, and the receiver is not behind or the interval since the
        last full batch of tokens has passed. If a sequence has an urgent event, returns at once
        with everything but the tokens of others.
        """
        while True:
            while not self._is_due and not self._has_urgent.wait(self._pause_s):
                pass
            self._drain_queue()
            if self._flush_all or self._is_due:
                return self._pop_all()
            if self._urgent:
                return self._pop_urgent()

    def _drain_queue(self) -> None:
        if not self._pending:
            self._add(self._queue.get())
        # Clear before draining: an urgent output that is put from here on sets it again.
        self._has_urgent.clear()
        try:
            while True:
                self._add(self._queue.get_nowait())
        except Empty:
            return

    def _add(self, item: _Item) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, list) and isinstance(item.output, list):
            last += item.output
        else:
            self._pending.append(item.output)
        self._urgent |= item.urgent
        self._flush_all |= item.flush_all

    def _pop_all(self) -> list[Output]:
        outputs, self._pending = self._pending, []
        self._urgent.clear()
        self._flush_all = False
        if any(isinstance(event, _DELAYED) for event in _events(outputs)):
            self._last_sent_at = self._clock()
        return outputs

    def _pop_urgent(self) -> list[Output]:
        """Return all events but the tokens of sequences without an urgent event. The order is only
        preserved within a sequence."""
        batch: list[events.Event] = []
        delayed: list[events.Event] = []
        for event in _events(self._pending):
            waits = isinstance(event, _DELAYED) and event.sequence_id not in self._urgent
            (delayed if waits else batch).append(event)
        self._pending = [delayed] if delayed else []
        self._urgent.clear()
        return [batch]


def _events(outputs: Iterable[Output]) -> Iterator[events.Event]:
    return (event for output in outputs if isinstance(output, list) for event in output)
