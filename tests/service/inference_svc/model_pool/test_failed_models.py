"""Model files that cannot be used beside one that can: it serves, and each other has its reason."""

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2

from inference_svc.app import build
from inference_svc.config import EngineSettings, InferenceSettings
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.gguf_files import F32Tensor, Signed, gguf_bytes, text
from tests.support.gguf_patch import copy_with_template
from tests.support.model_kinds import (
    TOKENS,
    WIDTH,
    byte_vocabulary,
    common_fields,
    write_model_of_kind,
)
from tests.support.rpc import PARIS, Rpc, connect, make_chat, make_completion, read_error

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = "demo-chat"
BUNDLED = BUNDLED_PATH.read_bytes()
WORDS = [f"word{i}" for i in range(len(TOKENS))]
State = model_pb2.Model.State


def _header(path: Path, *tensors: F32Tensor, **changes: Any) -> None:
    fields = {f"tokenizer.ggml.{name}": item for name, item in changes.items()}
    metadata = {**common_fields("llama"), **byte_vocabulary(), **fields}
    path.write_bytes(gguf_bytes(metadata, tensors))


def _far_offset() -> bytes:
    """A header with one tensor whose data begin at 2^40."""
    data = gguf_bytes(common_fields("llama"), [F32Tensor("w", (8, 4))])
    tensor = text("w") + struct.pack("<I2QI", 2, 8, 4, 0)
    return data.replace(tensor + bytes(8), tensor + struct.pack("<Q", 1 << 40))


def _write_not_numbers(path: Path) -> None:
    data = write_model_of_kind("window", path).read_bytes()
    weights = 4 * WIDTH * WIDTH
    path.write_bytes(data[:-weights] + b"\xff" * weights)


FAILED: Mapping[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: path.write_bytes(BUNDLED[:100_000]), "the file is truncated"),
    "not-gguf": (lambda path: path.write_bytes(b"nothing"), "not a GGUF file"),
    "huge-counts": (
        lambda path: path.write_bytes(gguf_bytes({}, num_tensors=2**60)),
        f"it claims {2**60} tensors",
    ),
    "far-offset": (
        lambda path: path.write_bytes(_far_offset()),
        "is beyond its end",
    ),
    "same-tokens": (
        lambda path: _header(path, tokens=["a"] * len(TOKENS)),
        "its vocabulary cannot be used: the child process ended",
    ),
    "no-bytes": (
        lambda path: _header(path, tokens=WORDS, token_type=[Signed(1)] * len(WORDS)),
        "its vocabulary cannot be used: the child process ended",
    ),
    "few-scores": (lambda path: _header(path, scores=[0.0]), "scores"),
    "text-as-token": (lambda path: _header(path, eos_token_id="</s>"), "eos_token_id"),
    "no-tensors": (_header, "tensor 'token_embd.weight' not found"),
    "odd-shape": (
        lambda path: _header(path, F32Tensor("token_embd.weight", (WIDTH, 5))),
        "tensor 'token_embd.weight' has wrong shape",
    ),
    "cyclic-merges": (
        lambda path: _header(path, model="gpt2", merges=["a b", "b a", "ab a", "a ab"]),
        "tensor 'token_embd.weight' not found",
    ),
}
"""How a file is written, and what is said of it."""
RAISES = "{{ raise_exception('Only one question.') }}"
BROKEN = "{% for message in messages %}"


def _chat(model: str) -> pb.ChatRequest:
    request = make_chat(stopping={"max_tokens": 16})
    request.model = model
    return request


def _completion(model: str) -> pb.GenerateRequest:
    request = make_completion("Paris", stopping={"max_tokens": 4})
    request.model = model
    return request


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rpc(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rpc]:
    """A service with the demo model, models that fail, and models with odd templates."""
    folder = tmp_path_factory.mktemp("models")
    for name, (write, _) in FAILED.items():
        write(folder / f"{name}.gguf")
    _write_not_numbers(folder / "not-numbers.gguf")
    write_model_of_kind("recurrent", folder / "no-template.gguf")
    copy_with_template(BUNDLED_PATH, folder / "raises.gguf", RAISES)
    copy_with_template(BUNDLED_PATH, folder / "broken.gguf", BROKEN)
    settings = InferenceSettings(
        models=[str(folder), f"{GOOD}=bundled"],
        listen="127.0.0.1:0",
        management_listen=None,
        engine=EngineSettings(slots=1, context_tokens=256),
    )
    async with build(settings) as inference, connect(str(inference.server.address)) as rpc:
        yield rpc


async def test_a_model_that_fails_does_not_stop_the_others(rpc: Rpc) -> None:
    """Each that cannot be loaded says why, also to who uses it; the others are ready."""
    listed = await rpc.inference.ListModels(pb.ListModelsRequest(page_size=100))
    models = {model.name: model for model in listed.models}
    failed = {name for name, model in models.items() if model.state == State.STATE_FAILED}
    refusals = [await read_error(rpc.inference.Chat(_chat(name))) for name in FAILED]

    assert failed == FAILED.keys()
    assert {models[name].state for name in models.keys() - failed} == {State.STATE_READY}
    for (_, reason), model, refusal in zip(
        FAILED.values(), map(models.__getitem__, FAILED), refusals, strict=True
    ):
        assert reason in model.problem
        assert (refusal.reason, reason in refusal.message) == ("MODEL_LOAD_FAILED", True)
    assert (await rpc.chat(_chat(GOOD))).text[0] == PARIS


async def test_a_template_that_fails_refuses_chats_only(rpc: Rpc) -> None:
    """With its own words; texts are completed. A model without a template has a usual one,
    and one that computes no numbers fails each request."""
    refusals = [await read_error(rpc.inference.Chat(_chat(name))) for name in ("raises", "broken")]
    texts = [await rpc.generate(_completion(name)) for name in ("raises", "broken")]
    no_numbers = await read_error(rpc.inference.Generate(_completion("not-numbers")))

    assert [refusal.code for refusal in refusals] == [grpc.StatusCode.INVALID_ARGUMENT] * 2
    assert refusals[0].message.endswith("Only one question.")
    assert "Unexpected end of template" in refusals[1].message
    assert all(text.finished for text in texts)
    assert no_numbers.reason == "DECODE_FAILED"
    assert (await rpc.chat(_chat("no-template"))).finished
