"""Ordered copies of cells between slots, and reference counts of cells in the unified layout."""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from inference_svc.engine.backend import Backend, DecodeError
from inference_svc.engine.batch import TokenBatch


class _Segment(NamedTuple):
    """Cells of one generation, from `start` to the start of the next segment."""

    generation: int
    start: int


class CellRefCounts:
    """Tracks which cells slots share. A slot is a list of segments; slots with an equal segment
    share its cells. `lengths` in all methods is the current number of cells of each slot."""

    def __init__(self, slots: int) -> None:
        self._generations = count()
        self._segments = [[self._new_segment(0)] for _ in range(slots)]

    def _new_segment(self, start: int) -> _Segment:
        return _Segment(next(self._generations), start)

    def cut(self, slot: int, length: int) -> None:
        """Truncate a slot to `length` cells; cells computed after that are not shared."""
        segments = [segment for segment in self._segments[slot] if segment.start < length]
        others = (other for index, other in enumerate(self._segments) if index != slot)
        if not segments or any(segments[-1] in other for other in others):
            segments.append(self._new_segment(length))
        self._segments[slot] = segments

    def share(self, source: int, target: int, length: int) -> None:
        """Make `target` reference the first `length` cells of `source`, and nothing else."""
        self._segments[target] = self._segments[source]
        self.cut(target, length)

    def used(self, lengths: Sequence[int]) -> int:
        """Number of cells in use; a shared cell counts once."""
        ends: dict[_Segment, int] = {}
        for segments, length in zip(self._segments, lengths, strict=True):
            for segment, successor in zip(segments, [*segments[1:], None], strict=True):
                end = length if successor is None else min(successor.start, length)
                if end > segment.start:
                    ends[segment] = max(ends.get(segment, 0), end)
        return sum(end - segment.start for segment, end in ends.items())

    def freed_by(self, slot: int, lengths: Sequence[int]) -> int:
        """Number of cells that emptying a slot would free."""
        others = [0 if index == slot else length for index, length in enumerate(lengths)]
        return self.used(lengths) - self.used(others)


# `llama_decode` rejected the batch before it started, so queued copies are still pending.
_INVALID_BATCH = -1


class CopyOrderError(Exception):
    """An operation would mix the cells of two slots. This is a bug in the engine."""


class CopyCosts(NamedTuple):
    """Copy times in seconds, measured at warm-up. A stream copy moves the whole capacity of a slot;
    saving and restoring a state moves only the cells in use."""

    stream_s: float = 0.0
    state_s: float = 0.0
    state_token_s: float = 0.0

    def state_seconds(self, tokens: int) -> float:
        """Seconds to save and restore `tokens` cells."""
        return self.state_s + tokens * self.state_token_s


class CacheCopier:
    """Saves, restores, copies and decodes the cells of a backend; all such calls go through it.

    `llama_memory_seq_cp` between KV streams changes lengths at once, but copies the cells with the
    next `llama_decode`. Saving the target before then, or restoring into either slot, would
    silently mix two sequences. So queued copies are recorded, and an operation that would read or
    replace their cells raises `CopyOrderError`. Copies stay queued if a batch is rejected.
    """

    def __init__(self, backend: Backend, costs: CopyCosts) -> None:
        self._backend = backend
        self._costs = costs
        self._queued: list[tuple[int, int]] = []

    def prefers_state(self, tokens: int) -> bool:
        """Whether to copy `tokens` cells by saving and restoring rather than as a stream."""
        is_cheaper = self._costs.state_seconds(tokens) < self._costs.stream_s
        by_reference = self._backend.limits.cells is not None
        return not self._backend.can_trim or (is_cheaper and not by_reference)

    def copy_seconds(self, tokens: int) -> float:
        """Estimated time to copy `tokens` cells to another slot."""
        return self.state_seconds(tokens) if self.prefers_state(tokens) else self._costs.stream_s

    def state_seconds(self, tokens: int) -> float:
        """Estimated time to save and restore `tokens` cells."""
        return self._costs.state_seconds(tokens)

    def is_settled(self, slot: int) -> bool:
        """Whether no copy from or to this slot is queued."""
        return all(slot not in pair for pair in self._queued)

    def is_readable(self, slot: int) -> bool:
        """Whether no copy to this slot is queued, so that it may be saved or copied from."""
        return all(slot != target for _, target in self._queued)

    def save(self, slot: int) -> bytearray:
        """Serialize the cells of a slot. Raises `CopyOrderError`."""
        if not self.is_readable(slot):
            raise CopyOrderError(f"cannot save slot {slot}: a copy to it is queued")
        return self._backend.save(slot)

    def restore(self, slot: int, state: bytearray) -> bool:
        """Fill a slot with a saved state. Returns False and empties the slot if that fails. Raises
        `CopyOrderError`."""
        if not self.is_settled(slot):
            raise CopyOrderError(f"cannot restore slot {slot}: a copy from or to it is queued")
        if self._backend.restore(slot, state):
            return True
        self._backend.trim(slot, 0)
        return False

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` cells of `source` to `target`, by the cheaper method that keeps
        all of them. Raises `CopyOrderError`."""
        if source == target or not self.is_settled(target):
            raise CopyOrderError(
                f"cannot copy to slot {target}: it is the source, or a copy from or to it is queued"
            )
        if not self.is_readable(source):
            raise CopyOrderError(f"cannot copy from slot {source}: a copy to it is queued")
        length = self._backend.slot_length(source)
        by_state = self.prefers_state(tokens) and self._backend.min_restored(length) <= tokens
        if not (by_state and self.restore(target, self.save(source))):
            self._backend.copy(source, target, tokens)
            if self._backend.limits.cells is None:
                self._queued.append((source, target))
        if not self._backend.trim(target, tokens):
            raise CopyOrderError(f"slot {source} cannot be copied as {tokens} of {length} tokens")

    def decode(self, batch: TokenBatch) -> None:
        """Run the queued copies and compute a batch. Raises `DecodeError`."""
        try:
            self._backend.decode(batch)
        except DecodeError as error:
            if error.code != _INVALID_BATCH:
                self._queued.clear()
            raise
        self._queued.clear()
