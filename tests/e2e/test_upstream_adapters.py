"""A whole Corral over engines that have loaded adapters: each is a model with its own name."""

import time
from collections.abc import Iterator
from typing import Any, Final

import grpc
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from openai.types.chat import ChatCompletion

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.engine_stand_in import EngineStandIn, run_engine
from tests.support.rpc import call_error, connect
from tests.support.services import Corral, corral_up

pytestmark = pytest.mark.e2e

SAYS: Final = "The cat sat on the mat."
PATIENCE_S: Final = 30.0
ASKED: Final[dict[str, Any]] = {
    "llama_server": ("lora", [{"id": 0, "scale": 1.0}], []),
    "vllm": ("model", "sql", "demo"),
    "sglang": ("lora_path", "sql", None),
}
"""The field that names an adapter, with it, and without one; scales of 0 are left out."""


@pytest.fixture(scope="module", params=list(ASKED))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[EngineStandIn]:
    """It tells its tokenizer, and has loaded one of two adapters."""
    with run_engine(kind, SAYS) as engine:
        engine.state.source, engine.state.adapters = str(BUNDLED_PATH), ["sql"]
        yield engine


@pytest.fixture(scope="module")
def corral(engine: EngineStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    upstream = {"urls": [engine.url], "tokenizer": "engine", "adapters": ["sql", "later"]}
    inference = {"upstreams": {"big": upstream}}
    with corral_up(tmp_path_factory.mktemp("adapters"), inference=inference) as corral:
        yield corral


@pytest.fixture
def client(corral: Corral) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **options: Any) -> str | None:
    answer: ChatCompletion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What did the cat do?"}], **options
    )
    assert answer.model == model
    return answer.choices[0].message.content


def asked(engine: EngineStandIn, kind: str) -> Any:
    """What the last request named."""
    value = engine.generations[-1].get(ASKED[kind][0])
    return [each for each in value if each["scale"]] if isinstance(value, list) else value


def test_each_adapter_is_a_model_that_the_engine_is_asked_for(
    corral: Corral, client: openai.OpenAI, engine: EngineStandIn, kind: str
) -> None:
    assert corral.program.wait_for_line(r"model +sql +(.*)", stream="stdout")[1] == "adapter of big"
    listed = {each.id: getattr(each, "parent", None) for each in client.models.list()}
    found = [(ask(client, model), asked(engine, kind)) for model in ("sql", "big")]

    assert listed["sql"] == "big"
    assert found == [(SAYS, ASKED[kind][1]), (SAYS, ASKED[kind][2])]


def test_an_adapter_beside_its_model_is_applied(
    client: openai.OpenAI, engine: EngineStandIn, kind: str
) -> None:
    """With another scale only by llama-server; others refuse that by name."""
    ask(client, "big", extra_body={"lora": "sql"})
    assert asked(engine, kind) == ASKED[kind][1]
    scaled = {"lora": [{"id": "sql", "scale": 0.5}]}
    if kind == "llama_server":
        ask(client, "big", extra_body=scaled)
        assert asked(engine, kind) == [{"id": 0, "scale": 0.5}]
        return
    count = len(engine.generations)
    with pytest.raises(openai.APIStatusError, match="'scale' of 'adapters' other than 1") as failed:
        ask(client, "big", extra_body=scaled)
    assert (failed.value.status_code, len(engine.generations)) == (501, count)


def test_an_adapter_that_the_engine_has_not_loaded_does_not_exist_until_it_has(
    client: openai.OpenAI, engine: EngineStandIn
) -> None:
    count, deadline = len(engine.generations), time.monotonic() + PATIENCE_S
    with pytest.raises(openai.NotFoundError, match="'later' does not exist"):
        ask(client, "later")
    assert len(engine.generations) == count
    engine.state.adapters = ["sql", "later"]
    while True:
        try:
            assert ask(client, "later") == SAYS
            break
        except openai.NotFoundError:
            assert time.monotonic() < deadline


async def test_an_adapter_of_the_engine_is_not_unloaded_here(corral: Corral) -> None:
    async with connect(corral.target) as rpc:
        request = engine_pb.UnloadAdapterRequest(name="sql")
        error = await call_error(rpc.engine.UnloadAdapter(request))
        listed = (await rpc.engine.ListAdapters(engine_pb.ListAdaptersRequest())).adapters

    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert "'sql', which an upstream engine has loaded" in error.message
    assert {(each.name, each.model, each.digest) for each in listed} == {
        ("later", "big", ""),
        ("sql", "big", ""),
    }
