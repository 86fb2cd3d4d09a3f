"""What an adapter's file must be before llama.cpp may read it."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_svc.models.sources import BUNDLED_FOLDER, BUNDLED_PATH
from model_files.adapter_file import AdapterMismatch, describe_adapter
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


def a_pair(name: str = Q, a: tuple[int, ...] = (64, 8), b: tuple[int, ...] = (8, 32)) -> Any:
    """Both halves of a LoRA of one tensor."""
    return [F32Tensor(f"{name}.lora_a", a), F32Tensor(f"{name}.lora_b", b)]


class Files:
    """A model's file, and adapters for it."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "model.gguf"
        self.adapter = folder / "adapter.gguf"
        self.write_model(MODEL_TENSORS)

    def write_model(self, tensors: list[F32Tensor]) -> None:
        """A model of these tensors."""
        self.model.write_bytes(gguf_bytes({"general.architecture": "llama"}, tensors))

    def check(self, tensors: Any = None, **changes: Any) -> Any:
        """Describe an adapter of these tensors; changed metadata writes "." as "__"."""
        metadata = {
            "general.type": "adapter",
            "general.architecture": "llama",
            "general.name": "voice",
            "adapter.type": "lora",
            "adapter.lora.alpha": 16.0,
        }
        metadata |= {key.replace("__", "."): value for key, value in changes.items()}
        kept = {key: value for key, value in metadata.items() if value is not None}
        tensors = a_pair() if tensors is None else tensors
        self.adapter.write_bytes(gguf_bytes(kept, tensors))
        return describe_adapter(self.adapter, [self.model])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A model to make adapters for."""
    return Files(tmp_path)


def test_the_bundled_adapter_fits_the_bundled_model() -> None:
    """Rank, size and title are its own."""
    found = describe_adapter(PIRATE, [BUNDLED_PATH])

    assert (found.rank, found.title) == (8, "demo-lora-pirate")
    assert 0 < found.size_bytes < PIRATE.stat().st_size


def test_an_adapter_for_another_model_says_where_it_differs() -> None:
    """The first tensor that does not fit, with the shapes."""
    with pytest.raises(AdapterMismatch, match=r"blk.0.attn_q.weight.*192 x 8.*256 x 256"):
        describe_adapter(FOREIGN, [BUNDLED_PATH])


def test_matrices_of_experts_and_of_the_embedding_are_compared_as_they_are_used(
    files: Files,
) -> None:
    """One pair for each expert; rows of the embedding are looked up in A."""
    experts = a_pair("blk.0.ffn_up_exps.weight", (64, 8, 4), (8, 16, 4))
    embedding = a_pair("token_embd.weight", (8, 100), (8, 64))

    assert files.check([*experts, *embedding]).rank == 8


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"general__type": "model"}, "general.type is 'model'"),
        ({"general__type": None}, "general.type is None"),
        ({"general__type": 7}, "not a text"),
        ({"adapter__type": "control_vector"}, "adapter.type is"),
        ({"adapter__lora__alpha": 16}, "alpha"),
        ({"adapter__lora__alpha": "16"}, "alpha"),
        ({"adapter__lora__alpha": float("nan")}, "alpha"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, "aLoRA"),
        ({"tensors": []}, "no tensors"),
        ({"tensors": a_pair()[:1]}, "half of the LoRA"),
        ({"tensors": [*a_pair(), a_pair()[0]]}, "there twice"),
        ({"tensors": [*a_pair(), F32Tensor("blk.0.attn_norm.weight", (64,))]}, "left out"),
        ({"tensors": a_pair("blk.0." + "x" * 60)}, "too long"),
    ],
)
def test_what_is_no_adapter_is_refused(files: Files, changes: Any, problem: str) -> None:
    """Whatever llama.cpp would abort on or leave out, with the reason."""
    with pytest.raises(ModelFileInvalid, match=problem):
        files.check(**changes)


def test_an_alpha_may_be_absent(files: Files) -> None:
    """The scale alone counts then."""
    assert files.check(adapter__lora__alpha=None).rank == 8


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (a_pair("blk.9.attn_q.weight"), "has no tensor"),
        (a_pair("blk.0.attn_norm.weight"), "no matrix"),
        (a_pair(a=(32, 8)), "32 x 8"),
        (a_pair(b=(8, 64)), "8 x 64"),
        (a_pair(b=(4, 32)), "4 x 32"),
        (a_pair(a=(64, 8, 2), b=(8, 32, 2)), "64 x 8 x 2"),
        (a_pair("blk.0.ffn_up_exps.weight", (64, 8), (8, 16)), "64 x 16 x 4"),
        (a_pair("token_embd.weight", (8, 100), (4, 64)), "8 x 100"),
        (a_pair("token_embd.weight", (64, 8), (8, 100)), "64 x 8"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(files: Files, tensors: Any, problem: str) -> None:
    """Names and every dimension, also those that llama.cpp does not compare."""
    with pytest.raises(AdapterMismatch, match=problem):
        files.check(tensors)


def test_another_architecture_is_refused(files: Files) -> None:
    """Equal shapes do not make it fit."""
    with pytest.raises(AdapterMismatch, match="'qwen3'"):
        files.check(general__architecture="qwen3")


def test_an_embedding_that_is_the_output_too_cannot_be_adapted(files: Files) -> None:
    """llama.cpp would apply the transposed matrix to the output, and abort."""
    files.write_model([tensor for tensor in MODEL_TENSORS if tensor.name != "output.weight"])
    with pytest.raises(AdapterMismatch, match="output too"):
        files.check(a_pair("token_embd.weight", (8, 100), (8, 64)))


def with_values(files: Files, type_id: int, data: bytes) -> None:
    """Give the first matrix another type and these first bytes."""
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
    """In each type that adapters come in; only the scales of q8_0 are numbers with a NaN."""
    files.check()
    with_values(files, type_id, data)

    if is_finite:
        assert describe_adapter(files.adapter, [files.model]).rank == 8
    else:
        with pytest.raises(ModelFileInvalid, match="not finite"):
            describe_adapter(files.adapter, [files.model])


def test_other_types_are_refused(files: Files) -> None:
    """Whole numbers are no adapter."""
    files.check()
    with_values(files, 26, b"")

    with pytest.raises(ModelFileInvalid, match="none of f32"):
        describe_adapter(files.adapter, [files.model])
