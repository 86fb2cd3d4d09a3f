"""Splitting states into blocks of cells, and joining them."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.snapshots.cell_blocks import (
    BLOCK_TOKENS,
    join_blocks,
    name_blocks,
    split_blocks,
    without_blocks,
)
from tests.support.snapshots import copy_block

SHAPES = ((1, 6), (4, 2), (1, 3))
"""Rows and bytes of a cell, as of keys, transposed values and a smaller layer."""
CELL_BYTES = 6 + 8 + 3
KEY, SECRET = b"one", bytes(32)
Gaps = tuple[int, ...]


def make_state(num_cells: int, gaps: Gaps, seed: int = 1) -> tuple[bytearray, CellLayout]:
    """A state whose cells are those of any longer one with the same seed; gaps are its bytes
    before, between and after the arrays."""
    sizes = [rows * num_cells * cell_bytes for rows, cell_bytes in SHAPES]
    starts = accumulate([gaps[0], *map(sum, zip(sizes, gaps[1:], strict=True))])
    arrays = [CellArray(at, *shape) for at, shape in zip(starts, SHAPES, strict=False)]
    state = bytearray(b"g" * (sum(sizes) + sum(gaps)))
    rng = np.random.default_rng(seed)
    for at, rows, cell_bytes in arrays:
        cells = rng.bytes(rows * 1000 * cell_bytes)
        values = np.frombuffer(cells, np.uint8).reshape(rows, 1000, cell_bytes)[:, :num_cells]
        state[at : at + values.size] = values.tobytes()
    return state, CellLayout(num_cells, tuple(arrays))


@given(num_cells=st.integers(0, 1000), gaps=st.tuples(*[st.integers(0, 9)] * 4))
def test_a_state_is_split_and_joined_byte_for_byte(num_cells: int, gaps: Gaps) -> None:
    """Blocks have a fixed size, and nothing is stored twice."""
    state, layout = make_state(num_cells, gaps)
    blocks, rest = list(split_blocks(state, layout)), without_blocks(state, layout)

    assert {len(block) for block in blocks} <= {BLOCK_TOKENS * CELL_BYTES}
    assert sum(map(len, blocks)) + len(rest) == len(state)
    assert len(rest) == sum(gaps) + num_cells % BLOCK_TOKENS * CELL_BYTES
    assert join_blocks(rest, blocks, copy_block, layout) == state


def test_a_longer_state_has_the_blocks_of_the_shorter_one() -> None:
    """Whatever is before and after its cells, which other states do not share."""
    short = name_blocks(*make_state(700, (1, 2, 3, 4)), KEY, SECRET).names
    long = name_blocks(*make_state(900, (5, 0, 0, 9)), KEY, SECRET).names
    other = name_blocks(*make_state(900, (5, 0, 0, 9), seed=2), KEY, SECRET).names

    assert (len(short), len(long)) == (2, 3)
    assert long[:2] == short
    assert not {*other} & {*long}


def test_projects_and_installations_share_no_blocks() -> None:
    """Although they computed the same."""
    state, layout = make_state(600, (0, 0, 0, 0))
    names = [
        name_blocks(state, layout, key, secret).names
        for key, secret in ((KEY, SECRET), (b"two", SECRET), (KEY, b"x" * 32))
    ]

    assert len({name for each in names for name in each}) == 6


@pytest.mark.parametrize(("num_blocks", "missing"), [(1, 0), (3, 0), (2, 1)])
def test_blocks_that_do_not_fit_are_refused(num_blocks: int, missing: int) -> None:
    """Too few, too many, or one that is too short."""
    state, layout = make_state(600, (2, 0, 0, 0))
    blocks = [*split_blocks(state, layout)] * 2
    blocks[1] = blocks[1][missing:]
    with pytest.raises(ValueError, match=r"assignment|blocks instead"):
        join_blocks(without_blocks(state, layout), blocks[:num_blocks], copy_block, layout)
