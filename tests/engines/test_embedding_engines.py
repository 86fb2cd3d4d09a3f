"""Embeddings by engines are those of Corral's own engine with the same weights, one beside the
other, and answers are as they were recorded."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.engines.conftest import ENGINE, LOCAL
from tests.support.engine_exchanges import EXCHANGES, fits, recordings, send
from tests.support.engine_servers import EMBEDDING_VARIABLES, RunningEngine, run_real_engine
from tests.support.services import Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEXTS = ["a", "What is the capital of France?", "Größe 12345, 日本 🙂", *map(str, range(80))]
SAME = 0.999
"""The least cosine: weights are quantized in one engine and exact in another."""


@pytest.fixture(scope="module", params=EMBEDDING_VARIABLES)
def embedding_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """Each engine that is installed, started to embed."""
    with run_real_engine(request.param, tmp_path_factory.mktemp(request.param)) as running:
        if running.program is None:
            pytest.skip("an engine that was there before does not embed")
        yield running


@pytest.fixture(scope="module")
def corral(
    embedding_engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Corral]:
    """One whose vector stores are embedded by the engine."""
    flags = ("--engine", f"{ENGINE}={embedding_engine.url}", "--embedding-model", ENGINE)
    local = ("--tokenizer", embedding_engine.tokenizer, "--model", f"{LOCAL}=bundled")
    folder = tmp_path_factory.mktemp(f"corral-{embedding_engine.kind}")
    with corral_up(folder, *flags, *local) as corral:
        yield corral


@pytest.fixture
def client(corral: Corral) -> Iterator[openai.OpenAI]:
    """The SDK, which retries while the engine is probed."""
    with openai.OpenAI(base_url=corral.api, api_key="unused", max_retries=60) as connected:
        yield connected


@pytest.mark.parametrize("dimensions", [openai.omit, 64], ids=["all", "64"])
def test_vectors_are_those_of_our_own_engine(
    client: openai.OpenAI, dimensions: int | openai.Omit
) -> None:
    """In the order of the inputs, with the same counts, and truncated in the same way."""
    engine, local = (
        client.embeddings.create(model=model, input=TEXTS, dimensions=dimensions)
        for model in (ENGINE, LOCAL)
    )
    pairs = zip(engine.data, local.data, strict=True)
    cosines = [float(np.dot(one.embedding, other.embedding)) for one, other in pairs]

    assert min(cosines) > SAME
    assert engine.usage == local.usage


def test_a_file_is_found_by_vectors_of_the_engine(client: openai.OpenAI) -> None:
    texts = {"cats.md": b"The cat sat on the mat.", "stars.md": b"A star is far from the earth."}
    store = client.vector_stores.create()
    for name, text in texts.items():
        file = client.files.create(file=(name, text), purpose="assistants")
        added = client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id)
        assert added.status == "completed", added.last_error
    found = client.vector_stores.search(store.id, query=texts["cats.md"].decode())

    assert found.data[0].filename == "cats.md"


def test_the_engine_embeds_as_recorded(embedding_engine: RunningEngine) -> None:
    kind = embedding_engine.kind
    kept = {line["name"]: answer for line, answer in recordings(kind)} if kind in EXCHANGES else {}
    differing = []
    for exchange in EXCHANGES.get(kind, ()):
        answer, before = send(embedding_engine.url, exchange), kept[exchange.name]
        if answer.status != before.status or not fits(answer.shape, before.shape):
            differing.append((exchange.name, answer.status, answer.text[:300]))

    assert differing == []
