"""Reasoning of the demo model: efforts and budgets, with the official `openai` package."""

import json
from typing import Any

import openai
import pytest
from corral.inference.v1 import inference_service_pb2, model_pb2
from openai.types.chat import ChatCompletion

from tests.support.rpc import Rpc
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

SUM = "What is 17 plus 25?"
LAST = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def ask(client: openai.OpenAI, text: str = SUM, **fields: Any) -> ChatCompletion:
    answer: ChatCompletion = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], temperature=0, **fields
    )
    return answer


def reasoning_tokens(answer: ChatCompletion) -> int | None:
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    return usage.completion_tokens_details.reasoning_tokens


def reasoning_of(answer: ChatCompletion, choice: int = 0) -> str:
    return (answer.choices[choice].message.model_extra or {}).get("reasoning_content") or ""


def test_an_effort_enables_and_disables_thinking(client: openai.OpenAI) -> None:
    """In chat completions and in responses; the counts of tokens follow."""
    thoughtful, brief = ask(client, reasoning_effort="high"), ask(client, reasoning_effort="none")

    assert reasoning_of(thoughtful)
    assert (reasoning_tokens(thoughtful) or 0) > 5
    assert (reasoning_of(brief), reasoning_tokens(brief)) == ("", 0)
    for effort in ("low", "none"):
        response = client.responses.create(
            model=MODEL, input=SUM, temperature=0, reasoning={"effort": effort}
        )
        assert response.usage is not None
        counted = response.usage.output_tokens_details.reasoning_tokens
        assert (counted > 5) is (effort == "low")
        assert (response.output[0].type == "reasoning") is (effort == "low")
        assert "42" in response.output_text


@pytest.mark.parametrize("budget", [1, 7])
def test_a_budget_ends_the_thought_and_the_answer_follows(
    client: openai.OpenAI, budget: int
) -> None:
    """With exactly as many reasoning tokens, in each of several choices."""
    fields = {"enable_thinking": True, "thinking_token_budget": budget}
    whole = ask(client, n=2, extra_body=fields)

    assert reasoning_tokens(whole) == 2 * budget
    for choice in whole.choices:
        assert choice.message.content
        assert "think>" not in choice.message.content
        assert choice.finish_reason == "stop"
    response = client.responses.create(
        model=MODEL,
        input=SUM,
        temperature=0,
        extra_body={"thinking": {"type": "enabled", "budget_tokens": budget}},
    )
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == budget
    assert response.output_text == whole.choices[0].message.content


def test_a_stream_with_a_budget_has_the_same_text(client: openai.OpenAI) -> None:
    """Also with log probabilities, of which each token has one."""
    fields = {"enable_thinking": True, "thinking_token_budget": 5}
    whole = ask(client, extra_body=fields)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": SUM}],
        temperature=0,
        stream=True,
        logprobs=True,
        extra_body=fields,
    )
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    thoughts = ((delta.model_extra or {}).get("reasoning_content") for delta in deltas)

    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert "".join(thought or "" for thought in thoughts) == reasoning_of(whole)


@pytest.mark.parametrize("budget", [0, 4])
def test_an_output_format_begins_after_the_budget(client: openai.OpenAI, budget: int) -> None:
    """The grammar allows the reasoning and then only the format."""
    answer = ask(
        client,
        max_tokens=200,
        extra_body={"enable_thinking": True, "thinking_token_budget": budget},
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": LAST}},
    )

    assert list(json.loads(answer.choices[0].message.content or "")) == ["sum"]
    assert (reasoning_tokens(answer) or 0) <= budget


async def test_the_models_thinking_is_described(rpc: Rpc) -> None:
    """The demo model's template can switch it."""
    reply = await rpc.inference.GetModel(inference_service_pb2.GetModelRequest(model=MODEL))

    assert reply.model.thinking == model_pb2.ThinkingSupport(
        mode=model_pb2.ThinkingSupport.MODE_SWITCHABLE, keeps_budget=True
    )


def test_nothing_is_ignored_that_has_an_effect(client: openai.OpenAI) -> None:
    """The header is missing for a model that reasons."""
    answer = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": SUM}],
        max_tokens=5,
        reasoning_effort="low",
        extra_body={"thinking_token_budget": 3},
    )

    assert "x-corral-ignored" not in answer.headers
