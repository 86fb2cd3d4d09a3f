"""Positions of cells in models with M-RoPE."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.media import MediaSpan, VectorFile
from inference_svc.llama.grid_positions import (
    GridChunk,
    GridPositions,
    append_chunks,
    split_chunks,
    tail_bytes,
)

_sides = st.integers(1, 6)
_parts = st.lists(st.one_of(st.integers(1, 9), st.tuples(_sides, _sides)), max_size=8)


def _span(start: int, grid: tuple[int, int]) -> MediaSpan:
    tokens = grid[0] * grid[1]
    file = VectorFile(Path("unread"), 0)
    return MediaSpan(start, tokens, max(grid), b"", file, grid=grid)


def _add(grids: GridPositions, span: MediaSpan, first: int, end: int) -> list[list[int]]:
    """Add vectors of a picture in slot 1; returns their positions: time, row and column."""
    row = Row(1, span.start + first, [-1] * (end - first), output=False, spans=(span,))
    batch = TokenBatch.of([row])
    batch = TokenBatch(batch.tokens, batch.positions, batch.slots, batch.outputs, None, (row,))
    positions = grids.of_vectors(batch)
    grids.add(batch)
    assert not positions[3].any()
    values: list[list[int]] = positions[:3].tolist()
    return values


@given(_parts, st.data())
def test_positions_and_cells_are_translated(
    parts: list[int | tuple[int, int]], data: st.DataObject
) -> None:
    """After a picture of one or two pieces, positions go on from its longer side, and the number of
    cells follows from the last position; a slot is cut between pictures."""
    grids, cell, position = GridPositions(2), 0, 0
    cuts: list[tuple[int, int]] = [(0, 0)]
    for part in parts:
        if isinstance(part, int):
            batch = TokenBatch.of([Row(1, cell, [5] * part, output=False)])
            expected = list(range(position, position + part))
            assert grids.of_tokens(batch).tolist() == expected
            cell, position = cell + part, position + part
        else:
            span, (columns, _) = _span(cell, part), part
            cut = data.draw(st.integers(1, span.num_tokens))
            pieces = [_add(grids, span, 0, cut)]
            if cut < span.num_tokens:
                assert grids.num_cells(1, position + 1) == cell + cut
                pieces.append(_add(grids, span, cut, span.num_tokens))
            times, rows, cols = ([v for piece in pieces for v in piece[i]] for i in range(3))
            places = range(span.num_tokens)
            assert times == [position] * span.num_tokens
            assert rows == [position + i // columns for i in places]
            assert cols == [position + i % columns for i in places]
            assert grids.num_cells(1, position + 1) == span.end
            assert grids.is_inside(1, cell + 1) == (span.num_tokens > 1)
            cell, position = span.end, position + span.num_positions
        assert grids.position(1, cell) == position
        cuts.append((cell, position))

    length, position = data.draw(st.sampled_from(cuts))
    grids.cut(1, length)
    assert (grids.position(1, length), grids.position(1, length + 3)) == (position, position + 3)
    assert grids.position(0, 7) == 7


@given(_parts.filter(bool), st.data())
def test_a_row_of_pictures_and_texts_has_the_positions_of_its_parts(
    parts: list[int | tuple[int, int]], data: st.DataObject
) -> None:
    """Computed at once, or cut anywhere."""
    spans: list[MediaSpan] = []
    expected: list[tuple[int, int, int]] = []
    position = 0
    for part in parts:
        if isinstance(part, int):
            expected += [(position + i,) * 3 for i in range(part)]
            position += part
        else:
            spans.append(_span(len(expected), part))
            places = [divmod(i, part[0]) for i in range(part[0] * part[1])]
            expected += [(position, position + row, position + column) for row, column in places]
            position += max(part)
    cut = data.draw(st.integers(0, len(expected)))
    grids = GridPositions(2)
    computed: list[tuple[int, ...]] = []
    for start, end in ((0, cut), (cut, len(expected))):
        if start < end:
            within = tuple(span for span in spans if span.start < end and start < span.end)
            row = Row(1, start, [-1] * (end - start), output=False, spans=within)
            batch = TokenBatch.of([row], [np.zeros((end - start, 1), np.float32)])
            computed += zip(*grids.of_vectors(batch)[:3].tolist(), strict=True)
            grids.add(batch)

    assert computed == expected
    assert grids.position(1, len(expected)) == position


def test_pictures_are_appended_to_a_state() -> None:
    """They are read back; a state without them, as of earlier releases, is left as it is."""
    chunks = (GridChunk(3, 40, 3, 8), GridChunk(50, 4, 18, 1))
    state = bytearray(b"cells")
    append_chunks(state, chunks)

    assert len(state) == len(b"cells") + tail_bytes(chunks)
    assert split_chunks(state) == (bytearray(b"cells"), chunks)
    assert split_chunks(bytearray(b"cells of an earlier release")) == (
        bytearray(b"cells of an earlier release"),
        (),
    )
