"""Speculative decoding and timings over gRPC and HTTP.

Whether a step drafts is decided by measured times, so the tests do not require drafts.
"""

from typing import Any

import openai
import pytest
from corral.inference.v1 import generation_pb2

from tests.support.rpc import CAPITAL, PARIS, Rpc, make_completion, read_error
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

LENGTH = 80
LETTERS = "abc abc abc abc abc abc "


def _options(**speculation: Any) -> generation_pb2.SpeculationOptions:
    return generation_pb2.SpeculationOptions(**speculation)


async def test_an_answer_does_not_depend_on_drafts(rpc: Rpc) -> None:
    """The tokens are the same with drafts disabled, enabled and limited."""
    settings: dict[str, Any] = {
        "sampling": {"seed": 7, "temperature": 1.0},
        "stopping": {"max_tokens": LENGTH, "ignore_eos": True},
        "output": {"token_ids": True},
        "cache": generation_pb2.CacheOptions(reuse=False),
    }
    answers = [
        await rpc.generate(make_completion(LETTERS, speculation=speculation, **settings))
        for speculation in (_options(enabled=False), None, _options(max_draft_tokens=3))
    ]

    assert len(answers[0].tokens[0]) == LENGTH
    assert answers[0].tokens[0] == answers[1].tokens[0] == answers[2].tokens[0]
    assert answers[0].done.usage.draft_tokens == 0
    for answer in answers:
        assert 0 <= answer.done.usage.accepted_draft_tokens <= answer.done.usage.draft_tokens


async def test_an_answer_does_not_depend_on_its_prediction(rpc: Rpc) -> None:
    """The tokens are the same with right, wrong and malicious predictions."""
    stopping = {"max_tokens": LENGTH, "ignore_eos": True}
    output = {"token_ids": True}
    plain = await rpc.generate(make_completion(LETTERS, stopping=stopping, output=output))
    for prediction in (plain.text[0], "nothing of this", "<|im_end|>" * 500):
        request = make_completion(
            LETTERS,
            stopping=stopping,
            output=output,
            speculation=_options(prediction=prediction),
            cache=generation_pb2.CacheOptions(reuse=False),
        )
        assert (await rpc.generate(request)).tokens == plain.tokens


async def test_a_draft_limit_out_of_range_is_refused(rpc: Rpc) -> None:
    stream = rpc.inference.Generate(
        make_completion(LETTERS, speculation=_options(max_draft_tokens=33))
    )
    error = await read_error(stream)

    assert (error.reason, error.metadata["field"], error.metadata["maximum"]) == (
        "OUT_OF_RANGE",
        "speculation.max_draft_tokens",
        "32",
    )


async def test_done_has_the_timings_of_the_first_choice(rpc: Rpc) -> None:
    """They are consistent: the first token follows queue and prompt times."""
    timings = (
        await rpc.generate(make_completion(LETTERS, stopping={"max_tokens": 9}))
    ).done.timings

    first_token = timings.first_token.ToTimedelta()
    assert first_token >= timings.prefill.ToTimedelta() > first_token * 0
    assert timings.completion_tokens <= 9
    assert timings.tokens_per_second >= 0


def test_openais_prediction_is_accepted(client: openai.OpenAI) -> None:
    """As a string or in parts. Accepted tokens are counted."""
    texts = [
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": CAPITAL}],
            temperature=0,
            extra_body={"prediction": {"type": "content", "content": content}},
        )
        .choices[0]
        .message.content
        for content in (PARIS, [{"type": "text", "text": PARIS}])
    ]

    assert texts == [PARIS, PARIS]


@pytest.mark.parametrize("stream", [False, True])
def test_the_gateway_sends_timings_and_draft_counts(client: openai.OpenAI, stream: bool) -> None:
    """In a response, and in the usage chunk of a stream."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": CAPITAL}],
        "extra_body": {"speculation": {"enabled": False}},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        *_, answer = client.chat.completions.create(**body)
    else:
        answer = client.chat.completions.create(**body)

    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == answer.usage.completion_tokens
    assert timings["prompt_n"] + timings["cache_n"] == answer.usage.prompt_tokens
    assert timings["first_token_ms"] > 0
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)
