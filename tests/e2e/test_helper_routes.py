"""Ollama's API and helper routes of llama-server and vLLM on real models, of which one has tokens
for infill."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.model_kinds import INFILL_TOKENS, write_model_of_kind
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

INFILL = "infill"
INFILL_CONTEXT = 512
GREEDY: dict[str, Any] = {"stream": False, "options": {"temperature": 0}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with both models."""
    folder = tmp_path_factory.mktemp("infill")
    path = write_model_of_kind("infill", folder / "infill.gguf")
    flags = ("--model", f"{MODEL}=bundled", "--model", f"{INFILL}={path}")
    settings = {"per_model": {INFILL: {"context_tokens": INFILL_CONTEXT}}}
    with corral_up(folder, *flags, inference=settings) as corral:
        yield corral


@pytest.fixture
async def http(server: Corral) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
        yield client


async def test_infill_uses_the_models_tokens(http: httpx.AsyncClient) -> None:
    """The prompt is prefix, suffix, and the three tokens around them, in every dialect alike."""
    body = {"model": INFILL, "input_prefix": "ab", "input_suffix": "c", "n_predict": 2, "seed": 1}
    answer = (await http.post("/infill", json=body)).json()
    separate = [
        (await http.post("/tokenize", json={"model": INFILL, "prompt": text})).json()["count"]
        for text in ("ab", "c")
    ]
    completion = await http.post(
        "/v1/completions",
        json={"model": INFILL, "prompt": "ab", "suffix": "c", "max_tokens": 2},
    )
    generated = await http.post(
        "/api/generate",
        json={
            "model": INFILL, "prompt": "ab", "suffix": "c", "stream": False,
            "options": {"num_predict": 2},
        },
    )  # fmt: skip
    expected = answer["tokens_evaluated"]

    # One of the two begin tokens of the separate texts is too much.
    assert expected == sum(separate) - 1 + len(INFILL_TOKENS)
    assert completion.json()["usage"]["prompt_tokens"] == expected
    assert generated.json()["prompt_eval_count"] == expected


async def test_a_model_without_the_tokens_says_so(http: httpx.AsyncClient) -> None:
    """In the words of each dialect."""
    body = {"input_prefix": "a", "input_suffix": "b"}
    infill = await http.post("/infill", json=body | {"model": MODEL})
    generated = await http.post(
        "/api/generate", json={"model": MODEL, "prompt": "a", "suffix": "b"}
    )
    completion = await http.post(
        "/v1/completions", json={"model": MODEL, "prompt": "a", "suffix": "b"}
    )
    shown = [
        (await http.post("/api/show", json={"model": name})).json()["capabilities"]
        for name in (MODEL, INFILL)
    ]

    assert infill.json()["error"]["type"] == "not_supported_error"
    assert generated.json() == {"error": f'"{MODEL}" does not support insert'}
    assert completion.json()["error"]["param"] == "suffix"
    assert ["insert" in capabilities for capabilities in shown] == [False, True]


async def test_tokens_come_back_as_their_text(http: httpx.AsyncClient) -> None:
    """The template's prompt has the tokens that a chat would compute."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]}
    tokens = (await http.post("/tokenize", json=chat)).json()
    prompt = (await http.post("/apply-template", json=chat)).json()["prompt"]
    parsed = (await http.post("/tokenize", json={"model": MODEL, "content": prompt})).json()
    back = await http.post("/detokenize", json={"model": MODEL, "tokens": parsed["tokens"]})
    info = (await http.get("/tokenizer_info", params={"model": MODEL})).json()

    assert tokens["tokens"][-len(parsed["tokens"]) :] == parsed["tokens"]
    assert back.json()["content"] == prompt
    assert info["eos_token"]


async def test_slots_show_the_callers_own_requests(http: httpx.AsyncClient) -> None:
    """While they run, without their texts."""
    body = {"model": MODEL, "prompt": "secret words", "ignore_eos": True, "stream": True}
    idle = (await http.get("/slots", params={"model": MODEL})).json()
    async with http.stream("POST", "/completion", json=body) as answer:
        events = answer.aiter_bytes()  # kept, since the stream ends with it
        await anext(events)
        busy = await http.get("/slots", params={"model": MODEL})
    (slot,) = [each for each in busy.json() if each["is_processing"]]

    assert len(idle) == (await http.get("/props", params={"model": MODEL})).json()["total_slots"]
    assert not any(each["is_processing"] for each in idle)
    assert slot["n_prompt_tokens"] > slot["n_prompt_tokens_cache"] >= 0
    assert "secret" not in busy.text


# --- Ollama's API ---------------------------------------------------------------------------------


async def test_a_chat_is_that_of_openais_route(http: httpx.AsyncClient) -> None:
    """The same text and counts; models think unless told not to."""
    messages = [{"role": "user", "content": CAPITAL}]
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
    body = GREEDY | {"model": MODEL, "prompt": CAPITAL}
    first = (await http.post("/api/generate", json=body)).json()
    second = (await http.post("/api/generate", json=body | {"context": first["context"]})).json()
    size = len(first["context"])

    assert first["eval_count"] + first["prompt_eval_count"] >= size
    assert second["context"][:size] == first["context"]
    assert second["prompt_eval_count"] > size


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
