"""What real engines answered, read by our readers. Their tokens are those of the same weights."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.upstream.engine_api import Chunk, EngineApi, Generation
from inference_svc.upstream.faults import EngineLost, EngineOverloaded, RequestRefused
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.vllm import Vllm
from tests.support.engine_exchanges import PROMPT, Answer, recordings
from tests.support.sequences import make_request

KINDS = ["llama_server", "vllm"]
ANSWER = [298, 419, 317, 220, 1845, 278, 220, 1715, 13, 2041]
"""The capital of France is Paris."""


@pytest.fixture(scope="module")
def apis() -> Iterator[dict[str, EngineApi]]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield {"llama_server": LlamaServer(PieceIndex(vocabulary)), "vllm": Vllm()}
    vocabulary.close()


def answers(kind: str, name: str) -> list[Answer]:
    return [answer for line, answer in recordings(kind) if line["name"] == name]


def read(api: EngineApi, answer: Answer, top_logprobs: int | None = None) -> list[Chunk]:
    request = make_request(0, PROMPT, top_logprobs=top_logprobs)
    reader = api.reader(Generation(request, "demo", PROMPT, 64))
    events: list[Any] = answer.events
    texts = [each if each == "[DONE]" else json.dumps(each) for each in events]
    return [reader.read(text.encode()) for text in texts]


def tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "expected", "at_limit"),
    [
        ("stream", ANSWER[:5], True),
        ("to the end", ANSWER, False),
        ("sampled", ANSWER[:3], True),
    ],
)
def test_tokens_and_ends_of_recorded_streams(
    apis: dict[str, EngineApi], kind: str, name: str, expected: list[int], at_limit: bool
) -> None:
    """llama-server calls the sampled one "samplers"."""
    recorded = "samplers" if (kind, name) == ("llama_server", "sampled") else name
    chunks = read(apis[kind], answers(kind, recorded)[0])
    (end,) = (chunk for chunk in chunks if chunk.is_end)

    assert tokens(chunks) == expected
    assert end.at_limit == at_limit


def test_the_progress_of_a_prompt_is_no_token(apis: dict[str, EngineApi]) -> None:
    chunks = read(apis["llama_server"], answers("llama_server", "progress")[0])

    assert [chunk.tokens for chunk in chunks[:2]] == [(), ()]
    assert len(tokens(chunks)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_log_probabilities_are_near_the_same(
    apis: dict[str, EngineApi], kind: str
) -> None:
    """The weights are quantized in llama.cpp and exact in vLLM."""
    chunks = read(apis[kind], answers(kind, "logprobs")[0], top_logprobs=2)
    found = [logprob for chunk in chunks for logprob in chunk.logprobs]

    assert tokens(chunks) == ANSWER[:2]
    assert [each.logprob for each in found] == pytest.approx([-0.00068, -0.000024], abs=1e-4)
    assert [[token for token, _ in each.top] for each in found] == [[298, 1715], [419, 1557]]


@pytest.mark.parametrize("name", ["bad grammar", "token outside", "too many logprobs"])
def test_a_refusal_inside_a_stream_is_one(apis: dict[str, EngineApi], name: str) -> None:
    """vLLM begins the stream before it refuses."""
    answer = answers("vllm", name)[0]

    assert answer.status == 200
    with pytest.raises(RequestRefused):
        read(apis["vllm"], answer)


def test_an_overload_inside_a_stream_is_one(apis: dict[str, EngineApi]) -> None:
    """Of eight requests at once, those for which vLLM had no room; some are refused before it."""
    streams = [each for each in answers("vllm", "overload") if each.is_stream]
    refused = [each for each in streams if "error" in each.events[0]]

    assert len(refused) == 6
    for answer in refused:
        with pytest.raises(EngineOverloaded):
            read(apis["vllm"], answer)


@pytest.mark.parametrize(
    ("status", "fault"), [(503, EngineOverloaded), (400, RequestRefused), (None, EngineLost)]
)
def test_an_abort_of_sglang_is_what_its_status_says(status: int | None, fault: type) -> None:
    """A full queue is 503."""
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": status}
    event = {"output_ids": [], "meta_info": {"completion_tokens": 0, "finish_reason": reason}}
    reader = Sglang().reader(Generation(make_request(0, PROMPT), "demo", PROMPT, 64))

    with pytest.raises(fault, match="The request queue is full"):
        reader.read(json.dumps(event).encode())
