"""Converts the saved state of a sequence to a context with another number of slots."""

import struct
from typing import NamedTuple

HEAD_BYTES = 8  # magic and sequence id
_COUNT = struct.Struct("<I")
_LENGTHS = struct.Struct("<QQ")
_LAYOUT = struct.Struct("<II")  # whether values are transposed, and the number of layers
_ROW = struct.Struct("<iQ")  # type and bytes of a cell's keys or values
_COLUMN = struct.Struct("<iII")  # type, bytes of a number, numbers of a cell
_CELL_BYTES = 12  # position, number of sequences, sequence
LENGTHS_BYTES = _LENGTHS.size


class StateMismatch(ValueError):
    """A state has an unexpected structure."""


class CacheLengths(NamedTuple):
    """Bytes of the attention caches in a state, which follow its head; 0 if absent. Models with a
    sliding window have a second one; recurrent parts, which come last, have no streams."""

    first: int
    second: int


def cache_lengths(whole: int, partial: int, *, recurrent: bool, hybrid: bool) -> CacheLengths:
    """Derive the lengths from the sizes of a whole state and of a partial one, without the first
    cache. llama.cpp returns equal sizes for models that have no partial state."""
    if recurrent:
        return CacheLengths(0, 0)
    first = whole - partial
    if first == 0:
        return CacheLengths(whole - HEAD_BYTES, 0)
    return CacheLengths(first, 0 if hybrid else partial - HEAD_BYTES)


def window_length(state: bytearray, at: int) -> int:
    """The bytes of the cache at `at`, which has keys and values of all its layers. The sizes of a
    state do not say it where a recurrent part follows."""
    start = at
    streams = _read_count(state, at, len(state))
    at += _COUNT.size
    for _ in range(streams):
        cells = _read_count(state, at, len(state))
        at += _COUNT.size
        if not cells:
            continue
        at += cells * _CELL_BYTES
        is_transposed, layers = _LAYOUT.unpack_from(state, at)
        at += _LAYOUT.size
        for number in range(2 * layers):
            if is_transposed and number >= layers:
                _, size, count = _COLUMN.unpack_from(state, at)
                at += _COLUMN.size + cells * size * count
            else:
                at += _ROW.size + cells * _ROW.unpack_from(state, at)[1]
    return at - start


def write_lengths(state: bytearray, lengths: CacheLengths) -> None:
    """Write the lengths into the last `LENGTHS_BYTES` of a state."""
    _LENGTHS.pack_into(state, len(state) - LENGTHS_BYTES, *lengths)


def convert_state(state: bytearray, streams: int) -> tuple[bytearray, int]:
    """Convert a state to a context with `streams` streams; returns it and its size without the
    appended lengths. A state that already fits is returned unchanged. Raises `StateMismatch`."""
    end = len(state) - LENGTHS_BYTES
    if end < HEAD_BYTES:
        raise StateMismatch("the state is too short")
    lengths = CacheLengths(*_LENGTHS.unpack_from(state, end))
    if HEAD_BYTES + sum(lengths) > end:
        raise StateMismatch("the state is shorter than its caches")
    if not lengths.first or _read_count(state, HEAD_BYTES, end) == streams:
        return state, end
    view, at = memoryview(state), HEAD_BYTES
    parts: list[bytes | memoryview] = [view[:at]]
    for length in filter(None, lengths):
        cells = _used_stream(view[at : at + length])
        parts += [_COUNT.pack(streams), cells, bytes(_COUNT.size * (streams - 1))]
        at += length
    parts.append(view[at:end])
    return bytearray().join(parts), sum(map(len, parts))


def _used_stream(cache: memoryview) -> memoryview:
    """The only stream of a cache that has cells."""
    streams, at = _read_count(cache, 0, len(cache)), _COUNT.size
    if not 0 < streams <= len(cache) // _COUNT.size - 1:
        raise StateMismatch(f"invalid number of streams: {streams}")
    empty = 0
    while empty < streams - 1 and _read_count(cache, at, len(cache)) == 0:
        at += _COUNT.size
        empty += 1
    end = len(cache) - _COUNT.size * (streams - 1 - empty)
    if end <= at or any(cache[end:]):
        raise StateMismatch("more than one stream has cells")
    return cache[at:end]


def _read_count(data: bytearray | memoryview, at: int, end: int) -> int:
    if at + _COUNT.size > end:
        raise StateMismatch("the state is too short")
    value: int = _COUNT.unpack_from(data, at)[0]
    return value
