"""A cache of the newest committed events of the streams that this process writes, so that its
readers need no queries.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

from control_svc.event_log.model import MAX_CHUNK_EVENTS, Event, StreamKey

TAIL_BYTES: Final = 64 * 1024
"""Maximum size of the cached events of a stream."""


class EventBatch(NamedTuple):
    """The next events for a reader."""

    events: Sequence[Event]
    """At most `MAX_CHUNK_EVENTS`."""
    is_newest: bool
    """Whether the last of them is the newest event."""
    is_end: bool
    """Whether the stream ends with them."""


class Tail:
    """The newest committed events of a stream."""

    def __init__(self) -> None:
        self.is_live = False
        """Whether the writer is in this process, so that all committed events are added here."""
        self.is_ended = False
        self.readers: set[asyncio.Event] = set()
        """Set when events are added or the writer closes."""
        self._events: deque[Event] = deque()
        self._num_bytes = 0
        self._next_number = 0
        self._num_opened = 0

    def open(self, next_number: int) -> int:
        """Register a writer; return its number, for `close`."""
        self.is_live, self._next_number = True, next_number
        self._events.clear()
        self._num_bytes = 0
        self._num_opened += 1
        return self._num_opened

    def add(self, events: Sequence[Event], *, is_end: bool = False) -> None:
        """Add committed events, unless there is a gap before them."""
        if not self.is_live or (events and events[0].number != self._next_number):
            return
        self.is_ended = is_end
        self._next_number += len(events)
        if self.readers:
            self._events.extend(events)
            self._num_bytes += sum(len(event.data) for event in events)
            while self._num_bytes > TAIL_BYTES:
                self._num_bytes -= len(self._events.popleft().data)
        else:
            self._events.clear()
            self._num_bytes = 0
        self.wake()

    def close(self, writer: int) -> None:
        """Unregister a writer, unless another one of this process has been opened since."""
        if writer == self._num_opened:
            self.is_live = self.is_ended
            self.wake()

    def wake(self) -> None:
        for changed in self.readers:
            changed.set()

    def read_from(self, number: int) -> EventBatch | None:
        """The next events from `number`; None if they are not cached."""
        first = self._events[0].number if self._events else self._next_number
        if not self.is_live or not first <= number <= self._next_number:
            return None
        start = number - first
        events = list(islice(self._events, start, start + MAX_CHUNK_EVENTS))
        is_newest = number + len(events) == self._next_number
        return EventBatch(events, is_newest, is_newest and self.is_ended)


class Tails:
    def __init__(self) -> None:
        self._tails: dict[StreamKey, Tail] = {}

    @contextmanager
    def open_for_writer(self, key: StreamKey, next_number: int) -> Iterator[Tail]:
        """Register the writer of a stream while the context is open."""
        tail = self._tails.setdefault(key, Tail())
        writer = tail.open(next_number)
        try:
            yield tail
        finally:
            tail.close(writer)
            self._remove_unused(key, tail)

    @contextmanager
    def open_for_reader(self, key: StreamKey, changed: asyncio.Event) -> Iterator[Tail]:
        """Register a reader of a stream while the context is open; `changed` wakes it."""
        tail = self._tails.setdefault(key, Tail())
        tail.readers.add(changed)
        try:
            yield tail
        finally:
            tail.readers.discard(changed)
            self._remove_unused(key, tail)

    def _remove_unused(self, key: StreamKey, tail: Tail) -> None:
        is_written = tail.is_live and not tail.is_ended
        # The key may have a new tail already.
        if not tail.readers and not is_written and self._tails.get(key) is tail:
            del self._tails[key]
