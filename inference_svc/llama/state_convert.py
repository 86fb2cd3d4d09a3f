"""The structure of saved states: where their cells are, and how they fit a context with another
number of slots.
"""

import struct
from contextlib import suppress
from typing import NamedTuple

from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.llama.grid_positions import split_chunks

HEAD_BYTES = 8  # magic and sequence id
_COUNT = struct.Struct("<I")
_LENGTHS = struct.Struct("<QQ")
_LAYOUT = struct.Struct("<II")  # whether values are transposed, and the number of layers
_ROW = struct.Struct("<iQ")  # type and bytes of a cell's keys or values
_COLUMN = struct.Struct("<iII")  # type, bytes of a number, numbers of a cell
_CELL_BYTES = 12  # position, number of sequences, sequence
_GRID_CELL_BYTES = _CELL_BYTES + 8  # also row and column, with M-RoPE
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
    return _read_cache(state, at, len(state), _CELL_BYTES).end - at


def cell_layout(state: bytearray) -> CellLayout | None:
    """Where a state has the keys and values of its cells; None if it has no cache with all of them,
    or one that is read otherwise. Those of a window are not among them."""
    state, _ = split_chunks(state)
    if len(state) < HEAD_BYTES + LENGTHS_BYTES:
        return None
    end = HEAD_BYTES + _LENGTHS.unpack_from(state, len(state) - LENGTHS_BYTES)[0]
    for cell_bytes in (_CELL_BYTES, _GRID_CELL_BYTES):
        with suppress(StateMismatch):
            cache = _read_cache(state, HEAD_BYTES, end, cell_bytes)
            if cache.end == end and cache.layout.cell_bytes:
                return cache.layout
    return None


class _Cache(NamedTuple):
    layout: CellLayout
    end: int


def _read_cache(state: bytearray, at: int, end: int, cell_bytes: int) -> _Cache:
    """Read the structure of the cache at `at`, which ends at `end` or before: first the keys of all
    its layers, then their values, which some models lack."""
    streams = _read_count(state, at, end)
    at += _COUNT.size
    layout = CellLayout(0, ())
    for stream in range(streams):
        cells = _read_count(state, at, end)
        at += _COUNT.size
        if not cells:
            continue
        at += cells * cell_bytes
        is_transposed, layers = _read(_LAYOUT, state, at, end)
        at += _LAYOUT.size
        arrays, last = list[CellArray](), end - _COUNT.size * (streams - 1 - stream)
        while len(arrays) < layers or (len(arrays) < 2 * layers and at != last):
            if is_transposed and len(arrays) >= layers:
                _, size, rows = _read(_COLUMN, state, at, end)
                at += _COLUMN.size
            else:
                rows, size = 1, _read(_ROW, state, at, end)[1]
                at += _ROW.size
            arrays.append(CellArray(at, rows, size))
            at += rows * cells * size
        layout = CellLayout(cells, tuple(arrays))
    return _Cache(layout, at)


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
    return _read(_COUNT, data, at, end)[0]


def _read(
    fields: struct.Struct, data: bytearray | memoryview, at: int, end: int
) -> tuple[int, ...]:
    if at + fields.size > min(end, len(data)):
        raise StateMismatch("the state is too short")
    return fields.unpack_from(data, at)
