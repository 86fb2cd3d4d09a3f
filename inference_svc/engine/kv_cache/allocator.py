"""Allocates slots, and finds the longest cached prefix of a prompt.

Idle slots, slots of running sequences and saved states are searched, all under the same cache key.
"""

from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from inference_svc.engine.backend import Backend
from inference_svc.engine.events import CacheSource
from inference_svc.engine.kv_cache.copies import CacheCopier
from inference_svc.engine.kv_cache.origin import prefix_origin
from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot, SlotTable, common_prefix

# A shorter common beginning is not worth a copy, nor leaving the lowest free slot for.
MIN_REUSED_TOKENS = 16
# Fewer are computed again about as fast as they are looked for.
MIN_SAVED_TOKENS = 64


class Prefix(NamedTuple):
    """The beginning of a prompt that need not be computed: its length, and the slot or the saved
    state that has it."""

    tokens: int = 0
    source: CacheSource = CacheSource.NONE
    slot: Slot | None = None
    saved: SavedPrefix | None = None


NO_PREFIX = Prefix()


class _ReuseValue(NamedTuple):
    tokens: int
    is_idle: bool


class _Copy(NamedTuple):
    source: Slot
    target: Slot
    tokens: int


class SlotAllocator:
    """Gives slots to sequences; `flush` before every plan."""

    def __init__(
        self, backend: Backend, copier: CacheCopier, table: SlotTable, prefix_cache: PrefixCache
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._table = table
        self._prefix_cache = prefix_cache
        self._copies: list[_Copy] = []

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest beginning there is, but for a few tokens where an idle slot can be taken as
        it is; the last token never counts: its logits are needed."""
        if sequence.saved_prefix is not None:
            return Prefix(
                len(sequence.saved_prefix.tokens), CacheSource.MEMORY, None, sequence.saved_prefix
            )
        request, tokens = sequence.request, sequence.tokens
        limit = len(tokens) - 1
        if not request.reuse or limit < MIN_REUSED_TOKENS:
            return NO_PREFIX
        best = NO_PREFIX
        for slot in self._table.slots:
            if slot.key == request.cache_key and self._is_readable(slot):
                source = CacheSource.SLOT if slot.is_idle else CacheSource.LIVE
                found = Prefix(self._shared(slot, sequence), source, slot)
                best = max(best, found, key=self._reuse_value)
        entry, shared = self._prefix_cache.find(tokens, request.cache_key, limit=limit)
        if entry is not None and shared > self._reuse_value(best).tokens:
            best = Prefix(shared, entry.source, None, entry)
        return best if best.tokens >= MIN_REUSED_TOKENS else NO_PREFIX

    def allocate(self, sequence: Sequence, prefix: Prefix) -> tuple[Slot, Prefix] | None:
        """Take a slot and bring the prefix there (or note the copy); None when all are taken."""
        target = self._target(prefix)
        if target is None:
            return None
        if prefix.slot is not target:
            self._save_lost(target, 0)
            prefix = self._fill(target, prefix)
        else:
            self._save_lost(target, prefix.tokens)
            prefix = self._truncate(target, prefix, len(target.tokens))
        key = sequence.request.cache_key if sequence.request.reuse else b""
        self._table.occupy(target, sequence.request.sequence_id, key)
        target.tokens = sequence.tokens[: prefix.tokens]
        return target, prefix

    def queue_copies(self) -> None:
        """Queue the collected copies; the next decode carries them out."""
        for source, target, tokens in self._copies:
            self._copier.copy(source.index, target.index, tokens)
        self._copies.clear()

    @property
    def is_flushed(self) -> bool:
        """Whether no collected copy still has to be queued."""
        return not self._copies

    def is_source(self, slot: Slot) -> bool:
        """Whether a collected copy will read this slot."""
        return any(copy.source is slot for copy in self._copies)

    def finish(self, sequence: Sequence, *, keep: bool) -> None:
        """Leave for good, in whatever phase; where `keep` and its request ask for it, the state
        stays in memory under the request's name, whoever takes the slot."""
        held = self.snapshot(sequence) if keep and sequence.request.keep else None
        self.drop_saved(sequence)  # first: what is held may need its room
        if held is not None:
            self._prefix_cache.put(held)
        self.release(sequence, keep=keep)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Free a sequence's slot; what it computed stays for reuse where `keep` and its request
        allow."""
        slot, sequence.slot = sequence.slot, None
        if slot is None:
            return
        keep = keep and sequence.request.reuse
        self._table.release(slot, keep=keep, kept_for=sequence.kept_for)
        if not slot.key:
            self._backend.trim(slot.index, 0)
            del slot.tokens[:]

    def swap_out(self, sequence: Sequence) -> bool:
        """Copy a running sequence's cells to memory; False, with nothing done, where there is no
        room or a copy needs them."""
        slot = sequence.slot
        if slot is None or not self._is_settled(slot):
            return False
        if not self._prefix_cache.reserve(self._backend.state_bytes(slot.index)):
            return False
        sequence.saved_prefix = self._save(slot)
        slot.is_saved = True
        return True

    def snapshot(self, sequence: Sequence) -> SavedPrefix | None:
        """A copy of what a sequence has computed, under its request's own key; None where that is
        nothing yet."""
        slot, prefix = sequence.slot, sequence.saved_prefix
        if slot is not None and slot.tokens and self._is_readable(slot):
            prefix = self._save(slot)
        if prefix is None:
            return None
        return replace(
            prefix,
            key=sequence.request.cache_key,
            origin=prefix_origin(sequence),
            kept_for=sequence.kept_for,
        )

    def drop_saved(self, sequence: Sequence) -> None:
        """Free what `swap_out` kept: the sequence is running again, or gone."""
        if sequence.saved_prefix is not None:
            self._prefix_cache.release(len(sequence.saved_prefix.state))
            sequence.saved_prefix = None

    def forget_objects(self, object_ids: Container[str]) -> None:
        """Let nothing be part of stored objects that are gone."""
        self._prefix_cache.forget_objects(object_ids)
        for slot in self._table.slots:
            if slot.kept_for in object_ids:
                slot.kept_for = ""

    def drop_cached(self) -> int:
        """Drop what is only kept for reuse; returns the tokens."""
        count = self._prefix_cache.clear()
        for slot in self._table.slots:
            if slot.is_idle and slot.tokens:
                count += len(slot.tokens)
                self.clear(slot)
        return count

    def is_free(self, slot: Slot) -> bool:
        """Whether an idle slot has no part in a copy to come."""
        return slot.is_idle and self._is_settled(slot)

    def is_worth_saving(self, slot: Slot, kept: int = 0) -> bool:
        """Whether an idle slot remembers clearly more than `kept` tokens that memory lacks."""
        if not slot.key or slot.is_saved or len(slot.tokens) - kept < MIN_SAVED_TOKENS:
            return False
        is_there = self._copier.is_settled(slot.index)
        return is_there and len(slot.tokens) - self._num_in_memory(slot) >= MIN_SAVED_TOKENS

    def evict(self, slot: Slot) -> None:
        """Empty an idle slot, what it remembers going to memory where that is worth it."""
        self._save_lost(slot, 0)
        self.clear(slot)

    def clear(self, slot: Slot) -> None:
        """Drop what an idle slot remembers."""
        self._backend.trim(slot.index, 0)
        slot.tokens, slot.key = slot.tokens[:0], b""

    # --- finding ----------------------------------------------------------------------------------

    def _is_readable(self, slot: Slot) -> bool:
        """Whether the slot's cells are present: it is not the target of a pending copy."""
        return self._copier.is_readable(slot.index) and all(
            copy.target is not slot for copy in self._copies
        )

    def _is_settled(self, slot: Slot) -> bool:
        """Whether the slot has no part in a copy to come."""
        return self._copier.is_settled(slot.index) and all(
            slot is not copy.source and slot is not copy.target for copy in self._copies
        )

    def _shared(self, slot: Slot, sequence: Sequence) -> int:
        limit = len(sequence.tokens) - 1
        count = common_prefix(slot.tokens, sequence.tokens, limit=limit)
        return 0 if count < len(slot.tokens) and not self._can_truncate(slot) else count

    def _num_in_memory(self, slot: Slot) -> int:
        """How many of a slot's tokens are in memory already: of slots that share a beginning only
        the first to go is saved. What stored objects count on is kept whole."""
        limit = len(slot.tokens)
        count = self._prefix_cache.find(slot.tokens, slot.key, limit=limit)[1]
        return 0 if slot.kept_for and count < limit else count

    def _can_truncate(self, slot: Slot) -> bool:
        return self._backend.can_trim and self._backend.reusable_from(slot.index) == 0

    def _reuse_value(self, prefix: Prefix) -> _ReuseValue:
        """The tokens of a prefix, or how many another one must have to be no better: an idle slot
        that loses little has them there already, and any other way costs a copy, and saving what
        the slot has that is copied to. Of equals an idle slot is better."""
        slot, count = prefix.slot, prefix.tokens
        is_idle = slot is not None and slot.is_idle
        if slot is None or not is_idle or count < MIN_REUSED_TOKENS or self.is_source(slot):
            return _ReuseValue(count, is_idle)
        lost = len(slot.tokens) - count
        is_there = lost < MIN_SAVED_TOKENS and _keeps_most(slot, prefix)
        return _ReuseValue(count + MIN_REUSED_TOKENS - 1 if is_there else count, is_idle)

    def _target(self, prefix: Prefix) -> Slot | None:
        """The slot that has the prefix, if taking it loses less than it keeps or there is no other;
        else the lowest, which keeps running slots together."""
        idle = [slot for slot in self._table.slots if slot.is_idle and not self.is_source(slot)]
        if prefix.slot in idle:
            others = [slot for slot in idle if slot is not prefix.slot]
            if _keeps_most(prefix.slot, prefix) or not others:
                return prefix.slot
            idle = others
        return idle[0] if idle else None

    # --- moving -----------------------------------------------------------------------------------

    def _save_lost(self, slot: Slot, kept: int) -> None:
        """Save what an idle slot is about to lose, where that is worth it; what memory has of it
        stays as long as if it were saved now."""
        if not self._prefix_cache.is_enabled or len(slot.tokens) - kept < MIN_SAVED_TOKENS:
            return
        if self.is_worth_saving(slot, kept):
            self._prefix_cache.put(self._save(slot))
            return
        entry, shared = self._prefix_cache.find(slot.tokens, slot.key, limit=len(slot.tokens))
        if entry is not None and shared >= MIN_SAVED_TOKENS:
            self._prefix_cache.touch(entry)

    def _save(self, slot: Slot) -> SavedPrefix:
        if self._backend.slot_length(slot.index) > len(slot.tokens):
            # It ends in the middle of a step, with cells of a draft that did not come true.
            self._backend.trim(slot.index, len(slot.tokens))
        whole = not self._can_truncate(slot)
        state = self._copier.save(slot.index)
        return SavedPrefix(slot.key, slot.tokens[:], state, whole, kept_for=slot.kept_for)

    def _fill(self, slot: Slot, prefix: Prefix) -> Prefix:
        """Fill a slot from elsewhere."""
        self._backend.trim(slot.index, 0)
        if not self._copier.is_settled(slot.index):
            return NO_PREFIX  # a copy that no decode has carried out yet would come on top
        if prefix.slot is not None:
            self._copies.append(_Copy(prefix.slot, slot, prefix.tokens))
            return prefix
        if prefix.saved is None or not self._copier.restore(slot.index, prefix.saved.state):
            return NO_PREFIX
        self._prefix_cache.record_hit(prefix.saved)
        return self._truncate(slot, prefix, self._backend.slot_length(slot.index))

    def _truncate(self, slot: Slot, prefix: Prefix, length: int) -> Prefix:
        """Make a slot of `length` tokens hold exactly the prefix."""
        if prefix.tokens == length:
            return prefix
        if prefix.tokens < length and self._backend.trim(slot.index, prefix.tokens):
            return prefix
        self._backend.trim(slot.index, 0)
        return NO_PREFIX


def _keeps_most(slot: Slot, prefix: Prefix) -> bool:
    """Whether taking the slot loses no more than it keeps."""
    return 2 * prefix.tokens >= len(slot.tokens)
