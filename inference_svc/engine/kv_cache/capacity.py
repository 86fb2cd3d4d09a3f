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

HEADROOM_TOKENS = 64
"""Cells that are reserved for the output of a sequence that starts, instead of `max_tokens`."""


class CacheCapacity:
    """Frees cells of `backend` for sequences and steps."""

    def __init__(self, backend: Backend, table: SlotTable, allocator: SlotAllocator) -> None:
        self._backend = backend
        self._limits = backend.limits
        self._table = table
        self._allocator = allocator
        # Draft tokens are added to a plan after `can_hold`.
        self._max_drafted = self._limits.output_rows - self._limits.slots

    def can_admit(self, sequence: Sequence, prefix: Prefix, running: Iterable[Sequence]) -> bool:
        """Free cells for a waiting sequence with this prefix.

        Cells for the rest of all running prompts stay reserved. Returns False if there are too few,
        or if the encoder cannot read its source together with those of the running ones.
        """
        if not self._can_encode(sequence, running):
            return False
        if self._limits.cells is None:
            return True
        reserved = sum(other.num_remaining for other in running)
        shared = prefix.tokens if prefix.slot is not None else 0
        tokens = min(len(sequence.tokens) + HEADROOM_TOKENS, self._limits.slot_tokens)
        return self._make_room(reserved + tokens - shared, spare=prefix.slot)

    def _can_encode(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        if self._limits.source_tokens is None:
            return True
        sources = (each.request.source for each in (sequence, *running))
        return sum(map(len, sources)) <= self._limits.source_tokens

    def can_hold(self, plans: SequenceOf[Plan]) -> bool:
        """Free cells for the tokens of a step; return False if there are too few."""
        if self._limits.cells is None:
            return True
        tokens = sum(len(row.tokens) for plan in plans for row in plan.rows)
        return self._make_room(tokens + self._max_drafted) or self._make_room(tokens)

    def spare_cells(self, plan: Plan) -> int | None:
        """How many cells are free beside those of a step; None if slots do not share them."""
        if self._limits.cells is None:
            return None
        return self._free - sum(len(row.tokens) for row in plan.rows)

    @property
    def num_used(self) -> int:
        """Cells in use; a cell that several slots share counts once."""
        shares = self._limits.cells is not None
        return self._backend.used_cells if shares else self._table.num_used_cells

    def freed_by(self, slot: Slot) -> int:
        """How many cells would be free if the slot were emptied."""
        return self._backend.freed_by(slot.index)

    def evict(self, slot: Slot | None) -> bool:
        """Empty an idle slot; return whether it had any tokens."""
        if slot is None or not slot.tokens or not self._allocator.is_free(slot):
            return False
        self._allocator.evict(slot)
        return True

    def _make_room(self, tokens: int, *, spare: Slot | None = None) -> bool:
        """Evict idle slots, the shortest first, until `tokens` cells are free.

        Slots without unshared cells follow in a second pass, since they may share with each other.
        """
        if self._free >= tokens:
            return True
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
