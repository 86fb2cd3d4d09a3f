"""The newest committed events of streams that this process writes, so that readers here need no
query.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

from control_svc.event_log.model import MAX_CHUNK_EVENTS, Event, StreamKey

TAIL_BYTES: Final = 64 * 1024
"""What is kept for the followers of one stream."""


class NewEvents(NamedTuple):
    """What a follower has not seen."""

    events: Sequence[Event]
    """At most `MAX_CHUNK_EVENTS`."""
    is_newest: bool
    """There are no more yet."""
    is_end: bool
    """And there never will be."""


class Tail:
    """The newest committed events of a stream."""

    def __init__(self) -> None:
        self.is_live = False
        """Whether the stream's writer is here, as far as it knows itself: then nothing is committed
        that is not added."""
        self.is_ended = False
        self.followers: set[asyncio.Event] = set()
        """Set when there is something new."""
        self._events: deque[Event] = deque()
        self._num_bytes = 0
        self._next_number = 0
        self._num_opened = 0

    def open(self, next_number: int) -> int:
        """Register a writer; returns its number, for `close`."""
        self.is_live, self._next_number = True, next_number
        self._events.clear()
        self._num_bytes = 0
        self._num_opened += 1
        return self._num_opened

    def add(self, events: Sequence[Event], *, is_end: bool = False) -> None:
        """Events have been committed, unless another writer's are not known here."""
        if not self.is_live or (events and events[0].number != self._next_number):
            return
        self.is_ended = is_end
        self._next_number += len(events)
        if self.followers:
            self._keep(events)
        else:
            self._events.clear()
            self._num_bytes = 0
        self.wake()

    def close(self, opened: int) -> None:
        """Unregister a writer. A successor in this process that writes to it keeps the tail."""
        if opened == self._num_opened:
            self.is_live = self.is_ended
            self.wake()

    def wake(self) -> None:
        """Let followers look."""
        for changed in self.followers:
            changed.set()

    def read_from(self, number: int) -> NewEvents | None:
        """What there is from a number on; None: it is not known here."""
        first = self._events[0].number if self._events else self._next_number
        if not self.is_live or not first <= number <= self._next_number:
            return None
        start = number - first
        events = list(islice(self._events, start, start + MAX_CHUNK_EVENTS))
        is_newest = number + len(events) == self._next_number
        return NewEvents(events, is_newest, is_newest and self.is_ended)

    def _keep(self, events: Sequence[Event]) -> None:
        self._events.extend(events)
        self._num_bytes += sum(len(event.data) for event in events)
        while self._num_bytes > TAIL_BYTES:
            self._num_bytes -= len(self._events.popleft().data)


class Tails:
    """The tails of the streams that are written or followed here."""

    def __init__(self) -> None:
        self._tails: dict[StreamKey, Tail] = {}

    @contextmanager
    def open_for_writer(self, key: StreamKey, next_number: int) -> Iterator[Tail]:
        """The tail of a stream whose writer is here meanwhile."""
        tail = self._of(key)
        opened = tail.open(next_number)
        try:
            yield tail
        finally:
            tail.close(opened)
            self._forget(key, tail)

    @contextmanager
    def open_for_reader(self, key: StreamKey, changed: asyncio.Event) -> Iterator[Tail]:
        """The tail of a stream, which sets `changed` meanwhile when there is something new."""
        tail = self._of(key)
        tail.followers.add(changed)
        try:
            yield tail
        finally:
            tail.followers.discard(changed)
            self._forget(key, tail)

    def _of(self, key: StreamKey) -> Tail:
        return self._tails.setdefault(key, Tail())

    def _forget(self, key: StreamKey, tail: Tail) -> None:
        is_written = tail.is_live and not tail.is_ended
        is_wanted = bool(tail.followers) or is_written
        if not is_wanted and self._tails.get(key) is tail:  # it may be another one's by now
            del self._tails[key]
