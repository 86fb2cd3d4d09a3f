"""Bounds what parsing a protobuf message costs: a field of two bytes can become an object of a
hundred."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor

from svc_kit.errors import TooLong

MAX_FIELDS: Final = 2**18
"""Values in a message and all messages in it; what is packed into one value counts once. A
conversation of 10,000 messages with calls of tools has a third."""
_MIN_FIELD_BYTES: Final = 2
_MAX_SHIFT: Final = 63
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED_64: 8, _FIXED_32: 4}


def check_fields(raw: bytes, deserialize: Callable[[bytes], Any]) -> None:
    """Raise TooLong if a message has more than MAX_FIELDS. `deserialize` is the `FromString` of its
    class; of other functions nothing is known. What is no valid encoding is left to them."""
    descriptor = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    if descriptor is None or len(raw) <= MAX_FIELDS * _MIN_FIELD_BYTES:
        return
    try:
        _count(raw, descriptor)
    except IndexError:
        return  # it is no valid encoding


def _count(raw: bytes, descriptor: Descriptor) -> None:
    position, num_fields, size = 0, 0, len(raw)
    levels = [(size, _messages_of(descriptor))]
    while position < size:
        while position >= levels[-1][0]:
            levels.pop()
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise TooLong(field="request", length=num_fields, limit=MAX_FIELDS, unit="values")
        tag, position = _read_varint(raw, position)
        kind = tag & 7
        if kind == _LENGTH:
            length, position = _read_varint(raw, position)
            if (inner := levels[-1][1].get(tag >> 3)) is None:
                position += length
            else:
                levels.append((position + length, _messages_of(inner)))
        elif kind == _VARINT:
            _, position = _read_varint(raw, position)
        else:
            position += _FIXED_BYTES.get(kind, 0)


@cache
def _messages_of(descriptor: Descriptor) -> dict[int, Descriptor]:
    """The types of those fields that are messages, by number."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None
    }


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """A number and the position after it. Raises IndexError, also if it has too many bytes."""
    value = raw[position]
    if value < 0x80:
        return value, position + 1
    value, shift = value & 0x7F, 7
    while (byte := raw[position := position + 1]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > _MAX_SHIFT:
            raise IndexError
    return value | byte << shift, position + 1
