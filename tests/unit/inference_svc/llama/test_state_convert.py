"""States between contexts of different sizes, byte by byte."""

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
    write_lengths,
)

HEAD, TAIL = b"headhead", b"recurrent part"


def _cache(cells: bytes, slot: int, streams: int) -> bytes:
    """As llama.cpp writes it: streams, then a zero for each but one."""
    empty = bytes(4)
    counted = struct.pack("<I", 3) + cells
    return struct.pack("<I", streams) + empty * slot + counted + empty * (streams - slot - 1)


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
def test_a_state_fits_any_number_of_slots(
    cells: list[bytes], slot: int, tail: bytes, streams: int
) -> None:
    """It is what a context of that number would have written from its first slot."""
    state = _state([_cache(each, slot, 5) for each in cells], tail)
    fitting, length = convert_state(state, streams)

    if streams == 5 or not cells:
        assert fitting is state
    else:
        expected = HEAD + b"".join(_cache(each, 0, streams) for each in cells) + tail
        assert bytes(fitting[:length]) == expected


def test_lengths_come_from_what_llama_cpp_counts() -> None:
    """By the kind of memory: attention, with a window, recurrent, both."""
    assert cache_lengths(108, 108, recurrent=False, hybrid=False) == (100, 0)
    assert cache_lengths(108, 48, recurrent=False, hybrid=False) == (60, 40)
    assert cache_lengths(108, 108, recurrent=True, hybrid=False) == (0, 0)
    assert cache_lengths(108, 48, recurrent=False, hybrid=True) == (60, 0)


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
def test_what_is_not_built_so_is_a_misfit(state: bytearray) -> None:
    """And nothing is guessed."""
    with pytest.raises(StateMismatch):
        convert_state(state, 7)


@given(data=st.binary(max_size=120), streams=st.integers(1, 4))
def test_any_bytes_fit_or_do_not(data: bytes, streams: int) -> None:
    """No other error, and no more memory than a few streams take."""
    try:
        fitting, length = convert_state(bytearray(data), streams)
    except StateMismatch:
        return
    assert length <= len(fitting) <= len(data) + 8 * streams
