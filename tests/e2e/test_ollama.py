"""Ollama's API on real models, of which one has tokens for text between two others."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.model_kinds import INFILL_TOKENS, write_model_of_kind
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

INFILL = "infill"
GREEDY: dict[str, Any] = {"stream": False, "options": {"temperature": 0}}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with both models."""
    folder = tmp_path_factory.mktemp("infill")
    path = write_model_of_kind("infill", folder / "infill.gguf")
    flags = ("--model", f"{MODEL}=bundled", "--model", f"{INFILL}={path}")
    settings = {"per_model": {INFILL: {"context_tokens": 512}}}
    with corral_up(folder, *flags, inference=settings) as corral:
        yield corral


@pytest.fixture
async def http(server: Corral) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
        yield client


async def test_a_chat_is_that_of_openais_route(http: httpx.AsyncClient) -> None:
    """The same text and counts; models think unless told not to."""
    messages = [{"role": "user", "content": QUESTION}]
    body = GREEDY | {"model": f"{MODEL}:latest", "messages": messages}
    answer = (await http.post("/api/chat", json=body)).json()
    openai = await http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": messages, "temperature": 0, "enable_thinking": True},
    )

    assert answer["message"]["content"] == openai.json()["choices"][0]["message"]["content"]
    assert answer["prompt_eval_count"] == openai.json()["usage"]["prompt_tokens"]
    assert answer["eval_duration"] > 0


async def test_a_context_is_continued(http: httpx.AsyncClient) -> None:
    """It begins with the tokens of the earlier prompt and answer."""
    body = GREEDY | {"model": MODEL, "prompt": QUESTION}
    first = (await http.post("/api/generate", json=body)).json()
    second = (await http.post("/api/generate", json=body | {"context": first["context"]})).json()
    size = len(first["context"])

    assert first["eval_count"] + first["prompt_eval_count"] >= size
    assert second["context"][:size] == first["context"]
    assert second["prompt_eval_count"] > size


async def test_a_suffix_needs_a_model_with_tokens_for_it(http: httpx.AsyncClient) -> None:
    """The prompt is prefix, suffix and three tokens; `capabilities` say which model has them."""
    body: dict[str, Any] = {"prompt": "ab", "stream": False, "options": {"num_predict": 2}}
    between = await http.post("/api/generate", json=body | {"model": INFILL, "suffix": "c"})
    raw = [
        await http.post("/api/generate", json=body | {"model": INFILL, "prompt": text, "raw": True})
        for text in ("ab", "c")
    ]
    refused = await http.post("/api/generate", json=body | {"model": MODEL, "suffix": "c"})
    shown = [
        (await http.post("/api/show", json={"model": name})).json()["capabilities"]
        for name in (MODEL, INFILL)
    ]
    separate = sum(answer.json()["prompt_eval_count"] for answer in raw)

    # One of the two begin tokens of the separate prompts is too much.
    assert between.json()["prompt_eval_count"] == separate - 1 + len(INFILL_TOKENS)
    assert refused.json() == {"error": f'"{MODEL}" does not support insert'}
    assert ["insert" in capabilities for capabilities in shown] == [False, True]


async def test_models_that_are_not_loaded_are_loaded_by_an_empty_prompt(
    http: httpx.AsyncClient,
) -> None:
    """An operator unloads them with `keep_alive` 0."""
    unloaded = await http.post("/api/generate", json={"model": INFILL, "keep_alive": 0})
    loaded = await http.post("/api/generate", json={"model": INFILL})
    running = (await http.get("/api/ps")).json()["models"]

    assert unloaded.json()["done_reason"] == "unload"
    assert loaded.json()["done_reason"] == "load"
    assert f"{INFILL}:latest" in [each["name"] for each in running]
