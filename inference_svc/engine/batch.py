"""The tokens or vectors of a decode call as arrays, checked against the native limits.

llama.cpp aborts the process if a limit is exceeded, so each batch is checked before the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import or_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_svc.engine.media import MediaSpan, Vectors


class Row(NamedTuple):
    """Consecutive tokens of one slot, the first in cell `start`.

    If `output`, there are logits for the last token. The last `drafted` tokens are a draft: there
    are logits for each of them, and for the token before. If `scored`, there are logits for all
    tokens. With `spans` it is a row of vectors: those of these chunks, and of the
    texts beside them.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    output: bool
    drafted: int = 0
    spans: tuple[MediaSpan, ...] = ()
    scored: bool = False

    @property
    def num_outputs(self) -> int:
        """The number of tokens with logits."""
        if self.scored:
            return len(self.tokens)
        return 1 + self.drafted if self.output else 0

    @property
    def certain(self) -> Sequence[int]:
        """The tokens without the draft."""
        return self.tokens[: len(self.tokens) - self.drafted] if self.drafted else self.tokens


@dataclass(frozen=True, slots=True)
class NativeLimits:
    batch_tokens: int
    output_rows: int
    """Tokens with logits."""
    slots: int
    slot_tokens: int
    """Context length of each slot."""
    vocabulary_size: int
    ubatch_tokens: int | None = None
    """Tokens of a micro-batch; None for `batch_tokens`."""
    cells: int | None = None
    """KV cells shared by all slots in the unified layout; None if each slot has its own stream."""
    source_tokens: int | None = None
    """Tokens that the encoder reads at once, for all sequences; None for a decoder."""
    vector_width: int = 0
    """Values of a vector that takes the place of a token."""
    mixes_vectors: bool = False
    """Whether a row of vectors may contain text, which gets the vectors of its tokens."""

    @property
    def pass_tokens(self) -> int:
        """The number of tokens computed at once (the micro-batch)."""
        return min(self.batch_tokens, self.ubatch_tokens or self.batch_tokens)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Parallel arrays of shape (tokens,): ids, positions, slots, and whether to output logits.

    A position is the index of a cell. In a batch of `vectors`, of shape (tokens, width), the tokens
    of chunks are negative; the backend sets the vectors of others. `vector_rows` are its rows.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int8]
    vectors: Vectors | None = None
    vector_rows: tuple[Row, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Row], vectors: Sequence[Vectors] = ()) -> "TokenBatch":
        """Concatenate rows of tokens, or rows of vectors with the vectors, in the given order."""
        if vectors:
            joined = np.concatenate(vectors) if len(vectors) > 1 else vectors[0]
            return replace(cls._of_rows(rows), vectors=joined, vector_rows=tuple(rows))
        if len(rows) == sum(len(row.tokens) for row in rows):
            return cls._of_single_tokens(rows)
        return cls._of_rows(rows)

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to those before it."""
        return all(span.is_causal for row in self.vector_rows for span in row.spans)

    @classmethod
    def _of_rows(cls, rows: Sequence[Row]) -> "TokenBatch":
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
        slots, starts, tokens, outputs, _, _, scored = zip(*rows, strict=True)
        return cls(
            np.array([each[0] for each in tokens], np.int32),
            np.array(starts, np.int32),
            np.array(slots, np.int32),
            np.array([*map(or_, outputs, scored)], np.int8),
        )


class BatchLimitExceeded(Exception):
    """A batch exceeds a native limit, because of a defect in the planner."""


def check_native_limits(batch: TokenBatch, limits: NativeLimits) -> None:
    """Raise `BatchLimitExceeded` for a batch that would make llama.cpp abort."""
    count = len(batch.tokens)
    if not 0 < count <= limits.batch_tokens:
        raise BatchLimitExceeded(f"{count} tokens, limit {limits.batch_tokens}")
    if (outputs := np.count_nonzero(batch.outputs)) > limits.output_rows:
        raise BatchLimitExceeded(f"{outputs} outputs, limit {limits.output_rows}")
    if batch.vectors is None:
        _check_range("token", batch.tokens, limits.vocabulary_size)
    else:
        _check_vectors(batch, batch.vectors, limits)
    _check_range("slot", batch.slots, limits.slots)
    _check_range("position", batch.positions, limits.slot_tokens)
    if count > 1:
        _check_order(batch)


def _check_vectors(batch: TokenBatch, vectors: Vectors, limits: NativeLimits) -> None:
    shape = (len(batch.tokens), limits.vector_width)
    is_float = vectors.dtype == np.float32 and vectors.flags.c_contiguous
    if vectors.shape != shape or not is_float:
        raise BatchLimitExceeded(f"vectors of {vectors.dtype} {vectors.shape}, not of {shape}")
    is_text = batch.tokens >= 0
    if batch.outputs[~is_text].any():
        raise BatchLimitExceeded("a vector of a chunk has an output")
    if is_text.any():
        if not limits.mixes_vectors:
            raise BatchLimitExceeded("a row of vectors has text")
        _check_range("token", batch.tokens[is_text], limits.vocabulary_size)
    if batch.is_causal:
        return
    (row, *others), (span, *_) = batch.vector_rows, batch.vector_rows[0].spans
    if others or len(row.tokens) != span.num_tokens:
        raise BatchLimitExceeded("a non-causal chunk is not whole and alone")
    if span.num_tokens > limits.pass_tokens:
        raise BatchLimitExceeded(
            f"a non-causal chunk of {span.num_tokens} tokens, limit {limits.pass_tokens}"
        )


def _check_order(batch: TokenBatch) -> None:
    steps = _differences(batch.slots)
    smallest = np.minimum.reduce(steps)
    if smallest < 0:
        raise BatchLimitExceeded("slots are not in ascending order")
    if smallest > 0:
        return  # a token of each slot
    if (_differences(batch.positions)[steps == 0] != 1).any():
        raise BatchLimitExceeded("positions of a slot are not consecutive")


def _differences(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Of adjacent values, without the Python code of `np.diff`."""
    return values[1:] - values[:-1]


def _check_range(what: str, values: npt.NDArray[np.int32], limit: int) -> None:
    # Without the Python code of `max`. Negative values become large.
    if np.maximum.reduce(values.view(np.uint32)) >= limit:
        raise BatchLimitExceeded(
            f"{what} {int(values.min())} to {int(values.max())}, limit {limit}"
        )
