"""The service VllmEngine as its settings make it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inference_svc.config import InferenceSettings, VllmEngineSettings
from inference_svc.engine_client.client import EngineState
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.pool import ModelPool
from inference_svc.model_pool.settings_check import check_models
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.rpc.inference_servicer import InferenceServicer
from inference_svc.vllm_grpc.tokenizer_archive import TokenizerArchive
from inference_svc.vllm_grpc.vllm_service import open_vllm_engine
from inference_svc.vllm_grpc.vllm_servicer import VllmEngineServicer
from inference_svc.vocabularies import ModelVocabulary, open_vocabulary
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import FeatureUnsupported
from svc_kit.lifecycle import StartupError
from tests.support.hf_folders import byte_level, write_folder
from tools.demo_model.export_hf import export_tokenizer

CONTEXT: Any = None
UPSTREAM = {"urls": ["http://127.0.0.1:1"]}


async def open_here(path: Path) -> ModelVocabulary:
    return open_vocabulary(path)


async def open_service(**settings: Any) -> VllmEngineServicer:
    """The servicer of a service whose pool has the models of the settings."""
    made = InferenceSettings(**settings)
    pool = cast(ModelPool, SimpleNamespace(catalog=find_models(made)))
    inference = cast(InferenceServicer, None)
    service = await open_vllm_engine(made, open_here, pool, inference)
    return cast(VllmEngineServicer, service.servicer)


async def read_tokenizer(servicer: VllmEngineServicer) -> bytes:
    set_principal(Principal(scopes=frozenset(), key_id="k"))
    request = common_pb2.GetTokenizerRequest()
    return b"".join([each.data async for each in servicer.GetTokenizer(request, CONTEXT)])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("model", "nope", "no model is called 'nope'; there are demo-chat"),
        ("tokenizer", "bundled", "'bundled' is no folder; name one of Hugging Face files"),
        ("tokenizer", "engine", "'engine' is no folder"),
        ("tokenizer", "/no/such/folder", "model '/no/such/folder': there is no such file"),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_start(
    name: str, value: str, problem: str
) -> None:
    """And before, by the commands that check settings."""
    settings: dict[str, Any] = {"enabled": True, name: value}
    made = InferenceSettings(vllm_engine=VllmEngineSettings(**settings))

    (found,) = check_models(made).problems
    assert f" vllm_engine.{name} " in found.text
    assert problem in found.text
    with pytest.raises(StartupError, match=f"vllm_engine.{name}: {problem}"):
        await open_service(vllm_engine=settings)


async def test_a_tokenizer_of_another_model_is_refused_at_start(tmp_path: Path) -> None:
    write_folder(tmp_path, byte_level())

    with pytest.raises(StartupError, match=r"vllm_engine\.tokenizer: its vocabulary is another"):
        await open_service(vllm_engine={"tokenizer": str(tmp_path)})


async def test_a_model_without_such_files_says_what_to_set() -> None:
    servicer = await open_service()

    with pytest.raises(FeatureUnsupported, match=r"set inference\.vllm_engine\.tokenizer"):
        await read_tokenizer(servicer)


async def test_the_folder_of_an_upstream_is_its_tokenizer(tmp_path: Path) -> None:
    export_tokenizer(BUNDLED_PATH, tmp_path)

    servicer = await open_service(upstreams={"big": {**UPSTREAM, "tokenizer": str(tmp_path)}})

    assert await read_tokenizer(servicer) == (await TokenizerArchive.read(tmp_path)).data


@pytest.mark.parametrize("tokenizer", ["", "engine"])
async def test_an_upstream_whose_files_are_not_here_has_no_tokenizer(tokenizer: str) -> None:
    """In text mode, or until its engine tells where they are."""
    upstreams = {"big": {**UPSTREAM, "tokenizer": tokenizer}}

    with pytest.raises(FeatureUnsupported, match=r"set inference\.vllm_engine\.tokenizer"):
        await read_tokenizer(await open_service(upstreams=upstreams))


async def test_a_tokenizer_is_not_compared_with_one_that_the_engine_tells(tmp_path: Path) -> None:
    export_tokenizer(BUNDLED_PATH, tmp_path)
    upstreams = {"big": {**UPSTREAM, "tokenizer": "engine"}}

    with pytest.raises(StartupError, match=r"name it in upstreams\.big\.tokenizer"):
        await open_service(upstreams=upstreams, vllm_engine={"tokenizer": str(tmp_path)})


@pytest.mark.parametrize(
    ("state", "model_state", "message"),
    [
        (EngineState.SERVING, ModelState.READY, ""),
        (EngineState.SERVING, ModelState.AVAILABLE, ""),
        (EngineState.SERVING, ModelState.LOADING, "the model is loading"),
        (EngineState.SERVING, ModelState.FAILED, "the model is failed"),
        (EngineState.DRAINING, ModelState.READY, "the service is draining"),
    ],
)
async def test_it_is_healthy_while_requests_are_served(
    state: EngineState, model_state: ModelState, message: str
) -> None:
    """The first request loads a model that is not loaded."""
    entry = SimpleNamespace(state=model_state)
    catalog = SimpleNamespace(find_model=lambda name: entry)
    pool = cast(ModelPool, SimpleNamespace(state=state, catalog=catalog))
    servicer = VllmEngineServicer(cast(InferenceServicer, None), pool, "demo", None)

    answer = await servicer.HealthCheck(pb.HealthCheckRequest(), CONTEXT)

    assert answer.healthy == (not message)
    assert message in answer.message
