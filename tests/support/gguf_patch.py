"""Copies a GGUF file with another chat template, or with other control tokens.

Tensor offsets are relative to the data section, so only the header and its padding change.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

ALIGNMENT = 32
TEMPLATE_KEY = b"tokenizer.chat_template"
TYPES_KEY = b"tokenizer.ggml.token_type"
CONTROL = 3

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def copy_with_template(source: Path, target: Path, template: str) -> Path:
    """Write `source` to `target` with this chat template in place of its own; returns `target`."""
    data = source.read_bytes()
    value_start, value_end, head_end = _find(data, TEMPLATE_KEY)
    text = template.encode()
    head = b"".join(
        [
            data[:value_start],
            struct.pack("<Q", len(text)),
            text,
            data[value_end:head_end],
        ]
    )
    tensors = data[-(-head_end // ALIGNMENT) * ALIGNMENT :]
    target.write_bytes(head + bytes(-len(head) % ALIGNMENT) + tensors)
    return target


def copy_with_control_tokens(source: Path, target: Path, tokens: Iterable[int]) -> Path:
    data = bytearray(source.read_bytes())
    types_start, _, _ = _find(data, TYPES_KEY)
    for token in tokens:
        struct.pack_into("<i", data, types_start + 12 + 4 * token, CONTROL)
    target.write_bytes(data)
    return target


def _find(data: bytes | bytearray, key_to_find: bytes) -> tuple[int, int, int]:
    """Return the start (after its type) and the end of a value, and the end of the header."""
    num_tensors, num_metadata = struct.unpack_from("<QQ", data, 8)
    position, value_range = 24, (0, 0)
    for _ in range(num_metadata):
        key_end = _skip_text(data, position)
        key = data[position + 8 : key_end]
        value_end = _skip_value(data, key_end)
        if key == key_to_find:
            value_range = key_end + 4, value_end
        position = value_end
    for _ in range(num_tensors):
        position = _skip_text(data, position)
        (dimensions,) = struct.unpack_from("<I", data, position)
        position += 4 + 8 * dimensions + 4 + 8
    if not value_range[0]:
        raise ValueError(f"the file has no {key_to_find.decode()}")
    return *value_range, position


def _skip_text(data: bytes | bytearray, position: int) -> int:
    return position + 8 + int(struct.unpack_from("<Q", data, position)[0])


def _skip_value(data: bytes | bytearray, position: int) -> int:
    (kind,) = struct.unpack_from("<I", data, position)
    return _skip_typed(data, position + 4, kind)


def _skip_typed(data: bytes | bytearray, position: int, kind: int) -> int:
    if kind == _STRING:
        return _skip_text(data, position)
    if kind != _ARRAY:
        return position + _SIZES[kind]
    item, count = struct.unpack_from("<IQ", data, position)
    position += 12
    for _ in range(count):
        position = _skip_typed(data, position, item)
    return position
