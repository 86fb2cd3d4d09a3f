"""One decode call's tokens as arrays, and the one function that checks them against every native
limit.

Each excess is an abort inside llama.cpp, so nothing reaches it unchecked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Row(NamedTuple):
    """Consecutive tokens of one slot, the first at position `start`; logits for the last one where
    `output`. The last `drafted` ones are only guessed: there are logits for each of them and for
    the one before."""

    slot: int
    start: int
    tokens: Sequence[int]
    output: bool
    drafted: int = 0

    @property
    def num_outputs(self) -> int:
        """How many of its tokens have logits."""
        return 1 + self.drafted if self.output else 0

    @property
    def certain(self) -> Sequence[int]:
        """Its tokens without the guessed ones."""
        return self.tokens[: len(self.tokens) - self.drafted] if self.drafted else self.tokens


@dataclass(frozen=True, slots=True)
class NativeLimits:
    """What one decode call of a model may hold; all counts, `slot_tokens` for each slot. It
    computes `ubatch_tokens` at a time, all at once where that is None. `cells` are what all slots
    share in the unified layout; None where each has its own (streams)."""

    batch_tokens: int
    output_rows: int
    slots: int
    slot_tokens: int
    vocabulary_size: int
    ubatch_tokens: int | None = None
    cells: int | None = None

    @property
    def pass_tokens(self) -> int:
        """How many tokens are computed at once."""
        return min(self.batch_tokens, self.ubatch_tokens or self.batch_tokens)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Parallel arrays of shape (tokens,): ids, positions, slots, and whether logits are wanted."""

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int8]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "TokenBatch":
        """Lay rows out one after the other, in the given order."""
        if all(len(row.tokens) == 1 for row in rows):
            return cls._of_single_tokens(rows)
        counts = [len(row.tokens) for row in rows]
        total = sum(counts)
        tokens = np.empty(total, np.int32)
        positions = np.empty(total, np.int32)
        outputs = np.zeros(total, np.int8)
        at = 0
        for row, count in zip(rows, counts, strict=True):
            tokens[at : at + count] = row.tokens
            positions[at : at + count] = np.arange(row.start, row.start + count)
            at += count
            outputs[at - row.num_outputs : at] = 1
        slots = np.repeat(np.fromiter((row.slot for row in rows), np.int32, len(rows)), counts)
        return cls(tokens, positions, slots, outputs)

    @classmethod
    def _of_single_tokens(cls, rows: Sequence[Row]) -> "TokenBatch":
        return cls(
            np.array([row.tokens[0] for row in rows], np.int32),
            np.array([row.start for row in rows], np.int32),
            np.array([row.slot for row in rows], np.int32),
            np.array([row.output for row in rows], np.int8),
        )


class BatchLimitExceeded(Exception):
    """A batch breaks a native limit: a defect of the planner, caught before it becomes an abort."""


def check_native_limits(batch: TokenBatch, limits: NativeLimits) -> None:
    """Refuse a batch that llama.cpp would abort on. Raises `BatchLimitExceeded`."""
    count = len(batch.tokens)
    if not 0 < count <= limits.batch_tokens:
        raise BatchLimitExceeded(f"{count} tokens, limit {limits.batch_tokens}")
    if int(batch.outputs.sum()) > limits.output_rows:
        raise BatchLimitExceeded(f"{int(batch.outputs.sum())} outputs, limit {limits.output_rows}")
    _check_range("token", batch.tokens, limits.vocabulary_size)
    _check_range("slot", batch.slots, limits.slots)
    _check_range("position", batch.positions, limits.slot_tokens)
    if count > 1:
        _check_order(batch)


def _check_order(batch: TokenBatch) -> None:
    steps = np.diff(batch.slots)
    if (steps < 0).any():
        raise BatchLimitExceeded("slots are not in ascending order")
    if (np.diff(batch.positions)[steps == 0] != 1).any():
        raise BatchLimitExceeded("positions of a slot do not follow each other")


def _check_range(what: str, values: npt.NDArray[np.int32], limit: int) -> None:
    if int(values.view(np.uint32).max()) >= limit:  # a negative one is the largest of all
        raise BatchLimitExceeded(
            f"{what} {int(values.min())} to {int(values.max())}, limit {limit}"
        )
