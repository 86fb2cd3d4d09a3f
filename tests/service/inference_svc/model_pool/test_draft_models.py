"""Models with a draft model in a whole service: its answers, what it tells of itself, refusals.

Whether a step drafts is decided by measured times, so that drafts may have to be waited for.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2, model_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.app import build
from inference_svc.config import EngineSettings, InferenceSettings
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_kinds import write_model_of_kind
from tests.support.rpc import Rpc, connect, make_completion, read_error

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENGTH = 80


def _write_other_token(path: Path) -> None:
    data = BUNDLED_PATH.read_bytes()
    path.write_bytes(data.replace("Ġcapital".encode(), "Ġcapitel".encode(), 1))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rpc(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rpc]:
    """A service with the demo model alone, with a draft model, and with two that cannot draft."""
    folder = tmp_path_factory.mktemp("drafts")
    _write_other_token(folder / "token.gguf")
    write_model_of_kind("window", folder / "small.gguf")
    drafts = {name: str(folder / f"{name}.gguf") for name in ("token", "small")}
    drafts["drafted"] = "bundled"
    settings = InferenceSettings(
        models=["plain=bundled", *(f"{name}=bundled" for name in drafts)],
        per_model={name: {"draft_model": source} for name, source in drafts.items()},
        listen="127.0.0.1:0",
        management_listen=None,
        engine=EngineSettings(slots=2, context_tokens=512, warm_up_s=0.2),
    )
    async with build(settings) as inference, connect(str(inference.server.address)) as rpc:
        yield rpc


def _completion(model: str, **speculation: Any) -> pb.GenerateRequest:
    request = make_completion(
        "Once upon a time",
        sampling={"seed": 7, "temperature": 1.0},
        stopping={"max_tokens": LENGTH, "ignore_eos": True},
        output={"token_ids": True},
        speculation=generation_pb2.SpeculationOptions(**speculation),
    )
    request.model = model
    return request


@pytest.mark.batch_invariant
async def test_answers_are_those_without_a_draft_model(rpc: Rpc) -> None:
    """Its drafts are a part of all drafts, and none if the request disables them."""
    plain = await rpc.generate(_completion("plain"))
    drafted = await rpc.generate(_completion("drafted"))
    disabled = await rpc.generate(_completion("drafted", enabled=False))

    assert len(plain.tokens[0]) == LENGTH
    assert drafted.tokens == disabled.tokens == plain.tokens
    usage = drafted.done.usage
    assert 0 <= usage.draft_model_tokens <= usage.draft_tokens
    assert 0 <= usage.accepted_draft_model_tokens <= usage.draft_model_tokens
    assert disabled.done.usage.draft_tokens == plain.done.usage.draft_model_tokens == 0


async def test_usage_and_load_count_the_tokens_of_a_draft_model(rpc: Rpc) -> None:
    """A sequence that runs alone tries drafts now and then, whatever was measured."""
    used: list[generation_pb2.Usage] = []
    while not sum(usage.accepted_draft_model_tokens for usage in used):
        used.append((await rpc.generate(_completion("drafted"))).done.usage)
    drafted = sum(usage.draft_model_tokens for usage in used)

    watch = rpc.engine.WatchLoad(engine_pb.WatchLoadRequest())
    async for answer in watch:
        load = answer.load
        if load.draft_model_tokens_total >= drafted:
            watch.cancel()
            break
    assert 0 < load.accepted_draft_model_tokens_total < load.draft_model_tokens_total


async def _model(rpc: Rpc, name: str) -> model_pb2.Model:
    return (await rpc.inference.GetModel(pb.GetModelRequest(model=name))).model


async def test_a_model_names_its_draft_model(rpc: Rpc) -> None:
    models = [await _model(rpc, name) for name in ("plain", "drafted")]

    assert [model.draft_model for model in models] == ["", "demo-draft-q8_0"]
    assert models[0].size_bytes == models[1].size_bytes


async def test_a_draft_model_of_another_vocabulary_is_refused_before_serving(rpc: Rpc) -> None:
    """With the setting, and the first token that differs."""
    models = {name: await _model(rpc, name) for name in ("token", "small")}
    refusal = await read_error(rpc.inference.Generate(_completion("token")))

    assert {each.state for each in models.values()} == {model_pb2.Model.STATE_FAILED}
    assert "per_model.token.draft_model: the vocabulary of token.gguf" in models["token"].problem
    assert "capitel" in models["token"].problem
    assert "per_model.small.draft_model: the vocabulary of small" in models["small"].problem
    assert refusal.reason == "MODEL_LOAD_FAILED"
