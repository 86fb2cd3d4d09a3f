"""Validation of adapter files before llama.cpp reads them."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from model_files.adapter_file import AdapterMismatch, describe_adapter, read_adapter
from model_files.gguf import ModelFileInvalid
from tests.support.gguf_files import F32Tensor, gguf_bytes

PIRATE = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
FOREIGN = Path(__file__).parents[2] / "data" / "foreign-lora-f16.gguf"
Q = "blk.0.attn_q.weight"
MODEL_TENSORS = [
    F32Tensor(Q, (64, 32)),
    F32Tensor("blk.0.ffn_up_exps.weight", (64, 16, 4)),
    F32Tensor("blk.0.attn_norm.weight", (64,)),
    F32Tensor("token_embd.weight", (64, 100)),
    F32Tensor("output.weight", (64, 100)),
]


def make_pair(name: str = Q, a: tuple[int, ...] = (64, 8), b: tuple[int, ...] = (8, 32)) -> Any:
    """Return both matrices of a LoRA for one tensor."""
    return [F32Tensor(f"{name}.lora_a", a), F32Tensor(f"{name}.lora_b", b)]


class Files:
    def __init__(self, folder: Path) -> None:
        self.model = folder / "model.gguf"
        self.adapter = folder / "adapter.gguf"
        self.write_model(MODEL_TENSORS)

    def write_model(self, tensors: list[F32Tensor]) -> None:
        self.model.write_bytes(gguf_bytes({"general.architecture": "llama"}, tensors))

    def check(self, tensors: Any = None, **changes: Any) -> Any:
        """Validate an adapter. `changes` has metadata, with "__" for "." and None to remove."""
        metadata = {
            "general.type": "adapter",
            "general.architecture": "llama",
            "general.name": "voice",
            "adapter.type": "lora",
            "adapter.lora.alpha": 16.0,
        }
        metadata |= {key.replace("__", "."): value for key, value in changes.items()}
        remaining = {key: value for key, value in metadata.items() if value is not None}
        tensors = make_pair() if tensors is None else tensors
        self.adapter.write_bytes(gguf_bytes(remaining, tensors))
        return describe_adapter(self.adapter, [self.model])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_bundled_adapter_fits_the_bundled_model() -> None:
    adapter = describe_adapter(PIRATE, [BUNDLED_PATH])

    assert (adapter.rank, adapter.title) == (8, "demo-lora-pirate")
    assert 0 < adapter.size_bytes < PIRATE.stat().st_size


def test_the_error_for_another_model_has_the_difference() -> None:
    """The first tensor that does not fit, with the shapes."""
    with pytest.raises(AdapterMismatch, match=r"blk.0.attn_q.weight.*192 x 8.*256 x 256"):
        describe_adapter(FOREIGN, [BUNDLED_PATH])


def test_adapters_for_experts_and_for_the_embedding_are_valid(files: Files) -> None:
    """One pair per expert; A is transposed for the embedding."""
    experts = make_pair("blk.0.ffn_up_exps.weight", (64, 8, 4), (8, 16, 4))
    embedding = make_pair("token_embd.weight", (8, 100), (8, 64))

    assert files.check([*experts, *embedding]).rank == 8


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"general__type": "model"}, "general.type is 'model'"),
        ({"general__type": None}, "general.type is None"),
        ({"general__type": 7}, "not a string"),
        ({"adapter__type": "control_vector"}, "adapter.type is"),
        ({"adapter__lora__alpha": 16}, "alpha"),
        ({"adapter__lora__alpha": "16"}, "alpha"),
        ({"adapter__lora__alpha": float("nan")}, "alpha"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, "aLoRA"),
        ({"tensors": []}, "no tensors"),
        ({"tensors": make_pair()[:1]}, "one matrix of the LoRA"),
        ({"tensors": [*make_pair(), make_pair()[0]]}, "duplicate tensor"),
        ({"tensors": [*make_pair(), F32Tensor("blk.0.attn_norm.weight", (64,))]}, "ignore it"),
        ({"tensors": make_pair("blk.0." + "x" * 60)}, "too long"),
    ],
)
def test_an_invalid_adapter_is_refused(files: Files, changes: Any, problem: str) -> None:
    """Everything that llama.cpp would abort on or ignore."""
    with pytest.raises(ModelFileInvalid, match=problem):
        files.check(**changes)


def test_an_alpha_may_be_absent(files: Files) -> None:
    """Only the scale applies then."""
    assert files.check(adapter__lora__alpha=None).rank == 8


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (make_pair("blk.9.attn_q.weight"), "has no tensor"),
        (make_pair("blk.0.attn_norm.weight"), "not a matrix"),
        (make_pair(a=(32, 8)), "32 x 8"),
        (make_pair(b=(8, 64)), "8 x 64"),
        (make_pair(b=(4, 32)), "4 x 32"),
        (make_pair(a=(64, 8, 2), b=(8, 32, 2)), "64 x 8 x 2"),
        (make_pair("blk.0.ffn_up_exps.weight", (64, 8), (8, 16)), "64 x 16 x 4"),
        (make_pair("token_embd.weight", (8, 100), (4, 64)), "8 x 100"),
        (make_pair("token_embd.weight", (64, 8), (8, 100)), "64 x 8"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(files: Files, tensors: Any, problem: str) -> None:
    """By names and all dimensions, also those that llama.cpp does not compare."""
    with pytest.raises(AdapterMismatch, match=problem):
        files.check(tensors)


def test_another_architecture_is_refused(files: Files) -> None:
    """Also with equal shapes."""
    with pytest.raises(AdapterMismatch, match="'qwen3'"):
        files.check(general__architecture="qwen3")


def test_a_tied_embedding_cannot_be_adapted(files: Files) -> None:
    """llama.cpp would apply the transposed matrix to the output, and abort."""
    files.write_model([tensor for tensor in MODEL_TENSORS if tensor.name != "output.weight"])
    with pytest.raises(AdapterMismatch, match="output too"):
        files.check(make_pair("token_embd.weight", (8, 100), (8, 64)))


def overwrite_matrix(files: Files, type_id: int, data: bytes) -> None:
    """Change the type of the first matrix and its first bytes."""
    raw = bytearray(files.adapter.read_bytes())
    end_of_name = raw.index(b".lora_a") + len(b".lora_a")
    struct.pack_into("<I", raw, end_of_name + 4 + 16, type_id)
    start = len(raw) - 4 * (64 * 8 + 8 * 32)
    raw[start : start + len(data)] = data
    files.adapter.write_bytes(raw)


HALF_NAN = np.array([np.nan], "<f2").tobytes()


@pytest.mark.parametrize(
    ("type_id", "data", "is_finite"),
    [
        (0, np.array([1.0, -1.0], "<f4").tobytes(), True),
        (0, np.array([1.0, np.inf], "<f4").tobytes(), False),
        (1, b"\0\0" + HALF_NAN, False),
        (30, b"\x80\x3f", True),
        (30, b"\x80\x7f", False),
        (8, b"\0\0" + HALF_NAN * 16, True),
        (8, b"\0" * 34 + HALF_NAN, False),
    ],
)
def test_every_value_must_be_finite(
    files: Files, type_id: int, data: bytes, is_finite: bool
) -> None:
    """In every supported type. In q8_0 only the scales can be NaN."""
    files.check()
    overwrite_matrix(files, type_id, data)

    if is_finite:
        assert describe_adapter(files.adapter, [files.model]).rank == 8
    else:
        with pytest.raises(ModelFileInvalid, match="not finite"):
            describe_adapter(files.adapter, [files.model])


@pytest.mark.parametrize(
    ("alpha", "largest", "is_usable"),
    [
        (16.0, 60.0, True),
        (1e38, 1.0, False),
        (-1e38, 1.0, False),
        (0.0, 1.0, True),
        (16.0, 1e30, False),
        (0.0, 1e30, False),
        (3e38, 3e38, False),
    ],
)
def test_values_that_overflow_are_refused(
    files: Files, alpha: float, largest: float, is_usable: bool
) -> None:
    """Finite ones whose product is not finite in the model: of the weights, and of alpha. Without
    an alpha of its own an adapter has the factor 1."""
    ones = np.ones(8 * 32, "<f4").tobytes()
    files.check(adapter__lora__alpha=alpha)
    overwrite_matrix(files, 0, np.full(64 * 8, largest, "<f4").tobytes() + ones)

    if is_usable:
        assert describe_adapter(files.adapter, [files.model]).rank == 8
    else:
        with pytest.raises(ModelFileInvalid, match="too large"):
            describe_adapter(files.adapter, [files.model])
        with pytest.raises(ModelFileInvalid, match="too large"):
            read_adapter(files.adapter)


def test_other_types_are_refused(files: Files) -> None:
    """Such as int32."""
    files.check()
    overwrite_matrix(files, 26, b"")

    with pytest.raises(ModelFileInvalid, match="not of type f32"):
        describe_adapter(files.adapter, [files.model])
