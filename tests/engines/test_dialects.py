"""Clients of all APIs with a model that an engine serves."""

import json
from typing import Any

import httpx
import openai
import pytest

from svc_kit.rpc.client import open_channel
from tests.engines.conftest import ENGINE, Served
from tests.support.batches import CHAT, batch_line
from tests.support.operators import Operator
from tests.support.rpc import CAPITAL
from tests.support.sdk import WEATHER
from tests.support.sdk_batches import read_batch, start_batch, wait_for_batch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ANSWER = "The capital of France is Paris."
QUESTION: Any = [{"role": "user", "content": CAPITAL}]
CITY: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_chat_is_answered_whole_and_in_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=ENGINE, messages=QUESTION, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=ENGINE,
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 1


def test_log_probabilities_are_those_of_the_engine(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=ENGINE, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2, max_tokens=3
    )
    logprobs = found.choices[0].logprobs

    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(each.token for each in logprobs.content) == found.choices[0].message.content
    assert all(len(each.top_logprobs) == 2 for each in logprobs.content)
    assert all(each.top_logprobs[0].token == each.token for each in logprobs.content)
    assert all(-1 < each.logprob <= 0 for each in logprobs.content)


def test_anthropic_and_ollama_clients_are_answered(served: Served, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=ENGINE, messages=QUESTION, max_tokens=1)  # it is ready
    with httpx.Client(base_url=served.corral.url, trust_env=False, timeout=300) as http:
        body = {"model": ENGINE, "messages": QUESTION, "temperature": 0}
        message = http.post("/v1/messages", json=body | {"max_tokens": 40}).json()
        options = {"options": {"temperature": 0}, "stream": False}
        ollama = http.post(
            "/api/chat", json={"model": ENGINE, "messages": QUESTION, **options}
        ).json()

    assert message["content"] == [{"type": "text", "text": ANSWER}]
    assert message["stop_reason"] == "end_turn"
    assert ollama["message"]["content"] == ANSWER
    assert ollama["done_reason"] == "stop"


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    found = client.chat.completions.create(
        model=ENGINE, messages=asked, tools=[WEATHER], temperature=0
    )
    calls = found.choices[0].message.tool_calls or []

    assert found.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in calls if call.type == "function"] == ["get_weather"]
    assert json.loads(calls[0].function.arguments) == {"city": "Paris"}  # type: ignore[union-attr]  # asserted above


def test_structured_output_follows_its_schema(client: openai.OpenAI) -> None:
    """With a temperature at which the model would not write it by itself."""
    for seed in range(3):
        found = client.chat.completions.create(
            model=ENGINE, messages=QUESTION, response_format=CITY, temperature=1.5, seed=seed
        )
        assert json.loads(found.choices[0].message.content or "")["city"] in ("Paris", "Rome")


def test_a_stop_text_ends_the_answer(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=ENGINE, messages=QUESTION, temperature=0, stop=[" Par"]
    )

    assert found.choices[0].message.content == "The capital of France is"


def test_what_the_engine_lacks_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(
            model=ENGINE, messages=QUESTION, extra_body={"deterministic": True}
        )

    assert "deterministic" in refused.value.message
    assert refused.value.status_code < 500 or refused.value.status_code == 501


def test_a_conversation_goes_on(client: openai.OpenAI) -> None:
    conversation = client.conversations.create()
    first = client.responses.create(
        model=ENGINE, input=CAPITAL, conversation=conversation.id, temperature=0
    )
    second = client.responses.create(
        model=ENGINE, input="Thank you!", conversation=conversation.id, temperature=0
    )
    items = client.conversations.items.list(conversation.id, order="asc")

    assert first.output_text == ANSWER
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    assert [item.type for item in items.data] == ["message"] * 4


def test_a_background_response_is_completed(client: openai.OpenAI) -> None:
    begun = client.responses.create(model=ENGINE, input=CAPITAL, background=True, temperature=0)
    events = list(client.responses.retrieve(begun.id, stream=True))

    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(begun.id).output_text == ANSWER


def test_a_batch_is_completed(served: Served, client: openai.OpenAI) -> None:
    """With more lines than the engine runs at once."""
    fields = {"model": ENGINE, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    names = [f"line-{number}" for number in range(6)]
    begun = start_batch(client, [batch_line(name, CHAT, **fields) for name in names])
    wait_for_batch(served.corral, begun.id)
    ended = read_batch(client, begun.id)
    texts = {
        name: line["response"]["body"]["choices"][0]["message"]["content"]
        for name, line in ended.completed.items()
    }

    assert ended.failed == {}
    assert texts == dict.fromkeys(names, ANSWER)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates Assistants
def test_a_run_is_completed(client: openai.OpenAI) -> None:
    assistant = client.beta.assistants.create(model=ENGINE, temperature=0)
    run = client.beta.threads.create_and_run_poll(
        assistant_id=assistant.id, thread={"messages": QUESTION}, poll_interval_ms=200
    )
    (latest, _) = client.beta.threads.messages.list(run.thread_id).data

    assert run.status == "completed"
    assert [part.text.value for part in latest.content if part.type == "text"] == [ANSWER]


async def refusal_after(client: openai.AsyncOpenAI, answers: list[Any]) -> str:
    """Append answers until the limit is known and used up; return the message of the refusal."""
    while True:
        try:
            answers.append(await client.chat.completions.create(model=ENGINE, messages=QUESTION))
        except openai.RateLimitError as refusal:
            return refusal.message


async def test_limits_and_usage_count_what_the_engine_answers(
    served: Served, client: openai.OpenAI
) -> None:
    client.chat.completions.create(model=ENGINE, messages=QUESTION)  # waits until it is served
    async with open_channel(served.corral.control, token=served.token) as channel:
        operator = Operator(channel)
        await operator.create_project("limited")
        created = await operator.create_key("limited")
        await operator.create_limit("calls", "REQUESTS", 2, "MONTH", key=created.key.id)
        answers: list[Any] = []
        async with served.corral.sdk(created.secret) as limited:
            refused = await refusal_after(limited, answers)
        while True:
            sums = (await operator.list_usage(key=created.key.id)).sums
            if sum(each.counts.requests for each in sums) >= len(answers):
                break

    assert "'calls'" in refused
    assert sum(each.counts.requests for each in sums) == len(answers) >= 2
    for field in ("prompt_tokens", "completion_tokens"):
        counted = sum(getattr(each.counts, field) for each in sums)
        assert counted == sum(getattr(each.usage, field) for each in answers)
