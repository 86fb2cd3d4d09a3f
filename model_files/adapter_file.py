"""Validates a LoRA adapter's file against a model before llama.cpp reads it.

llama.cpp aborts on metadata of an unexpected type and ignores tensors that it does not know.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from model_files.adapter_facts import AdapterFacts
from model_files.ggml_types import TENSOR_LAYOUTS
from model_files.gguf import GgufHeader, ModelFileInvalid, Tensor, read_header

_FLOAT32 = 6  # GGUF type id of `adapter.lora.alpha`
_ALPHA = "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"
_HALVES = (".lora_a", ".lora_b")
# ggml type ids that adapters may have.
_F32, _F16, _Q8_0, _BF16 = 0, 1, 8, 30
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME - 1
_MAX_RANK = 65_536
_BLOCKS_PER_READ = 1 << 18
_Q8_0_MAX = 128
_MAX_CHANGE = 65_504.0
"""Of a weight: the largest 16-bit float, in which llama.cpp computes."""
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


class AdapterMismatch(Exception):
    """The adapter is valid, but does not fit the model. The message has the difference."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two matrices of a LoRA. Their product is added to the model's tensor `name`."""

    name: str
    a: Tensor
    b: Tensor


def describe_adapter(path: Path, model_paths: Sequence[Path]) -> AdapterFacts:
    """Validate an adapter, including all values, against the model in `model_paths`.

    Raises:
        ModelFileInvalid: the file is damaged, or not an adapter that llama.cpp supports.
        AdapterMismatch: it does not fit the model.
    """
    header = read_header(path, keep_tensors=True)
    _check_kind(header)
    pairs = _pairs(header)
    base = [read_header(part, keep_tensors=True) for part in model_paths]
    _compare(header, pairs, base)
    _check_values(header, pairs)
    return _facts(header, pairs)


def read_adapter(path: Path) -> AdapterFacts:
    """Validate an adapter, including all values, without its model.

    Raises:
        ModelFileInvalid: the file is damaged, or not an adapter that llama.cpp supports.
    """
    header = read_header(path, keep_tensors=True)
    _check_kind(header)
    if not header.text("general.architecture"):
        raise ModelFileInvalid(path, "general.architecture is missing")
    pairs = _pairs(header)
    for pair in pairs:
        if not _is_product(pair):
            shapes = f"{_shape(pair.a)} and {_shape(pair.b)}"
            raise ModelFileInvalid(path, f"the matrices for {pair.name!r:.80} are {shapes}")
    _check_values(header, pairs)
    return _facts(header, pairs)


def _facts(header: GgufHeader, pairs: Sequence[_Pair]) -> AdapterFacts:
    return AdapterFacts(
        architecture=header.text("general.architecture") or "",
        base_model=header.text("general.base_model.0.name") or "",
        rank=max(pair.b.shape[0] for pair in pairs),
        size_bytes=sum(tensor.size_bytes or 0 for tensor in header.tensors),
        title=header.text("general.name") or "",
    )


def _check_kind(header: GgufHeader) -> None:
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        value = header.text(key)
        if value != expected:
            raise ModelFileInvalid(header.path, f"not a LoRA adapter ({key} is {value!r:.80})")
    alpha = header.metadata.get(_ALPHA, 0.0)
    if header.value_types.get(_ALPHA, _FLOAT32) != _FLOAT32 or not math.isfinite(float(alpha)):  # type: ignore[arg-type]  # a number, by its type
        raise ModelFileInvalid(header.path, f"{_ALPHA} is not a finite 32-bit number")
    if _INVOCATION in header.metadata:
        # It would apply only to tokens after the invocation tokens.
        raise ModelFileInvalid(header.path, "activated LoRA (aLoRA) is not supported")


def _pairs(header: GgufHeader) -> list[_Pair]:
    halves: dict[str, dict[str, Tensor]] = {}
    for tensor in header.tensors:
        name, half = tensor.name[:-7], tensor.name[-7:]
        if half not in _HALVES:
            problem = "is not part of a LoRA; llama.cpp would ignore it"
            raise ModelFileInvalid(header.path, f"tensor {tensor.name!r:.80} {problem}")
        if len(tensor.name.encode()) > _MAX_NAME_BYTES:
            raise ModelFileInvalid(header.path, f"the name {tensor.name!r:.80} is too long")
        if tensor.type_id not in (_F32, _F16, _Q8_0, _BF16):
            raise ModelFileInvalid(
                header.path, f"tensor {tensor.name!r:.80} is not of type f32, f16, bf16 or q8_0"
            )
        if halves.setdefault(name, {}).setdefault(half, tensor) is not tensor:
            raise ModelFileInvalid(header.path, f"duplicate tensor {tensor.name!r:.80}")
    for name, matrices in halves.items():
        if len(matrices) < len(_HALVES):
            raise ModelFileInvalid(
                header.path, f"one matrix of the LoRA for {name!r:.80} is missing"
            )
    if not halves:
        raise ModelFileInvalid(header.path, "it has no tensors")
    return [_Pair(name, *(each[half] for half in _HALVES)) for name, each in halves.items()]


# --- against the model ----------------------------------------------------------------------------


def _compare(header: GgufHeader, pairs: Sequence[_Pair], base: Sequence[GgufHeader]) -> None:
    own, expected = (each.text("general.architecture") for each in (header, base[0]))
    if own != expected:
        raise AdapterMismatch(f"its architecture is {own!r:.40}, the model's {expected!r:.40}")
    tensors: Mapping[str, Tensor] = {
        tensor.name: tensor for part in base for tensor in part.tensors
    }
    for pair in pairs:
        tensor = tensors.get(pair.name)
        if tensor is None:
            raise AdapterMismatch(f"the model has no tensor {pair.name!r:.80}")
        if len(tensor.shape) < 2:
            raise AdapterMismatch(f"{pair.name!r:.80} is not a matrix in the model")
        if pair.name == _EMBEDDING and _OUTPUT not in tensors:
            raise AdapterMismatch(
                f"the model uses {_EMBEDDING!r} for its output too, which llama.cpp cannot adapt"
            )
        if not _fits(pair, tensor):
            raise AdapterMismatch(
                f"the matrices for {pair.name!r:.80} are {_shape(pair.a)} and {_shape(pair.b)}, "
                f"the model's is {_shape(tensor)}"
            )


def _fits(pair: _Pair, tensor: Tensor) -> bool:
    """Whether B x A has the shape of the model's tensor. For the embedding, A is transposed."""
    (a_in, a_out, *a_rest), (b_in, b_out, *b_rest) = map(_dimensions, (pair.a, pair.b))
    inputs, outputs, *rest = _dimensions(tensor)
    if not a_rest == b_rest == rest or not 0 < b_in <= _MAX_RANK:
        return False
    if pair.name == _EMBEDDING:
        return (a_in, a_out, b_out) == (b_in, outputs, inputs)
    return (a_in, a_out, b_out) == (inputs, b_in, outputs)


def _is_product(pair: _Pair) -> bool:
    """Whether the shapes of B and A allow B x A. For the embedding, A is transposed."""
    (a_in, a_out, *a_rest), (b_in, _, *b_rest) = map(_dimensions, (pair.a, pair.b))
    rank = a_in if pair.name == _EMBEDDING else a_out
    return a_rest == b_rest and rank == b_in <= _MAX_RANK


def _dimensions(tensor: Tensor) -> tuple[int, ...]:
    return (*tensor.shape, 1, 1, 1)[:4]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


# --- values ---------------------------------------------------------------------------------------


def _check_values(header: GgufHeader, pairs: Sequence[_Pair]) -> None:
    alpha = abs(float(header.metadata.get(_ALPHA, 0.0)))  # type: ignore[arg-type]  # see _check_kind
    with header.path.open("rb") as file:
        for pair in pairs:
            largest = [_largest(header, tensor, file) for tensor in (pair.a, pair.b)]
            # A sum of as many products as the rank, times alpha / rank; without alpha, times 1.
            change = math.prod(largest) * (alpha or pair.b.shape[0])
            if change > _MAX_CHANGE:
                raise ModelFileInvalid(
                    header.path,
                    f"its values for {pair.name!r:.80} are too large: with them a weight could"
                    f" change by {change:.2g}, the limit is {_MAX_CHANGE:,.0f}",
                )


def _largest(header: GgufHeader, tensor: Tensor, file: BinaryIO) -> float:
    """The largest absolute value of a tensor. Raises `ModelFileInvalid` if one is not finite."""
    layout = TENSOR_LAYOUTS[tensor.type_id]
    file.seek(header.data_start + tensor.offset)
    blocks, largest = math.prod(tensor.shape) // layout.block_items, 0.0
    while blocks:
        count = min(blocks, _BLOCKS_PER_READ)
        data = file.read(count * layout.block_bytes)
        if len(data) < count * layout.block_bytes:
            raise ModelFileInvalid(header.path, "the file shrank while it was read")
        values = _numbers(data, tensor.type_id)
        largest = max(largest, abs(float(values.min())), abs(float(values.max())))
        if not np.isfinite(values).all():
            problem = f"tensor {tensor.name!r:.80} has values that are not finite"
            raise ModelFileInvalid(header.path, problem)
        blocks -= count
    return largest * (_Q8_0_MAX if tensor.type_id == _Q8_0 else 1)


def _numbers(data: bytes, type_id: int) -> npt.NDArray[np.floating[Any]]:
    """The numbers of a block; of q8_0, the scales of its values."""
    if type_id == _BF16:  # the upper half of a 32-bit float
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if type_id == _Q8_0:  # a scale, then 32 integers
        layout = np.dtype([("scale", "<f2"), ("values", "V32")])
        return np.frombuffer(data, layout)["scale"].astype("<f4")
    return np.frombuffer(data, "<f2" if type_id == _F16 else "<f4")
