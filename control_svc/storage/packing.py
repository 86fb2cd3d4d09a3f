"""Lists in one column: the events and token ids of a commit are written and read together."""

import sys
from array import array
from collections.abc import Sequence


def pack_texts(texts: Sequence[bytes]) -> bytes:
    """The lengths, 4 bytes each, and then the texts."""
    return pack_ints([len(text) for text in texts]) + b"".join(texts)


def unpack_texts(packed: bytes, count: int) -> list[bytes]:
    """The texts that were packed; their count is kept beside them."""
    start, texts = 4 * count, []
    for length in unpack_ints(packed[:start]):
        texts.append(packed[start : start + length])
        start += length
    return texts


def pack_ints(values: Sequence[int]) -> bytes:
    """Numbers of 32 bits, little-endian. Raises OverflowError for larger ones."""
    return _in_order(array("i", values)).tobytes()


def unpack_ints(packed: bytes) -> list[int]:
    """The numbers that were packed."""
    values = array("i")
    values.frombytes(packed)
    return _in_order(values).tolist()


def _in_order(values: "array[int]") -> "array[int]":
    """Between this machine's byte order and the column's."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
