"""The prefix cache: saved states of slots in memory, evicted in LRU order.

An entry has the KV cells of a slot and their tokens, under the cache key of their owner.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence

from inference_svc.engine.events import TierLoad
from inference_svc.engine.media import MediaSpan
from inference_svc.engine.saved_state import SavedPrefix

log = logging.getLogger(__name__)
MAX_ENTRIES = 512


class PrefixCache:
    """The saved prefixes of one model; disabled with `max_bytes` 0.

    `on_evicted` is called with evicted entries that are archived.
    """

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self.on_evicted: Callable[[SavedPrefix], None] = lambda _: None
        self.max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[int, SavedPrefix] = OrderedDict()
        self._new: dict[int, SavedPrefix] = {}  # archived ones that `pop_new` has not returned
        self._bytes = self._reserved = 0
        self._has_warned = False
        self._num_hits = self._num_written = self._num_evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: SavedPrefix) -> bool:
        return self._entries.get(id(entry)) is entry

    @property
    def entries(self) -> Iterable[SavedPrefix]:
        """All entries, the least recently used first."""
        return self._entries.values()

    def pop_new(self) -> SavedPrefix | None:
        """Return an entry that is archived and not from a file, each one once; None if there is no
        other."""
        return self._new.popitem()[1] if self._new else None

    @property
    def to_archive(self) -> list[SavedPrefix]:
        """The entries that are archived, the least recently used first."""
        return [entry for entry in self._entries.values() if entry.kept_for]

    @property
    def num_bytes(self) -> int:
        """Bytes in use, including those of preempted sequences."""
        return self._bytes + self._reserved

    @property
    def num_reserved(self) -> int:
        """Bytes of preempted sequences."""
        return self._reserved

    @property
    def capacity(self) -> int:
        """Bytes available to entries."""
        return self.max_bytes - self._reserved if self._max_entries > 0 else 0

    @property
    def is_enabled(self) -> bool:
        """Whether entries can be stored."""
        return self.max_bytes > 0 and self._max_entries > 0

    def fits(self, num_bytes: int) -> bool:
        """Whether a state could ever be stored; that one could not is logged once."""
        if num_bytes <= self.max_bytes:
            return True
        if self.is_enabled and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a prefix of %d MiB is not kept: engine.saved_prefix_mib allows %d",
                *(num_bytes >> 20, self.max_bytes >> 20),
            )
        return False

    def load(self, num_misses: int) -> TierLoad:
        """Size and hits, for the metrics. The caller counts misses."""
        return TierLoad(
            len(self),
            self.num_bytes,
            self._max_entries,
            self.max_bytes,
            self._num_hits,
            num_misses,
            self._num_written,
            self._num_evicted,
        )

    def find(
        self, prompt: Sequence[int], key: bytes, *, limit: int, media: tuple[MediaSpan, ...] = ()
    ) -> tuple[SavedPrefix | None, int]:
        """Return the entry with the longest common prefix with the prompt, and its length.

        The length is at most `limit` tokens, and does not end inside a chunk of `media`; (None, 0)
        if no entry shares a token.
        """
        best, best_length = None, 0
        for entry in self._entries.values():
            shared = entry.shared(prompt, key, limit=limit, media=media)
            if shared > best_length:
                best, best_length = entry, shared
        return best, best_length

    def record_hit(self, entry: SavedPrefix) -> None:
        if id(entry) in self._entries:
            self.touch(entry)
            self._num_hits += 1

    def touch(self, entry: SavedPrefix) -> None:
        """Mark a stored entry as the most recently used."""
        self._entries.move_to_end(id(entry))

    def find_sequence(self, request_id: str, choice: int) -> SavedPrefix | None:
        """Return the saved state of an ended sequence."""
        for entry in self._entries.values():
            origin = entry.origin
            if origin is not None and (origin.request_id, origin.choice) == (request_id, choice):
                return entry
        return None

    def find_snapshot(self, snapshot_id: str) -> SavedPrefix | None:
        """Return the entry of a restored snapshot."""
        entries = self._entries.values()
        return next((entry for entry in entries if entry.snapshot_id == snapshot_id), None)

    def put(self, entry: SavedPrefix) -> bool:
        """Store an entry and remove those that it replaces; return False if it does not fit."""
        if len(entry.state) > self.capacity:
            if self.fits(len(entry.state)):  # a larger state could never be restored
                self._evict(entry)
            return False
        for old in list(self._entries.values()):
            if _replaces(entry, old):
                self._drop(old)
        self._entries[id(entry)] = entry
        self._bytes += len(entry.state)
        self._num_written += 1
        if entry.kept_for and not entry.snapshot_id:
            self._new[id(entry)] = entry
        self._make_room(0)
        return True

    def reserve(self, size: int) -> bool:
        """Reserve bytes for a preempted sequence; return False if there are too few."""
        if size + self._reserved > self.max_bytes:
            return False
        self._make_room(size)
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        """Release the bytes of a preempted sequence."""
        self._reserved -= size

    def unlink_owners(self, owners: Container[str]) -> None:
        """Remove the entries of deleted owners."""
        for entry in self.to_archive:
            if entry.kept_for in owners:
                self._drop(entry)

    def clear(self) -> int:
        """Remove all entries and return their number of tokens."""
        count = sum(len(entry.tokens) for entry in self._entries.values())
        self._entries.clear()
        self._new.clear()
        self._bytes = 0
        return count

    def _make_room(self, size: int) -> None:
        while self._entries and (
            self.num_bytes + size > self.max_bytes or len(self._entries) > self._max_entries
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
        self._new.pop(id(entry), None)
        self._bytes -= len(entry.state)


def _replaces(entry: SavedPrefix, old: SavedPrefix) -> bool:
    """Whether `entry` makes `old` redundant.

    An entry with a name is looked up by it, so only an entry of the same name replaces it.
    """
    if _name(entry) is not None and _name(entry) == _name(old):
        return True
    length = len(old.tokens)
    continues = old.shared(entry.tokens, entry.key, limit=length) == length
    return continues and entry.min_tokens <= length and old.origin is None


def _name(entry: SavedPrefix) -> tuple[object, ...] | None:
    """The snapshot or the sequence by which an entry is looked up; None if it has neither."""
    if entry.snapshot_id:
        return (entry.snapshot_id,)
    if entry.origin is None:
        return None
    return entry.key, entry.origin.request_id, entry.origin.choice
