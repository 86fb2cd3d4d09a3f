"""XXH64, by which gRPC places addresses and keys on its ring, for inputs of less than 32 bytes."""

from typing import Final

_MASK: Final = 2**64 - 1
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5


def xxh64(data: bytes) -> int:
    """The hash with the seed 0."""
    if len(data) >= 32:
        raise ValueError(f"{len(data)} bytes, not less than 32")
    value = (_P5 + len(data)) & _MASK
    at = 0
    while at + 8 <= len(data):
        lane = int.from_bytes(data[at : at + 8], "little") * _P2 & _MASK
        value = (_rotate(value ^ _rotate(lane, 31) * _P1 & _MASK, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        lane = int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        value = (_rotate(value ^ lane, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        value = _rotate(value ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
