"""Conversion of saved states between contexts with different numbers of slots."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.llama.grid_positions import GridChunk, append_chunks
from inference_svc.llama.state_convert import (
    LENGTHS_BYTES,
    CacheLengths,
    StateMismatch,
    cache_lengths,
    cell_layout,
    convert_state,
    window_length,
    write_lengths,
)

HEAD, TAIL = b"headhead", b"recurrent part"


def _cache(cells: bytes, slot: int, streams: int) -> bytes:
    """As llama.cpp writes it: the number of streams, and a count of 0 for each but one."""
    empty = bytes(4)
    stream = struct.pack("<I", 3) + cells
    return struct.pack("<I", streams) + empty * slot + stream + empty * (streams - slot - 1)


def _state(caches: list[bytes], tail: bytes = b"") -> bytearray:
    state = bytearray(HEAD + b"".join(caches) + tail + bytes(LENGTHS_BYTES))
    lengths = [*map(len, caches), 0, 0][:2]
    write_lengths(state, CacheLengths(*lengths))
    return state


@given(
    cells=st.lists(st.binary(max_size=40), min_size=0, max_size=2),
    slot=st.integers(0, 4),
    tail=st.sampled_from([b"", TAIL]),
    streams=st.integers(1, 9),
)
def test_a_state_is_converted_to_any_number_of_slots(
    cells: list[bytes], slot: int, tail: bytes, streams: int
) -> None:
    """The result is what a context of that size would have written for its first slot."""
    state = _state([_cache(each, slot, 5) for each in cells], tail)
    converted, length = convert_state(state, streams)

    if streams == 5 or not cells:
        assert converted is state
    else:
        expected = HEAD + b"".join(_cache(each, 0, streams) for each in cells) + tail
        assert bytes(converted[:length]) == expected


def test_cache_lengths_are_derived_from_llama_cpps_sizes() -> None:
    """For attention, a sliding window, a recurrent and a hybrid model."""
    assert cache_lengths(108, 108, recurrent=False, hybrid=False) == (100, 0)
    assert cache_lengths(108, 48, recurrent=False, hybrid=False) == (60, 40)
    assert cache_lengths(108, 108, recurrent=True, hybrid=False) == (0, 0)
    assert cache_lengths(108, 48, recurrent=False, hybrid=True) == (60, 0)


def _three_cells(*, transposed: bool = False, values: bool = True, cell_bytes: int = 12) -> bytes:
    """The only stream of a cache with a layer, whose keys have 4 bytes and values 6."""
    keys = struct.pack("<iQ", 1, 4) + b"k" * 3 * 4
    head = struct.pack("<iII", 1, 2, 3) if transposed else struct.pack("<iQ", 1, 6)
    layout = struct.pack("<II", transposed, 1)
    return bytes(3 * cell_bytes) + layout + keys + (head + b"v" * 3 * 6 if values else b"")


@pytest.mark.parametrize("transposed", [False, True])
def test_the_length_of_a_cache_before_a_recurrent_part_is_read(transposed: bool) -> None:
    cache = _cache(_three_cells(transposed=transposed), 1, 4)

    assert window_length(bytearray(HEAD + cache + TAIL), len(HEAD)) == len(cache)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, {b"k": (1, 4), b"v": (1, 6)}),
        ({"transposed": True}, {b"k": (1, 4), b"v": (3, 2)}),
        ({"values": False}, {b"k": (1, 4)}),
        ({"cell_bytes": 20}, {b"k": (1, 4), b"v": (1, 6)}),
    ],
    ids=["rows", "columns", "no values", "grid positions"],
)
@pytest.mark.parametrize("slot", [0, 3])
def test_keys_and_values_of_cells_are_found(
    cells: dict[str, Any], expected: dict[bytes, tuple[int, int]], slot: int
) -> None:
    """Those of all positions, not those of a window, in any slot, also before pictures."""
    state = _state([_cache(_three_cells(**cells), slot, 4), _cache(_three_cells(), 0, 4)], TAIL)
    for chunks in (False, True):
        if chunks:
            append_chunks(state, (GridChunk(1, 2, 1, 1),))
        layout = cell_layout(state)

        assert layout is not None
        assert layout.num_cells == 3
        found = {bytes(state[each.start : each.start + 1]): each[1:] for each in layout.arrays}
        assert found == expected
        for start, rows, size in layout.arrays:
            assert len({*state[start : start + 3 * rows * size]}) == 1


def test_a_state_without_cells_has_no_layout() -> None:
    """As a recurrent one, or one whose structure is not known."""
    states = [_state([], TAIL), _state([_cache(b"unknown", 0, 2)]), bytearray(5)]

    assert [cell_layout(state) for state in states] == [None] * 3


@pytest.mark.parametrize(
    "state",
    [
        bytearray(LENGTHS_BYTES),
        _state([_cache(b"cells", 0, 2)])[:-20] + bytearray(LENGTHS_BYTES - 8) + b"\xff" * 8,
        _state([struct.pack("<I", 0)]),
        _state([struct.pack("<I", 1 << 30) + bytes(40)]),
        _state([struct.pack("<III", 2, 3, 3)]),
        _state([b"ab"]),
    ],
    ids=["empty", "long caches", "no stream", "many streams", "two cells", "short"],
)
def test_an_invalid_structure_is_a_mismatch(state: bytearray) -> None:
    """Every length is checked."""
    with pytest.raises(StateMismatch):
        convert_state(state, 7)


@given(data=st.binary(max_size=120), streams=st.integers(1, 4))
def test_arbitrary_bytes_raise_no_other_error(data: bytes, streams: int) -> None:
    """And the result is hardly larger than the input."""
    cell_layout(bytearray(data))
    try:
        converted, length = convert_state(bytearray(data), streams)
    except StateMismatch:
        return
    assert length <= len(converted) <= len(data) + 8 * streams
