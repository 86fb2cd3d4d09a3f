"""Copies cells between slots in a safe order, and counts references to shared cells in the unified
layout.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from inference_svc.engine.backend import Backend, DecodeError
from inference_svc.engine.batch import TokenBatch


class _Part(NamedTuple):
    """From `start` on, until the next part, the cells are of this generation."""

    generation: int
    start: int


class CellRefCounts:
    """The lines of all slots. `lengths` are how many cells each slot holds now."""

    def __init__(self, slots: int) -> None:
        self._generations = count()
        self._lines = [[self._new(0)] for _ in range(slots)]

    def _new(self, start: int) -> _Part:
        return _Part(next(self._generations), start)

    def cut(self, slot: int, length: int) -> None:
        """What a slot computes behind `length` from now on is its own."""
        line = [part for part in self._lines[slot] if part.start < length]
        others = (other for index, other in enumerate(self._lines) if index != slot)
        if not line or any(line[-1] in other for other in others):
            line.append(self._new(length))
        self._lines[slot] = line

    def share(self, source: int, target: int, length: int) -> None:
        """`target` holds the first `length` cells of `source`, and nothing else."""
        self._lines[target] = self._lines[source]
        self.cut(target, length)

    def used(self, lengths: Sequence[int]) -> int:
        """How many cells are in use."""
        ends: dict[_Part, int] = {}
        for line, length in zip(self._lines, lengths, strict=True):
            for part, following in zip(line, [*line[1:], None], strict=True):
                end = length if following is None else min(following.start, length)
                if end > part.start:
                    ends[part] = max(ends.get(part, 0), end)
        return sum(end - part.start for part, end in ends.items())

    def freed_by(self, slot: int, lengths: Sequence[int]) -> int:
        """How many cells would be free if a slot were emptied."""
        others = [0 if index == slot else length for index, length in enumerate(lengths)]
        return self.used(lengths) - self.used(others)


# The decode refused the batch as such and did not begin, so queued copies are still queued.
_NOT_BEGUN = -1


class CopyOrderError(Exception):
    """An operation that would mix two slots' cells: a defect of the engine, caught before it is
    one of the answers."""


class CopyCosts(NamedTuple):
    """Seconds, as measured at warm-up: a stream copy moves a slot's whole capacity, a state (saved
    and restored) only the cells in use."""

    stream_s: float = 0.0
    state_s: float = 0.0
    state_token_s: float = 0.0

    def of_state(self, tokens: int) -> float:
        """Seconds to save and restore `tokens` cells."""
        return self.state_s + tokens * self.state_token_s


class CacheCopier:
    """The only way to save, restore, copy and decode a backend's cells.

    `llama_memory_seq_cp` between KV streams changes lengths at once and the cells with the next
    `llama_decode`. Saving the target before then, or restoring into either slot, would mix two
    sequences without an error. So queued copies are recorded, and an operation that would read or
    replace their cells raises CopyOrderError. A refused batch leaves its copies queued.
    """

    def __init__(self, backend: Backend, costs: CopyCosts) -> None:
        self._backend = backend
        self._costs = costs
        self._queued: list[tuple[int, int]] = []

    def prefers_state(self, tokens: int) -> bool:
        """Whether `tokens` cells are better saved and restored than copied as a stream."""
        is_cheaper = self._costs.of_state(tokens) < self._costs.stream_s
        by_reference = self._backend.limits.cells is not None
        return self._backend.copies_by_state or (is_cheaper and not by_reference)

    def copy_seconds(self, tokens: int) -> float:
        """What giving another slot `tokens` cells takes."""
        return self.state_seconds(tokens) if self.prefers_state(tokens) else self._costs.stream_s

    def state_seconds(self, tokens: int) -> float:
        """What saving and restoring `tokens` cells takes."""
        return self._costs.of_state(tokens)

    def is_settled(self, slot: int) -> bool:
        """Whether no copy from or to this slot is queued."""
        return all(slot not in pair for pair in self._queued)

    def is_readable(self, slot: int) -> bool:
        """Whether no copy to this slot is queued: it may be saved, or copied from."""
        return all(slot != target for _, target in self._queued)

    def save(self, slot: int) -> bytearray:
        """The state of a slot. Raises `CopyOrderError`."""
        if not self.is_readable(slot):
            raise CopyOrderError(f"slot {slot} would be saved before its copy has arrived")
        return self._backend.save(slot)

    def restore(self, slot: int, state: bytearray) -> bool:
        """Fill a slot with a saved state; False where that failed, the slot is then empty. Raises
        `CopyOrderError`."""
        if not self.is_settled(slot):
            raise CopyOrderError(f"slot {slot} would be restored around a queued copy")
        if self._backend.restore(slot, state):
            return True
        self._backend.trim(slot, 0)
        return False

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Give `target` the first `tokens` of `source`, by the cheaper way. Raises
        `CopyOrderError`."""
        if source == target or not self.is_settled(target):
            raise CopyOrderError(f"slot {target} would be the target of a second copy")
        if not self.is_readable(source):
            raise CopyOrderError(f"slot {source} would be copied before its own copy has arrived")
        if not (self.prefers_state(tokens) and self._settled_copy(source, target)):
            self._backend.copy(source, target, tokens)
            if self._backend.limits.cells is None:
                self._queued.append((source, target))
        self._backend.trim(target, tokens)

    def _settled_copy(self, source: int, target: int) -> bool:
        return self.is_settled(target) and self.restore(target, self.save(source))

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch, after the queued copies. Raises `DecodeError`."""
        try:
            self._backend.decode(batch)
        except DecodeError as error:
            if error.code != _NOT_BEGUN:
                self._queued.clear()
            raise
        self._queued.clear()
