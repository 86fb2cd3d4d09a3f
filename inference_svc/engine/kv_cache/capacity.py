"""Frees cells in the unified layout, where all slots share one pool.

Cached prefixes of idle slots are evicted first, the shortest first, to memory where that is
enabled; then sequences are preempted.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from inference_svc.engine.backend import Backend
from inference_svc.engine.kv_cache.allocator import Prefix, SlotAllocator
from inference_svc.engine.sequence import Plan, Sequence
from inference_svc.engine.slots import Slot, SlotTable

# A sequence starts where so much of its output fits too; what it asks for at most is not reserved.
HEADROOM_TOKENS = 64


class CacheCapacity:
    """The stock of `backend`'s cells."""

    def __init__(self, backend: Backend, table: SlotTable, allocator: SlotAllocator) -> None:
        self._backend = backend
        self._limits = backend.limits
        self._table = table
        self._allocator = allocator
        # Drafts are added to a plan after it was found to fit.
        self._most_drafted = self._limits.output_rows - self._limits.slots

    def can_admit(self, sequence: Sequence, prefix: Prefix, running: Iterable[Sequence]) -> bool:
        """Make room for a waiting sequence that will have this prefix, beside what those that run
        have still to compute; False where there is too little."""
        if self._limits.cells is None:
            return True
        promised = sum(other.num_remaining for other in running)
        shared = prefix.tokens if prefix.slot is not None else 0
        tokens = min(len(sequence.tokens) + HEADROOM_TOKENS, self._limits.slot_tokens)
        return self._make_room(promised + tokens - shared, spare=prefix.slot)

    def can_hold(self, plans: SequenceOf[Plan]) -> bool:
        """Make room for what a step's plans compute; False where there is too little."""
        if self._limits.cells is None:
            return True
        tokens = sum(len(row.tokens) for plan in plans for row in plan.rows)
        return self._make_room(tokens + self._most_drafted) or self._make_room(tokens)

    @property
    def num_used(self) -> int:
        """Cells in use, those that several slots refer to once."""
        shares = self._limits.cells is not None
        return self._backend.used_cells if shares else self._table.num_used_cells

    def freed_by(self, slot: Slot) -> int:
        """How many cells emptying a slot would free."""
        return self._backend.freed_by(slot.index)

    def evict(self, slot: Slot | None) -> bool:
        """Empty an idle slot; whether there was anything in it."""
        if slot is None or not slot.tokens or not self._allocator.is_free(slot):
            return False
        self._allocator.evict(slot)
        return True

    def _make_room(self, tokens: int, *, spare: Slot | None = None) -> bool:
        """Drop what frees cells alone, then those too that share all of theirs: with each other,
        perhaps."""
        slots = sorted(self._table.slots, key=lambda slot: len(slot.tokens))
        for must_free in (True, False):
            for slot in slots:
                if self._free >= tokens:
                    return True
                if slot is not spare and (self._backend.freed_by(slot.index) or not must_free):
                    self.evict(slot)
        return self._free >= tokens

    @property
    def _free(self) -> int:
        return (self._limits.cells or 0) - self._backend.used_cells
