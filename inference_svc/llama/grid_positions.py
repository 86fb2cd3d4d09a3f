"""Positions of cells in models with M-RoPE, where the vectors of a picture share one position.

The engine counts cells. After a picture the positions of llama.cpp are behind the indices of cells,
so those of each slot are translated here. What is needed for that is appended to saved states.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.media import MediaSpan

SECTIONS = 4
"""Positions of a vector: time, row and column of the picture, and 0."""
_TAIL = struct.Struct("<I8s")
_MAGIC = b"GRIDCELL"
_CHUNK = struct.Struct("<4I")


class GridChunk(NamedTuple):
    """The computed cells of a picture, from `start` on: all at one `position`.

    The next cell is `taken` positions further: 1 until the picture is complete.
    """

    start: int
    cells: int
    position: int
    taken: int

    @property
    def end(self) -> int:
        """The cell after it."""
        return self.start + self.cells


Chunks = tuple[GridChunk, ...]


class GridPositions:
    """The pictures in all slots, in the order of their cells."""

    def __init__(self, slots: int) -> None:
        self._chunks: list[Chunks] = [()] * slots
        # Cells minus positions at the end of each slot.
        self._behind = np.zeros(slots, np.int32)

    def position(self, slot: int, cell: int) -> int:
        """The position of a cell that is computed or next in its slot."""
        for chunk in reversed(self._chunks[slot]):
            if cell >= chunk.end:
                return chunk.position + chunk.taken + cell - chunk.end
            if cell >= chunk.start:
                return chunk.position
        return cell

    def num_cells(self, slot: int, length: int) -> int:
        """The number of cells of a slot whose last position is `length` - 1."""
        for chunk in reversed(self._chunks[slot]):
            if length > chunk.position:
                return chunk.end + max(length - chunk.position - chunk.taken, 0)
        return length

    def is_inside(self, slot: int, cell: int) -> bool:
        """Whether a slot cannot end before this cell, since it is inside a picture."""
        return any(chunk.start < cell < chunk.end for chunk in self._chunks[slot])

    def of_tokens(self, batch: TokenBatch) -> npt.NDArray[np.int32]:
        return batch.positions - self._behind[batch.slots]

    def of_vectors(self, batch: TokenBatch) -> npt.NDArray[np.int32]:
        """The positions of a batch of vectors, of shape (`SECTIONS`, tokens)."""
        return np.concatenate([self._of_row(row) for row in batch.vector_rows], axis=1)

    def _of_row(self, row: Row) -> npt.NDArray[np.int32]:
        end = row.start + len(row.tokens)
        positions = np.zeros((SECTIONS, len(row.tokens)), np.int32)
        positions[:3] = self.position(row.slot, row.start)
        positions[:3] += np.arange(len(row.tokens), dtype=np.int32)
        for span in row.spans:
            if span.grid is None:
                continue
            width, _ = span.grid
            first, last = max(row.start, span.start), min(end, span.end)
            if first > span.start:
                position = self._chunks[row.slot][-1].position
            else:
                position = positions[0, first - row.start]
            places = np.arange(first - span.start, last - span.start, dtype=np.int32)
            cells = positions[:3, first - row.start : last - row.start]
            cells[:] = position
            cells[1] += places // width
            cells[2] += places % width
            following = np.arange(end - last, dtype=np.int32)
            positions[:3, last - row.start :] = position + span.num_positions + following
        return positions

    def add(self, batch: TokenBatch) -> None:
        """Record the pictures of a batch that was computed."""
        for row in batch.vector_rows:
            for span in row.spans:
                if span.grid is not None:
                    self._add_span(row, span)

    def _add_span(self, row: Row, span: MediaSpan) -> None:
        chunks, position = self._chunks[row.slot], self.position(row.slot, span.start)
        cells = min(row.start + len(row.tokens), span.end) - span.start
        taken = span.num_positions if cells == span.num_tokens else 1
        if row.start > span.start:
            chunks = chunks[:-1]
        self.put(row.slot, (*chunks, GridChunk(span.start, cells, position, taken)))

    def cut(self, slot: int, length: int) -> None:
        """Truncate a slot to `length` cells."""
        if self._chunks[slot]:
            self.put(slot, self.within(slot, length))

    def within(self, slot: int, length: int) -> Chunks:
        """The pictures among the first `length` cells of a slot."""
        return tuple(chunk for chunk in self._chunks[slot] if chunk.end <= length)

    def put(self, slot: int, chunks: Chunks) -> None:
        """Replace the pictures of a slot."""
        self._chunks[slot] = chunks
        self._behind[slot] = (
            chunks[-1].end - chunks[-1].position - chunks[-1].taken if chunks else 0
        )


def append_chunks(state: bytearray, chunks: Chunks) -> None:
    """Append the pictures of a slot to its saved state."""
    for chunk in chunks:
        state += _CHUNK.pack(*chunk)
    state += _TAIL.pack(len(chunks), _MAGIC)


def tail_bytes(chunks: Chunks) -> int:
    """The bytes that `append_chunks` appends."""
    return _CHUNK.size * len(chunks) + _TAIL.size


def split_chunks(state: bytearray) -> tuple[bytearray, Chunks]:
    """Split a saved state from its pictures. States of earlier releases have none."""
    end = len(state) - _TAIL.size
    if end < 0 or not state.endswith(_MAGIC):
        return state, ()
    count, _ = _TAIL.unpack_from(state, end)
    start = end - count * _CHUNK.size
    if start < 0:
        return state, ()
    chunks = tuple(GridChunk(*fields) for fields in _CHUNK.iter_unpack(state[start:end]))
    return state[:start], chunks
