"""Conversion of saved states between contexts with different numbers of slots."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.llama.state_convert import (
    LENGTHS_BYTES,
    CacheLengths,
    StateMismatch,
    cache_lengths,
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


@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_length_of_a_cache_before_a_recurrent_part_is_read(is_transposed: bool) -> None:
    keys = struct.pack("<iQ", 1, 4) + bytes(3 * 4)
    head = struct.pack("<iII", 1, 2, 3) if is_transposed else struct.pack("<iQ", 1, 6)
    layers = struct.pack("<II", is_transposed, 1) + keys + head + bytes(3 * 6)
    cells = bytes(3 * 12) + layers
    cache = _cache(cells, 1, 4)

    assert window_length(bytearray(HEAD + cache + TAIL), len(HEAD)) == len(cache)


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
    try:
        converted, length = convert_state(bytearray(data), streams)
    except StateMismatch:
        return
    assert length <= len(converted) <= len(data) + 8 * streams
