"""Allocates slots, and finds the longest cached prefix of a prompt.

Idle slots, slots of running sequences and saved states are searched, all under the same cache key.
"""

from collections.abc import Container
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from inference_svc.engine.backend import Backend
from inference_svc.engine.events import CacheSource, Divergence
from inference_svc.engine.kv_cache.copies import CacheCopier
from inference_svc.engine.kv_cache.divergence import find_divergence
from inference_svc.engine.kv_cache.origin import prefix_origin
from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.request import is_of_project
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import Slot, SlotTable, common_prefix

MIN_REUSED_TOKENS = 16
"""A shorter prefix is not worth a copy, or another slot than the lowest free one."""
MIN_SAVED_TOKENS = 64
"""Fewer tokens are computed about as fast as they are restored."""


class Prefix(NamedTuple):
    """A cached prefix of a prompt: its length, and the slot or saved state that has it."""

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
    """Allocates slots to sequences. Call `queue_copies` before each decode."""

    def __init__(
        self, backend: Backend, copier: CacheCopier, table: SlotTable, prefix_cache: PrefixCache
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._table = table
        self._prefix_cache = prefix_cache
        self._copies: list[_Copy] = []

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """Return the longest cached prefix, or a slightly shorter one in an idle slot.

        The last token is always computed, since its logits are needed.
        """
        if sequence.saved_prefix is not None:
            return Prefix(
                len(sequence.saved_prefix.tokens), CacheSource.MEMORY, None, sequence.saved_prefix
            )
        request, tokens = sequence.request, sequence.tokens
        limit = len(tokens) - 1
        if not request.may_start_cached or limit < MIN_REUSED_TOKENS:
            return NO_PREFIX
        best = NO_PREFIX
        for slot in self._table.slots:
            if slot.key == request.cache_key and self._is_readable(slot):
                source = CacheSource.SLOT if slot.is_idle else CacheSource.LIVE
                candidate = Prefix(self._shared(slot, sequence), source, slot)
                best = max(best, candidate, key=self._reuse_value)
        entry, shared = self._prefix_cache.find(
            tokens, request.cache_key, limit=limit, media=request.media
        )
        if entry is not None and shared > self._reuse_value(best).tokens:
            best = Prefix(shared, entry.source, None, entry)
        return best if best.tokens >= MIN_REUSED_TOKENS else NO_PREFIX

    def find_divergence(self, sequence: Sequence) -> Divergence | None:
        """Where the prompt differs from what is cached for its project. Call it before
        `allocate`."""
        return find_divergence(
            sequence.request, chain(self._table.slots, self._prefix_cache.entries)
        )

    def allocate(self, sequence: Sequence, prefix: Prefix) -> tuple[Slot, Prefix] | None:
        """Allocate a slot and restore or copy the prefix into it; None if no slot is free."""
        target = self._target(prefix)
        if target is None:
            return None
        if prefix.slot is not target:
            self._save_lost(target, 0)
            prefix = self._fill(target, prefix)
        else:
            self._save_lost(target, prefix.tokens)
            prefix = self._truncate(target, prefix, len(target.tokens))
        request = sequence.request
        key = request.cache_key if request.reuse else b""
        self._table.occupy(target, request.sequence_id, key, sequence.kept_for, request.project)
        target.tokens = sequence.tokens[: prefix.tokens]
        return target, prefix

    def queue_copies(self) -> None:
        """Queue the planned copies; the next decode executes them."""
        for source, target, tokens in self._copies:
            self._copier.copy(source.index, target.index, tokens)
        self._copies.clear()

    @property
    def is_flushed(self) -> bool:
        """Whether all planned copies are queued."""
        return not self._copies

    def is_source(self, slot: Slot) -> bool:
        """Whether a planned copy reads this slot."""
        return any(copy.source is slot for copy in self._copies)

    def finish(self, sequence: Sequence, *, keep: bool) -> None:
        """Release everything of a sequence that has ended.

        If `keep` and the request ask for it, its state is saved under the id of the request.
        """
        state = self.snapshot(sequence) if keep and sequence.request.keep else None
        self.drop_saved(sequence)  # first, since `state` may need the space
        if state is not None:
            self._prefix_cache.put(state)
        self.release(sequence, keep=keep)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Release a sequence's slot; its cells stay for reuse if `keep` and the request allow."""
        slot, sequence.slot = sequence.slot, None
        if slot is None:
            return
        keep = keep and sequence.request.reuse
        self._table.release(slot, keep=keep)
        if not slot.key:
            self._backend.trim(slot.index, 0)
            del slot.tokens[:]

    def swap_out(self, sequence: Sequence) -> bool:
        """Copy the cells of a running sequence to memory.

        Returns False, without any effect, if there is no space, a pending copy needs the slot or
        its cells are not those of its tokens.
        """
        slot = sequence.slot
        if slot is None or not self._is_settled(slot):
            return False
        if not self._cut_to_tokens(slot):
            return False
        if not self._prefix_cache.reserve(self._backend.state_bytes(slot.index)):
            return False
        sequence.saved_prefix = self._save(slot)
        slot.is_saved = True
        return True

    def snapshot(self, sequence: Sequence) -> SavedPrefix | None:
        """Copy the computed state of a sequence; None if nothing is computed yet, or if it also
        depends on a source."""
        if sequence.request.source:
            return None
        slot, prefix = sequence.slot, sequence.saved_prefix
        if slot is not None and slot.tokens and self._is_readable(slot):
            prefix = self._save(slot) if self._cut_to_tokens(slot) else None
        if prefix is None:
            return None
        return replace(
            prefix,
            key=sequence.request.cache_key,
            origin=prefix_origin(sequence),
            kept_for=sequence.kept_for,
        )

    def drop_saved(self, sequence: Sequence) -> None:
        """Release the state that `swap_out` saved, once the sequence runs again or has ended."""
        if sequence.saved_prefix is not None:
            self._prefix_cache.release(len(sequence.saved_prefix.state))
            sequence.saved_prefix = None

    def unlink_owners(self, owners: Container[str]) -> None:
        """Detach slots from deleted owners, and remove their prefixes from memory."""
        self._prefix_cache.unlink_owners(owners)
        for slot in self._table.slots:
            if slot.kept_for in owners:
                slot.kept_for = ""

    def slots_to_archive(self) -> list[Slot]:
        """The slots whose cells, of running sequences too, are archived and could be copied now."""
        return [each for each in self._table.slots if each.kept_for and self._is_readable(each)]

    def copy_to_archive(self, slot: Slot) -> SavedPrefix | None:
        """Copy the cells of a slot; None if they cannot be copied now, or if the state would not
        fit into memory, from which it is restored."""
        if not self._is_readable(slot) or not self._cut_to_tokens(slot):
            return None
        fits = self._prefix_cache.fits(self._backend.state_bytes(slot.index))
        return self._save(slot) if fits else None

    def drop_cached(self) -> int:
        """Drop all cached prefixes and return their number of tokens."""
        count = self._prefix_cache.clear()
        for slot in self._table.slots:
            if slot.is_idle and slot.tokens:
                count += len(slot.tokens)
                self.clear(slot)
        return count

    def is_free(self, slot: Slot) -> bool:
        """Whether a slot is idle and in no pending copy."""
        return slot.is_idle and self._is_settled(slot)

    def is_worth_saving(self, slot: Slot, kept: int = 0) -> bool:
        """Whether an idle slot has enough tokens beyond `kept` that are not in memory yet."""
        if not slot.key or slot.is_saved or len(slot.tokens) - kept < MIN_SAVED_TOKENS:
            return False
        is_settled = self._copier.is_settled(slot.index)
        return is_settled and len(slot.tokens) - self._num_in_memory(slot) >= MIN_SAVED_TOKENS

    def evict(self, slot: Slot) -> None:
        """Empty an idle slot, and save its prefix to memory if that is worth it."""
        self._save_lost(slot, 0)
        self.clear(slot)

    def clear(self, slot: Slot) -> None:
        """Drop the cached prefix of an idle slot."""
        self._backend.trim(slot.index, 0)
        slot.tokens, slot.key = slot.tokens[:0], b""

    # --- lookup ----------------------------------------------------------------------------------

    def _is_readable(self, slot: Slot) -> bool:
        """Whether the slot's cells are present: it is not the target of a pending copy."""
        return self._copier.is_readable(slot.index) and all(
            copy.target is not slot for copy in self._copies
        )

    def _is_settled(self, slot: Slot) -> bool:
        """Whether no pending copy reads or writes the slot."""
        return self._copier.is_settled(slot.index) and all(
            slot is not copy.source and slot is not copy.target for copy in self._copies
        )

    def _shared(self, slot: Slot, sequence: Sequence) -> int:
        limit = len(sequence.tokens) - 1
        count = sequence.whole_prefix(common_prefix(slot.tokens, sequence.tokens, limit=limit))
        return count if self._backend.can_trim_to(slot.index, count) else 0

    def _num_in_memory(self, slot: Slot) -> int:
        """How many tokens of a slot are in memory already; 0 if a stored object, whose next turn
        starts with them, needs all.

        Of slots with a common prefix only the first evicted one is saved.
        """
        limit = len(slot.tokens)
        count = self._prefix_cache.find(slot.tokens, slot.key, limit=limit)[1]
        is_of_object = slot.kept_for and not is_of_project(slot.kept_for)
        return 0 if is_of_object and count < limit else count

    def _reuse_value(self, prefix: Prefix) -> _ReuseValue:
        """The value by which prefixes are compared: tokens, then whether the slot is idle.

        A prefix in an idle slot that loses few tokens is worth MIN_REUSED_TOKENS - 1 more, since
        any other source costs a copy and the eviction of the slot that is copied to.
        """
        slot, count = prefix.slot, prefix.tokens
        is_idle = slot is not None and slot.is_idle
        if slot is None or not is_idle or count < MIN_REUSED_TOKENS or self.is_source(slot):
            return _ReuseValue(count, is_idle)
        lost = len(slot.tokens) - count
        in_place = lost < MIN_SAVED_TOKENS and _keeps_most(slot, prefix)
        return _ReuseValue(count + MIN_REUSED_TOKENS - 1 if in_place else count, is_idle)

    def _target(self, prefix: Prefix) -> Slot | None:
        """Choose the slot for a sequence; None if no slot is free.

        The slot of the prefix if most of its tokens are reused or it is the only one; otherwise the
        lowest free slot, so that running slots are adjacent.
        """
        idle = [slot for slot in self._table.slots if slot.is_idle and not self.is_source(slot)]
        if prefix.slot in idle:
            others = [slot for slot in idle if slot is not prefix.slot]
            if _keeps_most(prefix.slot, prefix) or not others:
                return prefix.slot
            idle = others
        return idle[0] if idle else None

    # --- copies -----------------------------------------------------------------------------------

    def _save_lost(self, slot: Slot, kept: int) -> None:
        """Save a prefix before its idle slot is overwritten, if that is worth it.

        If it is in memory already, that entry becomes the most recently used.
        """
        if not self._prefix_cache.is_enabled or len(slot.tokens) - kept < MIN_SAVED_TOKENS:
            return
        if self.is_worth_saving(slot, kept):
            self._prefix_cache.put(self._save(slot))
            return
        entry, shared = self._prefix_cache.find(slot.tokens, slot.key, limit=len(slot.tokens))
        if entry is not None and shared >= MIN_SAVED_TOKENS:
            self._prefix_cache.touch(entry)

    def _cut_to_tokens(self, slot: Slot) -> bool:
        """Remove the cells of rejected draft tokens, if the sequence ended within a step."""
        length = len(slot.tokens)
        is_longer = self._backend.slot_length(slot.index) > length
        return not is_longer or self._backend.trim(slot.index, length)

    def _save(self, slot: Slot) -> SavedPrefix:
        state, tokens = self._copier.save(slot.index), slot.tokens[:]
        min_tokens = self._backend.min_restored(len(tokens))
        return SavedPrefix(
            slot.key, tokens, state, min_tokens, kept_for=slot.kept_for, project=slot.project
        )

    def _fill(self, slot: Slot, prefix: Prefix) -> Prefix:
        """Copy or restore a prefix into a slot. Returns NO_PREFIX if that is impossible."""
        self._backend.trim(slot.index, 0)
        if not self._copier.is_settled(slot.index):
            return NO_PREFIX  # a copy that is still queued would overwrite it
        if prefix.slot is not None:
            self._copies.append(_Copy(prefix.slot, slot, prefix.tokens))
            return prefix
        if prefix.saved is None or not self._copier.restore(slot.index, prefix.saved.state):
            return NO_PREFIX
        self._prefix_cache.record_hit(prefix.saved)
        return self._truncate(slot, prefix, self._backend.slot_length(slot.index))

    def _truncate(self, slot: Slot, prefix: Prefix, length: int) -> Prefix:
        """Truncate a slot from `length` tokens to the prefix; empty it if that is impossible."""
        if prefix.tokens == length:
            return prefix
        if prefix.tokens < length and self._backend.trim(slot.index, prefix.tokens):
            return prefix
        self._backend.trim(slot.index, 0)
        return NO_PREFIX


def _keeps_most(slot: Slot, prefix: Prefix) -> bool:
    """Whether the prefix is at least half of the tokens of the slot."""
    return 2 * prefix.tokens >= len(slot.tokens)
