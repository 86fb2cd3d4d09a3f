"""Which prefixes are written to the disk prefix cache while they are still in use: those that have
grown, in the background, so that a crash loses little; and all before the engine ends.

A copy is made on the step thread, between two steps, and written beside it.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from inference_svc.engine.engine import Engine
from inference_svc.engine.kv_cache.allocator import MIN_SAVED_TOKENS
from inference_svc.engine.request import is_of_project
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.slots import Slot
from inference_svc.engine_process.prefix_offload import (
    MIN_GROWTH,
    PrefixOffloader,
    least_growth,
)

_Warm = Slot | SavedPrefix
_MAX_SHARE: Final = 0.02
"""The share of the time that copying and writing may take while there is other work."""
_MIN_INTERVAL_S: Final = 5.0
"""The least time between two copies while there is other work."""
_SETTLED_S: Final = 0.5
"""How long the engine must have no work before copies are made at once: clients that send request
after request leave shorter gaps."""


class WarmPrefixes:
    """Archives what is in slots and memory, one prefix at a time. Its methods are called on the
    step thread; `clock` gives seconds."""

    def __init__(
        self, engine: Engine, offloader: PrefixOffloader, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._offloader = offloader
        self._clock = clock
        self._is_writing = False
        self._may_have_grown = False
        self._next_copy_at = clock() + _MIN_INTERVAL_S
        self._copy_s = 0.0
        self._settled_at: float | None = None  # None while there is other work
        self._remaining: deque[_Warm] = deque()
        self._on_archived: list[Callable[[int], None]] = []
        self._num_archived = 0

    def archive_grown(self, *, is_busy: bool) -> None:
        """Start to archive the prefix that has grown most, if it is time. Called after each step
        with whether there is other work."""
        if not self._offloader.is_ready:
            return
        now = self._clock()
        if is_busy:
            self._settled_at, self._may_have_grown = None, True
        elif self._settled_at is None:
            self._settled_at = now + _SETTLED_S
        due_at = self._next_copy_at if self._settled_at is None else self._settled_at
        if now < due_at or self._is_writing or not self._may_have_grown:
            return
        self._may_have_grown = self._archive_most_grown()
        self._copy_s = self._clock() - now
        self._delay_next_copy(self._copy_s)

    @property
    def wait_s(self) -> float | None:
        """Seconds until `archive_grown` has something to do if no work arrives; None for ever."""
        if self._settled_at is None or self._is_writing or not self._may_have_grown:
            return None
        return max(self._settled_at - self._clock(), 0.0)

    def archive_all(self, then: Callable[[int], None]) -> None:
        """Archive everything that is not on disk, the longest first, but no short prefixes of
        projects, and call `then` with the number of files. Ends at the first one that cannot be
        written."""
        self._on_archived.append(then)
        if self._offloader.is_ready:
            self._offloader.remove_missing(self._archive_rest)
        else:
            self._archive_next()

    def _archive_rest(self) -> None:
        engine = self._engine
        warm: list[_Warm] = [*engine.slots_to_archive(), *engine.prefix_cache.to_archive]
        warm = [
            each
            for each in warm
            if len(each.tokens) >= MIN_GROWTH or not is_of_project(each.kept_for)
        ]
        self._remaining = deque(sorted(warm, key=lambda each: len(each.tokens), reverse=True))
        self._archive_next()

    def _archive_next(self) -> None:
        while self._remaining and not self._is_writing:
            prefix = self._remaining.popleft()
            if self._num_missing(prefix) >= MIN_SAVED_TOKENS:
                self._archive(prefix)
        if not self._is_writing:
            waiting, self._on_archived = self._on_archived, []
            count, self._num_archived = self._num_archived, 0
            for then in waiting:
                self._offloader.after_writes(partial(then, count))

    def _archive_most_grown(self) -> bool:
        """Start to archive one; False if none has grown enough."""
        while (entry := self._engine.prefix_cache.pop_new()) is not None:
            if self._num_missing(entry) >= least_growth(len(entry.tokens)):
                self._archive(entry)
                return True
        best, most = None, 0
        for slot in self._engine.slots_to_archive():
            num_tokens = len(slot.tokens)
            if num_tokens >= MIN_GROWTH and not slot.num_archived:
                slot.num_archived = num_tokens - self._num_missing(slot)
            num_missing = num_tokens - slot.num_archived
            if num_missing >= max(least_growth(num_tokens), most + 1):
                best, most = slot, num_missing
        if best is None:
            return False
        self._archive(best)
        best.num_archived = len(best.tokens)  # also if it failed: not again until it has grown
        return True

    def _num_missing(self, prefix: _Warm) -> int:
        return len(prefix.tokens) - self._offloader.num_archived(prefix.tokens, prefix.key)

    def _archive(self, prefix: _Warm) -> None:
        engine = self._engine
        if isinstance(prefix, Slot):
            copy = engine.copy_to_archive(prefix) if prefix.kept_for else None
        else:  # it may have been removed since, with its owner
            copy = prefix if prefix in engine.prefix_cache else None
        if copy is not None:
            self._is_writing = self._offloader.write(copy, self._finish)

    def _finish(self, seconds: float | None) -> None:
        self._is_writing = False
        if seconds is None:
            self._remaining.clear()
        else:
            self._num_archived += bool(self._on_archived)
            self._delay_next_copy(self._copy_s + seconds)
        self._archive_next()

    def _delay_next_copy(self, seconds: float) -> None:
        """Make no copy beside other work until these seconds are a small part of the time."""
        self._next_copy_at = self._clock() + max(seconds / _MAX_SHARE, _MIN_INTERVAL_S)
