"""llama-server's and vLLM's helper routes in front of a fake service."""

import asyncio
import json
from typing import Any

import pytest
from httpx import AsyncClient, Response
from pydantic import SecretStr

from svc_kit.auth.keys import hash_key
from svc_kit.errors import ContextLengthExceeded, DecodeFailed, ModelCannot
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway
from tests.support.raw_http import RawConnection

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def events(answer: Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"content": "hi"}, {"tokens": [104, 105]}),
        ({"content": ["h", 7, "i"], "add_special": True}, {"tokens": [1, 104, 7, 105]}),
        (
            {"content": "é", "with_pieces": True},
            {"tokens": [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]},
        ),
        ({}, {"tokens": []}),
        (
            {"prompt": "h"},
            {"count": 2, "max_model_len": 4096, "tokens": [1, 104], "token_strs": None},
        ),
        (
            {"prompt": "h", "add_special_tokens": False, "return_token_strs": True},
            {"count": 1, "max_model_len": 4096, "tokens": [104], "token_strs": ["h"]},
        ),
        (CHAT, {"count": 2, "max_model_len": 4096, "tokens": [1, 2], "token_strs": None}),
    ],
    ids=["text", "mixed", "pieces", "empty", "prompt", "strings", "messages"],
)
async def test_tokenize_has_both_forms(
    body: dict[str, Any], expected: dict[str, Any], client: AsyncClient
) -> None:
    """Chosen by the fields of the body; their defaults for special tokens differ."""
    assert (await client.post("/tokenize", json=body)).json() == expected


async def test_tokens_become_text_under_both_names(client: AsyncClient) -> None:
    """The first name is llama-server's, the second vLLM's."""
    answer = await client.post("/detokenize", json={"tokens": [104, 105]})

    assert answer.json() == {"content": "hi", "prompt": "hi"}


async def test_the_template_is_applied_without_generating(client: AsyncClient) -> None:
    """To the body of a chat completion."""
    prompt = await client.post("/apply-template", json=CHAT)
    counted = await client.post("/v1/chat/completions/input_tokens", json=CHAT | {"model": "fake"})

    assert prompt.json() == {"prompt": "hi"}
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": 1}


async def test_a_model_is_described(fake: FakeInference, client: AsyncClient) -> None:
    """The first, or the one of the query. Its path is only a name."""
    model = fake.models[0]
    model.begin_token, model.end_token, model.chat_template = "<s>", "</s>", "{{ x }}"
    model.resolved_limits.slots = 2
    props = (await client.get("/props")).json()
    info = (await client.get("/tokenizer_info?model=fake")).json()
    unknown = await client.get("/props?model=none")

    assert (props["total_slots"], props["model_path"]) == (2, "fake")
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert info == {
        "tokenizer_class": "GGUF",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{{ x }}",
    }
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"


async def test_a_completion_has_one_object_or_events(
    fake: FakeInference, client: AsyncClient
) -> None:
    """Without [DONE]; filters that are not named have the model's defaults."""
    body = {"prompt": "a", "n_predict": 5, "n_probs": 1, "temperature": 0, "seed": 3}
    whole = (await client.post("/completion", json=body)).json()
    *deltas, last = events(await client.post("/completion", json=body | {"stream": True}))
    options = fake.calls.requests[0].options

    assert (whole["content"], whole["stop"], whole["stop_type"]) == ("Hello world", True, "eos")
    assert (whole["tokens_predicted"], whole["tokens_evaluated"]) == (3, 3)
    assert whole["timings"]["prompt_n"] == 3
    assert [each["token"] for each in whole["completion_probabilities"]] == ["Hello", " ", "world"]
    assert "".join(each["content"] for each in deltas) == "Hello world"
    assert not any(each["stop"] for each in deltas)
    assert (last["stop"], last["content"]) == (True, "")
    assert (options.stopping.max_tokens, options.sampling.seed) == (5, 3)
    assert not options.sampling.HasField("top_p")


async def test_several_prompts_have_a_list(client: AsyncClient) -> None:
    answers = (await client.post("/completion", json={"prompt": ["a", "b"]})).json()

    assert [(each["index"], each["prompt"]) for each in answers] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("prompt", "tokens"), [(["h", 7, "i"], [1, 104, 7, 105]), ([7, "h", 8], [7, 104, 8])]
)
async def test_a_prompt_mixes_texts_and_tokens(
    prompt: list[str | int], tokens: list[int], fake: FakeInference, client: AsyncClient
) -> None:
    """A text at its beginning gets a begin token; the answer repeats the tokens."""
    answer = (await client.post("/completion", json={"prompt": prompt})).json()

    assert list(fake.calls.requests[-1].token_ids.ids) == answer["prompt"] == tokens


async def test_infill_sends_both_sides(fake: FakeInference, client: AsyncClient) -> None:
    """And other files; a model without tokens for it answers with llama-server's type."""
    body = {
        "input_prefix": "def f",
        "prompt": "(",
        "input_suffix": "end",
        "input_extra": [{"filename": "a.py", "text": "x"}],
    }
    answer = await client.post("/infill", json=body)
    request = fake.calls.requests[-1]
    fake.script = Script(
        refusal=ModelCannot(
            model="fake", model_class="decoder", operation="infill", field="infill.suffix"
        )
    )
    refused = await client.post("/infill", json=body)
    completion = {"model": "fake", "prompt": "a", "suffix": "b"}
    refused_completion = await client.post("/v1/completions", json=completion)

    assert answer.json()["content"] == "Hello world"
    assert (request.text, request.infill.suffix) == ("def f(", "end")
    assert [(each.name, each.text) for each in request.infill.files] == [("a.py", "x")]
    assert refused.json()["error"]["type"] == "not_supported_error"
    assert fake.calls.requests[-1].infill.suffix == "b"
    assert refused_completion.json()["error"]["param"] == "suffix"


async def test_embeddings_are_lists_of_vectors(fake: FakeInference, client: AsyncClient) -> None:
    """Normalized unless the body says otherwise."""
    vectors = await client.post("/embedding", json={"content": ["four", "to"]})
    await client.post("/embeddings", json={"input": "a", "embd_normalize": -1})
    refused = await client.post("/embedding", json={"content": "a", "embd_normalize": 1})

    assert vectors.json() == [
        {"index": 0, "embedding": [[4, 0.5]]},
        {"index": 1, "embedding": [[2, 0.5]]},
    ]
    assert [request.normalize for request in fake.calls.requests] == [True, False]
    assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/reranking", "/v2/rerank"])
async def test_documents_are_ranked_in_both_forms(path: str, client: AsyncClient) -> None:
    """TEI's bare array with `texts`."""
    texts = {"query": "q", "texts": ["a", "long"], "return_text": True}
    documents = {"query": "q", "documents": ["a", "long"], "top_n": 1}
    bare = await client.post(path, json=texts)
    named = await client.post(path, json=documents)

    assert bare.json()[0] == {"index": 1, "score": 0.5, "text": "long"}
    assert named.json()["results"][0]["index"] == 1


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_pairs_are_scored_in_their_order(path: str, client: AsyncClient) -> None:
    """One text with many, or many with as many; with the headers of limits."""
    one = await client.post(path, json={"text_1": "q", "text_2": ["a", "long"]})
    many = await client.post(path, json={"queries": ["q", "p", "q"], "documents": ["a", "b", "c"]})
    wrong = await client.post(path, json={"text_1": ["a", "b"], "text_2": "c"})

    assert [each["index"] for each in one.json()["data"]] == [0, 1]
    assert [each["score"] for each in many.json()["data"]] == [0.5] * 3
    assert many.headers["x-ratelimit-remaining-requests"] == "8"
    assert wrong.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": ["a", "b"]}),
        ("/tokenize", {"prompt": "a"}),
        ("/tokenize", CHAT),
        ("/apply-template", CHAT),
        ("/score", {"text_1": ["q", "p"], "text_2": ["a", "b"]}),
        ("/rerank", {"query": "q", "documents": ["a"]}),
        ("/embedding", {"content": "a"}),
    ],
)
async def test_a_client_that_leaves_cancels_the_call(
    path: str, body: dict[str, Any], fake: FakeInference, connection: RawConnection
) -> None:
    """Also the first of several."""
    fake.script = Script(gate=asyncio.Event(), gate_at=0)
    await connection.post(path, body)
    await fake.calls.arrived.wait()
    connection.leave()
    await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == len(fake.calls.requests) == 1


async def test_errors_have_llama_servers_envelope(fake: FakeInference, client: AsyncClient) -> None:
    """Also in a stream, and with the numbers of a prompt that is too long."""
    fake.script = Script(
        refusal=ContextLengthExceeded(field="prompt", prompt_tokens=9, context_tokens=8)
    )
    too_long = (await client.post("/completion", json={"prompt": "a"})).json()["error"]
    fake.script = Script(failure=DecodeFailed(request_id="r"))
    *_, last = events(await client.post("/completion", json={"prompt": "a", "stream": True}))
    wrong = (await client.post("/completion", json={"prompt": 1})).json()["error"]
    change = await client.post("/props", json={})

    assert (too_long["type"], too_long["n_ctx"]) == ("exceed_context_size_error", 8)
    assert last["error"]["code"] == 500
    assert (wrong["code"], wrong["type"]) == (400, "invalid_request_error")
    assert (change.status_code, change.json()["error"]["type"]) == (501, "not_supported_error")


async def test_every_route_checks_the_key() -> None:
    """Except the health checks."""
    keys = (KeySettings(name="test", sha256=SecretStr(hash_key("sk-corral-test"))),)
    posted = ["tokenize", "detokenize", "apply-template", "completion", "infill", "embedding"]
    posted += ["rerank", "score"]
    async with run_gateway(keys=keys) as gateway, gateway.client() as client:
        answers = [await client.post(f"/{path}", json={}) for path in posted]
        answers += [await client.get(f"/{path}") for path in ("props", "slots", "tokenizer_info")]
        health = await client.get("/v1/health")

    assert {answer.status_code for answer in answers} == {401}
    assert health.json() == {"status": "ok"}
