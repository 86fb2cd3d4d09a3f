"""Scoring and inspecting prompts over HTTP, on the demo model."""

import itertools
from typing import Any

import httpx
import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.models.sources import BUNDLED_PATH
from tests.e2e.conftest import ODD_NAME, SHORT_CONTEXT
from tests.support.pictures import data_url, noise_png
from tests.support.plain_http import CHAT, COMPLETIONS, chat_body, error_of
from tests.support.plain_llama import PlainLlama
from tests.support.rpc import CAPITAL, PARIS, Rpc
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

TEXT = f"<|im_start|>user\n{CAPITAL}<|im_end|>\n<|im_start|>assistant\n{PARIS}"
TOLERANCE = 0.02


async def _tokenize(rpc: Rpc, text: str) -> list[int]:
    answer = await rpc.inference.Tokenize(pb.TokenizeRequest(text=text, parse_special=True))
    return list(answer.token_ids)


def _reference(tokens: list[int]) -> list[float | None]:
    """The log probability of each token by llama.cpp alone, none for the first."""
    plain = PlainLlama(BUNDLED_PATH)
    try:
        rows = plain.logprobs(tokens)
    finally:
        plain.close()
    pairs = zip(rows[:-1], tokens[1:], strict=True)
    return [None, *(float(row[token]) for row, token in pairs)]


async def _complete(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(COMPLETIONS, json={"model": MODEL, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_an_echo_scores_prompts_in_all_four_forms(
    rpc: Rpc, http: httpx.AsyncClient, max_tokens: int
) -> None:
    """With llama.cpp's own log probabilities, the first time and from a warm cache."""
    tokens = await _tokenize(rpc, TEXT)
    expected = _reference(tokens)
    prompts: tuple[Any, ...] = (TEXT, [TEXT, TEXT], tokens, [tokens, tokens])
    for prompt in prompts:
        answer = await _complete(http, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens)

        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert len(answer["choices"]) == (2 if prompt in prompts[1::2] else 1)
        for choice in answer["choices"]:
            logprobs = choice["logprobs"]
            scores = logprobs["token_logprobs"]
            assert (scores[0], logprobs["top_logprobs"][0]) == (None, None)
            assert scores[1 : len(tokens)] == pytest.approx(expected[1:], abs=TOLERANCE)
            assert len(scores) == len(tokens) + max_tokens
            assert choice["text"].startswith(TEXT)
            assert choice["finish_reason"] == "stop" if max_tokens else "length"
            for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
                assert choice["text"][offset:].startswith(token) or token.startswith("<|")


def test_a_streamed_echo_has_the_same_log_probabilities(client: openai.OpenAI) -> None:
    """In the types of the official SDK."""
    fields: dict[str, Any] = {"prompt": TEXT, "echo": True, "logprobs": 2, "max_tokens": 4}
    whole = client.completions.create(model=MODEL, temperature=0, **fields).choices[0]
    with client.completions.create(model=MODEL, temperature=0, stream=True, **fields) as stream:
        choices = [chunk.choices[0] for chunk in stream]
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]

    assert whole.logprobs is not None
    assert "".join(choice.text for choice in choices) == whole.text
    for name in ("tokens", "token_logprobs", "text_offset"):
        streamed = list(itertools.chain.from_iterable(getattr(part, name) for part in parts))
        assert streamed == pytest.approx(getattr(whole.logprobs, name), abs=TOLERANCE)


async def test_the_oldest_tokens_of_a_prompt_are_dropped(http: httpx.AsyncClient) -> None:
    """A number of tokens stays, or as many as fit; without the field a long prompt is refused."""
    fields = {"return_token_ids": True, "max_tokens": 1, "model": ODD_NAME}
    short = await _complete(http, prompt=[5, 6, 7, 8], truncate_prompt_tokens=3, **fields)
    long: dict[str, Any] = {"prompt": list(range(300, 1300)) * 30, **fields}
    fitted = await _complete(http, truncate_prompt_tokens=-1, **long)
    refused = await http.post(COMPLETIONS, json=long)
    zero = await http.post(COMPLETIONS, json=long | {"truncate_prompt_tokens": 0})
    kept = fitted["choices"][0]["prompt_token_ids"]

    assert short["choices"][0]["prompt_token_ids"] == [6, 7, 8]
    assert kept == long["prompt"][-len(kept) :]
    assert fitted["usage"]["total_tokens"] == len(kept) + 1 == SHORT_CONTEXT
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert zero.json()["error"]["param"] == "truncate_prompt_tokens"


async def test_a_chat_shows_its_prompt(rpc: Rpc, http: httpx.AsyncClient) -> None:
    """The tokens that the model read and wrote, and the log probabilities of the former."""
    fields = chat_body(messages=[{"role": "user", "content": CAPITAL}], temperature=0)
    fields |= {"prompt_logprobs": 1, "return_token_ids": True}
    answer = (await http.post(CHAT, json=fields)).json()
    tokens = answer["prompt_token_ids"]
    text = await rpc.inference.Detokenize(
        pb.DetokenizeRequest(token_ids=answer["choices"][0]["token_ids"])
    )

    assert tokens == await _tokenize(rpc, TEXT.removesuffix(PARIS))
    assert text.text == PARIS
    scores = [
        entry and entry[str(token)]["logprob"]
        for entry, token in zip(answer["prompt_logprobs"], tokens, strict=True)
    ]
    assert scores[0] is None
    assert scores[1:] == pytest.approx(_reference(tokens)[1:], abs=TOLERANCE)


async def test_max_tokens_0_warms_the_cache(http: httpx.AsyncClient) -> None:
    """The answer of a chat is then empty, and the next one reuses its prompt."""
    messages = [{"role": "user", "content": "Warm this. " * 30}]
    cold = await http.post(CHAT, json=chat_body(messages=messages, max_tokens=0))
    warm = await http.post(CHAT, json=chat_body(messages=messages, max_tokens=1))
    (choice,), usage = cold.json()["choices"], cold.json()["usage"]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert usage["completion_tokens"] == 0
    cached = warm.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == usage["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": "all"}, "prompt_logprobs"),
        ({"echo": True}, "echo"),
    ],
)
async def test_what_a_chat_cannot_return_of_its_prompt_is_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    """Naming the field: alternatives above the limit, and an echo of a conversation."""
    response = await http.post(CHAT, json=chat_body(**fields))

    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_the_vectors_of_a_picture_have_none(http: httpx.AsyncClient) -> None:
    """Nor has the token after them; the text around them has."""
    content = [
        {"type": "text", "text": "See this: "},
        {"type": "image_url", "image_url": {"url": data_url(noise_png(5))}},
        {"type": "text", "text": "What is it?"},
    ]
    fields = chat_body(messages=[{"role": "user", "content": content}], max_tokens=1)
    fields |= {"prompt_logprobs": 0, "return_token_ids": True}
    answer = (await http.post(CHAT, json=fields)).json()
    ids, scores = answer["prompt_token_ids"], answer["prompt_logprobs"]

    without = [i for i, score in enumerate(scores) if score is None]
    assert without == [i for i, token in enumerate(ids) if i == 0 or token < 0 or ids[i - 1] < 0]
    assert (
        sum(token < 0 for token in ids)
        == (answer["usage"]["prompt_tokens_details"]["image_tokens"])
    )
