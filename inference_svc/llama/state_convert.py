"""Converts the saved state of a sequence to a context with another number of slots."""

import struct
from typing import NamedTuple

_HEAD_BYTES = 8  # magic and sequence id
_COUNT = struct.Struct("<I")
_LENGTHS = struct.Struct("<QQ")
LENGTHS_BYTES = _LENGTHS.size


class StateMismatch(ValueError):
    """A state has an unexpected structure."""


class CacheLengths(NamedTuple):
    """Bytes of the attention caches in a state, which follow its head; 0 if absent. Models with a
    sliding window have a second one; recurrent parts have no streams."""

    first: int
    second: int


def cache_lengths(whole: int, partial: int, *, recurrent: bool, hybrid: bool) -> CacheLengths:
    """Derive the lengths from the sizes of a whole state and of a partial one, without the first
    cache. llama.cpp returns equal sizes for models that have no partial state."""
    if recurrent:
        return CacheLengths(0, 0)
    first = whole - partial
    if first == 0:
        return CacheLengths(whole - _HEAD_BYTES, 0)
    return CacheLengths(first, 0 if hybrid else partial - _HEAD_BYTES)


def write_lengths(state: bytearray, lengths: CacheLengths) -> None:
    """Write the lengths into the last `LENGTHS_BYTES` of a state."""
    _LENGTHS.pack_into(state, len(state) - LENGTHS_BYTES, *lengths)


def convert_state(state: bytearray, streams: int) -> tuple[bytearray, int]:
    """Convert a state to a context with `streams` streams; returns it and its size without the
    appended lengths. A state that already fits is returned unchanged. Raises `StateMismatch`."""
    end = len(state) - LENGTHS_BYTES
    if end < _HEAD_BYTES:
        raise StateMismatch("the state is too short")
    lengths = CacheLengths(*_LENGTHS.unpack_from(state, end))
    if _HEAD_BYTES + sum(lengths) > end:
        raise StateMismatch("the state is shorter than its caches")
    if not lengths.first or _read_count(state, _HEAD_BYTES, end) == streams:
        return state, end
    view, at = memoryview(state), _HEAD_BYTES
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
