"""Embeddings by engines of others, as users see them: over stand-ins of all kinds, and in text mode
over another Corral."""

import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

import httpx
import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.bert import TEXTS, random_bert
from tests.support.engine_stand_in import EngineStandIn, run_engine
from tests.support.rpc import connect
from tests.support.services import CORRAL, RESTART_RETRIES, Corral, corral_up

pytestmark = pytest.mark.e2e

NAME: Final = "vec"
SIZE: Final = 24
ENCODER: Final = "tiny-encoder"


@pytest.fixture(scope="module", params=["llama_server", "vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineStandIn]:
    """Only llama-server generates too."""
    with run_engine(request.param) as engine:
        engine.state.vector_size = SIZE
        yield engine


@pytest.fixture(scope="module")
def corral(engine: EngineStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """One that has no other model."""
    flags = ("--engine", f"{NAME}={engine.url}", "--tokenizer", "bundled")
    folder = tmp_path_factory.mktemp("vectors")
    with corral_up(folder, *flags, "--embedding-model", NAME) as corral:
        yield corral


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    folder = tmp_path_factory.mktemp("inner")
    encoder = random_bert().write(folder / "encoder.gguf")
    with corral_up(folder, "--model", f"{ENCODER}={encoder}") as corral:
        yield corral


@pytest.fixture(scope="module")
def outer(inner: Corral, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """One that has no tokenizer of the model of `inner`."""
    upstream = {"urls": [inner.api], "model": ENCODER, "task": "embed"}
    hosts = [inner.url.removeprefix("http://")]
    inference = {"upstreams": {NAME: upstream}, "upstream_hosts": hosts}
    control = {"embedding_model": NAME}
    folder = tmp_path_factory.mktemp("outer")
    with corral_up(folder, inference=inference, control=control) as corral:
        yield corral


def sdk(corral: Corral, max_retries: int = RESTART_RETRIES) -> openai.OpenAI:
    return openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=max_retries)


def embed(corral: Corral, model: str, texts: Sequence[str]) -> tuple[list[list[float]], int]:
    """The vectors, and the tokens that count."""
    with sdk(corral) as client:
        answer = client.embeddings.create(model=model, input=[*texts], encoding_format="float")
    return [each.embedding for each in answer.data], answer.usage.prompt_tokens


def ingest(corral: Corral) -> str:
    """The file that a vector store finds."""
    texts = {"foxes.md": TEXTS[0], "dogs.md": TEXTS[1] * 40}
    with sdk(corral) as client:
        store = client.vector_stores.create()
        for name, text in texts.items():
            file = client.files.create(file=(name, text.encode()), purpose="assistants")
            added = client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id)
            assert added.status == "completed", added.last_error
        return client.vector_stores.search(store.id, query=TEXTS[0]).data[0].filename


def refusal(corral: Corral, path: str, **body: object) -> tuple[int, str]:
    answer = httpx.post(f"{corral.url}{path}", json={"model": NAME, **body}, timeout=60)
    return answer.status_code, answer.text


async def describe(corral: Corral) -> model_pb2.Model:
    async with connect(corral.target) as rpc:
        return (await rpc.inference.GetModel(pb.GetModelRequest(model=NAME))).model


def test_vectors_of_the_engine_come_by_each_route(corral: Corral, engine: EngineStandIn) -> None:
    """Those of the tokens of our tokenizer."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    ids = [vocabulary.tokenize(each, add_special=True, parse_special=False) for each in TEXTS]
    vocabulary.close()
    vectors, num_tokens = embed(corral, NAME, TEXTS)
    sent = engine.requests[-1].body["input"]
    ollama = httpx.post(f"{corral.url}/api/embed", json={"model": NAME, "input": [*TEXTS]})
    llama = httpx.post(f"{corral.url}/embedding", json={"model": NAME, "content": [*TEXTS]})

    assert sent == ids
    assert num_tokens == sum(map(len, ids))
    assert len(vectors[0]) == SIZE
    assert all(math.isclose(math.hypot(*each), 1.0, abs_tol=1e-5) for each in vectors)
    assert len({tuple(each) for each in vectors}) == len(TEXTS)
    assert ollama.json()["embeddings"] == [pytest.approx(each) for each in vectors]
    assert [each["embedding"][0] for each in llama.json()] == [pytest.approx(v) for v in vectors]


async def test_a_model_says_whether_it_embeds_and_generates(
    corral: Corral, engine: EngineStandIn
) -> None:
    """Only llama-server does both; what the others do not is refused before they are asked."""
    embed(corral, NAME, "a")
    num_asked = len(engine.requests)
    generates = "/completion" in {each.path for each in engine.requests}
    status, text = refusal(corral, "/v1/completions", prompt="a", max_tokens=1)
    _, shown = refusal(corral, "/api/show")
    model = await describe(corral)

    assert model.upstream.vector_size == SIZE
    if generates:
        assert model.model_class == model_pb2.MODEL_CLASS_DECODER
        assert status == 200
        return
    assert model.model_class == model_pb2.MODEL_CLASS_ENCODER
    assert (status, "class encoder" in text) == (400, True)
    assert json.loads(shown)["capabilities"] == ["embedding"]
    assert len(engine.requests) == num_asked


def test_what_the_engine_would_not_do_to_vectors_is_refused_by_name(corral: Corral) -> None:
    embed(corral, NAME, "a")
    raw = refusal(corral, "/api/embeddings", prompt="a")
    ranked = refusal(corral, "/v1/rerank", query="a", documents=["b"])
    long = refusal(corral, "/v1/embeddings", input=["a", "word " * 9000])

    assert raw[0] == 501
    assert "'normalize' false with the engine" in raw[1]
    assert ranked[0] == 400
    assert "rerank" in ranked[1]
    assert long[0] == 400
    assert "input[1]" in long[1]


def test_files_are_embedded_and_found_by_the_engine(corral: Corral) -> None:
    assert ingest(corral) == "foxes.md"


# --- text mode ------------------------------------------------------------------------------------


def test_in_text_mode_vectors_and_counts_are_those_of_the_service(
    inner: Corral, outer: Corral
) -> None:
    vectors, num_tokens = embed(inner, ENCODER, TEXTS)
    found, counted = embed(outer, NAME, TEXTS)

    assert [pytest.approx(each, abs=1e-6) for each in vectors] == found
    assert counted == num_tokens


def test_in_text_mode_files_are_embedded_and_found(outer: Corral) -> None:
    """Their tokens are estimated."""
    assert ingest(outer) == "foxes.md"


async def test_in_text_mode_a_model_that_embeds_does_nothing_else(outer: Corral) -> None:
    """And takes no token ids; what is too long is told as the service tells it."""
    embed(outer, NAME, "a")
    chat = refusal(outer, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
    ids = refusal(outer, "/v1/embeddings", input=[[1, 2]])
    long = refusal(outer, "/v1/embeddings", input="fox " * 9000)
    model = await describe(outer)

    assert chat[0] == 400
    assert "class encoder" in chat[1]
    assert ids[0] == 501
    assert "token ids" in ids[1]
    assert long[0] == 400
    assert "context" in long[1] or "too long" in long[1]
    assert model.model_class == model_pb2.MODEL_CLASS_ENCODER
    assert model.upstream.text_mode
    assert model.upstream.vector_size == random_bert().width


def test_in_text_mode_a_model_is_added_to_embed(inner: Corral, outer: Corral) -> None:
    command = [str(CORRAL), "models", "add", "--name", "added", "--target", outer.target]
    engine = ["--engine", inner.api, "--engine-model", ENCODER, "--engine-task", "embed"]
    added = subprocess.run([*command, *engine], check=False, capture_output=True, text=True)

    assert added.returncode == 0, added.stderr
    assert embed(outer, "added", ["a"]) == embed(outer, NAME, ["a"])
