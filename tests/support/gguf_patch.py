"""Copies a GGUF file with another chat template: what a hostile publisher would do to a model.

Only the one text changes; the tensors' offsets are relative to the data section, so it is enough to
pad the head anew.
"""

import struct
from pathlib import Path

ALIGNMENT = 32
TEMPLATE_KEY = b"tokenizer.chat_template"

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def with_template(source: Path, target: Path, template: str) -> Path:
    """Write `source` to `target` with this chat template in place of its own; returns `target`."""
    data = source.read_bytes()
    value_start, value_end, head_end = _find(data)
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


def _find(data: bytes) -> tuple[int, int, int]:
    """Where the template's text begins (at its length) and ends, and where the head ends."""
    num_tensors, num_metadata = struct.unpack_from("<QQ", data, 8)
    position, found = 24, (0, 0)
    for _ in range(num_metadata):
        key_end = _skip_text(data, position)
        key = data[position + 8 : key_end]
        value_end = _skip_value(data, key_end)
        if key == TEMPLATE_KEY:
            found = key_end + 4, value_end
        position = value_end
    for _ in range(num_tensors):
        position = _skip_text(data, position)
        (dimensions,) = struct.unpack_from("<I", data, position)
        position += 4 + 8 * dimensions + 4 + 8
    if not found[0]:
        raise ValueError("the file has no chat template")
    return *found, position


def _skip_text(data: bytes, position: int) -> int:
    return position + 8 + int(struct.unpack_from("<Q", data, position)[0])


def _skip_value(data: bytes, position: int) -> int:
    (kind,) = struct.unpack_from("<I", data, position)
    return _skip_typed(data, position + 4, kind)


def _skip_typed(data: bytes, position: int, kind: int) -> int:
    if kind == _STRING:
        return _skip_text(data, position)
    if kind != _ARRAY:
        return position + _SIZES[kind]
    item, count = struct.unpack_from("<IQ", data, position)
    position += 12
    for _ in range(count):
        position = _skip_typed(data, position, item)
    return position
