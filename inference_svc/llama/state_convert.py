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
    """Bytes of the attention caches in a state, which begin behind its head; 0 for none. A second
    one is there for models with a sliding window; recurrent parts have no streams."""

    first: int
    second: int


def cache_lengths(whole: int, partial: int, *, recurrent: bool, hybrid: bool) -> CacheLengths:
    """From the sizes of a whole state and of one without its first cache, as llama.cpp gives them
    (equal where it knows no such part)."""
    if recurrent:
        return CacheLengths(0, 0)
    first = whole - partial
    if first == 0:
        return CacheLengths(whole - _HEAD_BYTES, 0)
    return CacheLengths(first, 0 if hybrid else partial - _HEAD_BYTES)


def write_lengths(state: bytearray, lengths: CacheLengths) -> None:
    """Fill in the last `LENGTHS_BYTES` of a state."""
    _LENGTHS.pack_into(state, len(state) - LENGTHS_BYTES, *lengths)


def convert_state(state: bytearray, streams: int) -> tuple[bytearray, int]:
    """The state for a context of so many streams, and its length without the note; the same object
    where it fits as it is. Raises `StateMismatch`."""
    end = len(state) - LENGTHS_BYTES
    if end < _HEAD_BYTES:
        raise StateMismatch("it is too short")
    lengths = CacheLengths(*_LENGTHS.unpack_from(state, end))
    if _HEAD_BYTES + sum(lengths) > end:
        raise StateMismatch("it is shorter than its caches")
    if not lengths.first or _count(state, _HEAD_BYTES, end) == streams:
        return state, end
    view, at = memoryview(state), _HEAD_BYTES
    parts: list[bytes | memoryview] = [view[:at]]
    for length in filter(None, lengths):
        cells = _cells(view[at : at + length])
        parts += [_COUNT.pack(streams), cells, bytes(_COUNT.size * (streams - 1))]
        at += length
    parts.append(view[at:end])
    return bytearray().join(parts), sum(map(len, parts))


def _cells(cache: memoryview) -> memoryview:
    """The one stream of a cache that has cells."""
    streams, at = _count(cache, 0, len(cache)), _COUNT.size
    if not 0 < streams <= len(cache) // _COUNT.size - 1:
        raise StateMismatch(f"it has {streams} streams")
    empty = 0
    while empty < streams - 1 and _count(cache, at, len(cache)) == 0:
        at += _COUNT.size
        empty += 1
    end = len(cache) - _COUNT.size * (streams - 1 - empty)
    if end <= at or any(cache[end:]):
        raise StateMismatch("more than one stream has cells")
    return cache[at:end]


def _count(data: bytearray | memoryview, at: int, end: int) -> int:
    if at + _COUNT.size > end:
        raise StateMismatch("it is too short")
    value: int = _COUNT.unpack_from(data, at)[0]
    return value
