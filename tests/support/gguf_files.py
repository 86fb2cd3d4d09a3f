"""Writes small valid and invalid GGUF files."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALIGNMENT = 32


@dataclass(frozen=True)
class F32Tensor:
    """A tensor of 32-bit floats, all zero."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signed:
    """A number that is written as int32."""

    number: int


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """Encode a typed metadata value: text, bool, float, int (u32, else u64) or a list of them."""
    kind, data = _value(item)
    return struct.pack("<I", kind) + data


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[F32Tensor] = (),
    *,
    version: int = 3,
    num_metadata: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Return a complete file. The counts can be overridden with wrong ones."""
    entries = b"".join(text(key) + value(item) for key, item in metadata.items())
    infos, offset = b"", 0
    for tensor in tensors:
        shape = tensor.shape
        infos += text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", 0, offset)
        size = 4
        for length in shape:
            size *= length
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_metadata is None else num_metadata,
    )
    data = head + entries + infos
    return data + bytes(-len(data) % ALIGNMENT) + bytes(offset)


def model_metadata(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a tiny decoder; keyword names write "." as "__", None removes."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.context_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    }
    for name, item in changes.items():
        metadata[name.replace("__", ".")] = item
    return {key: item for key, item in metadata.items() if item is not None}


def write_model(path: Path, **changes: Any) -> Path:
    """Write a tiny model file that can be described but not loaded."""
    path.write_bytes(gguf_bytes(model_metadata(**changes), [F32Tensor("w", (8, 4))]))
    return path


def write_split(folder: Path, numbers: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Write a model in three parts, of which the later have tensors only; return the first."""
    for place, number in enumerate(numbers):
        split = {"split.no": number, "split.count": len(numbers)}
        metadata = {**model_metadata(), **split} if place == 0 else split
        path = folder / f"big-{place + 1:05}-of-{len(numbers):05}.gguf"
        path.write_bytes(gguf_bytes(metadata, [F32Tensor("w", (8, 4))]))
    return folder / "big-00001-of-00003.gguf"


def _value(item: Any) -> tuple[int, bytes]:
    match item:
        case bool():
            return 7, struct.pack("<?", item)
        case str() | bytes():
            return 8, text(item)
        case float():
            return 6, struct.pack("<f", item)
        case Signed(number):
            return 5, struct.pack("<i", number)
        case int():
            return (4, struct.pack("<I", item)) if item < 2**32 else (10, struct.pack("<Q", item))
        case list():
            encoded = [_value(each) for each in item]
            kind = encoded[0][0] if encoded else 4
            body = b"".join(data for _, data in encoded)
            return 9, struct.pack("<IQ", kind, len(encoded)) + body
    raise TypeError(type(item))
