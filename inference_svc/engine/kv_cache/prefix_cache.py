"""The prefix cache: states that lost their slot, in memory, evicted by least recent use.

An entry holds the cells of a slot and their tokens, under the cache key of their owner.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

from inference_svc.engine.events import TierLoad
from inference_svc.engine.saved_state import SavedPrefix

MAX_ENTRIES = 512


class PrefixCache:
    """All saved prefixes of one model. 0 bytes keep nothing. `on_evicted` gets those of stored
    objects that have to go."""

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self.on_evicted: Callable[[SavedPrefix], None] = lambda _: None
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[int, SavedPrefix] = OrderedDict()
        self._bytes = self._reserved = 0
        self._num_hits = self._num_written = self._num_evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes in use, those of preempted sequences included."""
        return self._bytes + self._reserved

    @property
    def num_reserved(self) -> int:
        """Bytes of preempted sequences."""
        return self._reserved

    @property
    def capacity(self) -> int:
        """Bytes that entries may take."""
        return self._max_bytes - self._reserved if self._max_entries > 0 else 0

    @property
    def is_enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._max_bytes > 0 and self._max_entries > 0

    def load(self, num_misses: int) -> TierLoad:
        """Size and hits; misses are counted elsewhere."""
        return TierLoad(
            len(self),
            self.num_bytes,
            self._max_entries,
            self._max_bytes,
            self._num_hits,
            num_misses,
            self._num_written,
            self._num_evicted,
        )

    def find(
        self, prompt: Sequence[int], key: bytes, *, limit: int
    ) -> tuple[SavedPrefix | None, int]:
        """The entry that gives most of a prompt, and how much."""
        best, most = None, 0
        for entry in self._entries.values():
            shared = entry.shared(prompt, key, limit=limit)
            if shared > most:
                best, most = entry, shared
        return best, most

    def record_hit(self, entry: SavedPrefix) -> None:
        """Note that an entry served."""
        if id(entry) in self._entries:
            self.touch(entry)
            self._num_hits += 1

    def touch(self, entry: SavedPrefix) -> None:
        """Let an entry that is here be the last to go."""
        self._entries.move_to_end(id(entry))

    def find_sequence(self, request_id: str, choice: int) -> SavedPrefix | None:
        """What was kept of a sequence that has ended."""
        for entry in self._entries.values():
            origin = entry.origin
            if origin is not None and (origin.request_id, origin.choice) == (request_id, choice):
                return entry
        return None

    def find_snapshot(self, snapshot_id: str) -> SavedPrefix | None:
        """The entry that a snapshot was restored to."""
        entries = self._entries.values()
        return next((entry for entry in entries if entry.snapshot_id == snapshot_id), None)

    def put(self, entry: SavedPrefix) -> bool:
        """Keep an entry, in the place of those that it continues; False where it has no room."""
        if len(entry.state) > self.capacity:
            if len(entry.state) <= self._max_bytes:  # else nothing could bring it back
                self._evict(entry)
            return False
        for old in list(self._entries.values()):
            if _replaces(entry, old):
                self._drop(old)
        self._entries[id(entry)] = entry
        self._bytes += len(entry.state)
        self._num_written += 1
        self._make_room(0)
        return True

    def reserve(self, size: int) -> bool:
        """Make room for a preempted sequence's state; False where there is not enough."""
        if size + self._reserved > self._max_bytes:
            return False
        self._make_room(size)
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        """A preempted sequence's state is gone."""
        self._reserved -= size

    def forget_objects(self, object_ids: Container[str]) -> None:
        """Forget what is part of stored objects that are gone."""
        for entry in list(self._entries.values()):
            if entry.kept_for and entry.kept_for in object_ids:
                self._drop(entry)

    def clear(self) -> int:
        """Forget every entry; returns their tokens."""
        count = sum(len(entry.tokens) for entry in self._entries.values())
        self._entries.clear()
        self._bytes = 0
        return count

    def _make_room(self, size: int) -> None:
        while self._entries and (
            self.num_bytes + size > self._max_bytes or len(self._entries) > self._max_entries
        ):
            entry = next(iter(self._entries.values()))
            self._drop(entry)
            self._num_evicted += 1
            self._evict(entry)

    def _evict(self, entry: SavedPrefix) -> None:
        if entry.kept_for:
            self.on_evicted(entry)

    def _drop(self, entry: SavedPrefix) -> None:
        del self._entries[id(entry)]
        self._bytes -= len(entry.state)


def _replaces(entry: SavedPrefix, old: SavedPrefix) -> bool:
    """Whether `entry` makes `old` redundant. A kept or restored entry is looked up by its key and
    is replaced only by the next entry with the same key.
    """
    if _name(entry) is not None and _name(entry) == _name(old):
        return True
    length = len(old.tokens)
    continues = old.shared(entry.tokens, entry.key, limit=length) == length
    return continues and not entry.whole and old.origin is None


def _name(entry: SavedPrefix) -> tuple[object, ...] | None:
    """What an entry is asked for by: its snapshot, or its owner's sequence."""
    if entry.snapshot_id:
        return (entry.snapshot_id,)
    if entry.origin is None:
        return None
    return entry.key, entry.origin.request_id, entry.origin.choice
