"""The official OpenAI client, unmodified, in front of the gateway."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from corral.inference.v1 import chat_pb2

from svc_kit.errors import (
    EngineRestarting,
    FeatureUnsupported,
    GrammarInvalid,
    QueueFull,
)
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import Loopback, run_gateway

USER: Any = {"role": "user", "content": "hi"}
TOOLS: Any = [{"type": "function", "function": {"name": "look"}}]


Client = openai.AsyncOpenAI


@pytest.fixture
async def client(gateway: Loopback) -> AsyncIterator[Client]:
    """The asynchronous client without retries."""
    async with make_async_client(gateway) as opened:
        yield opened


def make_async_client(gateway: Loopback, max_retries: int = 0) -> Client:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    url = f"{gateway.url}/v1"
    return openai.AsyncOpenAI(
        http_client=http, api_key="any", max_retries=max_retries, base_url=url
    )


async def test_the_stream_helper_accepts_the_chunks() -> None:
    """It builds the whole message with tool calls."""
    fake = FakeInference()
    fake.script = Script(
        pieces=(),
        reasoning=("h", "m"),
        tool_calls=[
            chat_pb2.ToolCallDelta(index=0, id="c1", name="look", arguments_json='{"a"'),
            chat_pb2.ToolCallDelta(index=0, arguments_json=":1}"),
            chat_pb2.ToolCallDelta(index=1, id="c2", name="look", arguments_json="{}"),
        ],
    )
    async with (
        run_gateway(fake) as gateway,
        make_async_client(gateway) as client,
        client.chat.completions.stream(model="fake", messages=[USER], tools=TOOLS) as stream,
    ):
        answer = await stream.get_final_completion()

    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert [(call.id, call.function.arguments) for call in choice.message.tool_calls or ()] == [
        ("c1", '{"a":1}'),
        ("c2", "{}"),
    ]
    assert getattr(choice.message, "reasoning_content", None) == "hm"


async def test_a_streamed_text_completion_of_several_prompts(client: Client) -> None:
    """Usage is summed."""
    stream = await client.completions.create(
        model="fake", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["Hello world", "Hello world"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 6


async def test_models_are_listed_and_retrieved(client: Client) -> None:
    """From several pages. Names may contain slashes and colons."""
    names = [model.id async for model in client.models.list()]
    model = await client.models.retrieve("org/other:1b")

    assert names == ["fake", "org/other:1b"]
    assert model.id == "org/other:1b"


async def test_a_full_queue_returns_429(fake: FakeInference, client: Client) -> None:
    """With Retry-After in both forms."""
    fake.script = Script(refusal=QueueFull(bound="requests", depth=8, limit=8, retry_after=2.5))
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="fake", messages=[USER], stream=True)

    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2500")


async def test_the_client_does_not_retry_501() -> None:
    """x-should-retry is false."""
    fake = FakeInference()
    fake.script = Script(refusal=FeatureUnsupported(feature="constrained output"))
    async with run_gateway(fake) as gateway, make_async_client(gateway, max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="fake", messages=[USER], response_format={"type": "json_object"}
            )

    assert caught.value.status_code == 501
    assert len(fake.calls.requests) == 1
    assert fake.calls.requests[0].options.constraint.json_object


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"grammar": "root ::="}, "grammar"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ],
    ids=["openai", "llama-server", "vllm"],
)
async def test_constraint_errors_have_the_callers_field(
    fake: FakeInference, client: Client, fields: dict[str, Any], param: str
) -> None:
    """In the formats of OpenAI, llama-server and vLLM."""
    fake.script = Script(refusal=GrammarInvalid(field="constraint.regex", problem="no"))
    with pytest.raises(openai.BadRequestError) as chat:
        await client.chat.completions.create(model="fake", messages=[USER], extra_body=fields)
    with pytest.raises(openai.BadRequestError) as text:
        await client.completions.create(model="fake", prompt="x", extra_body=fields)

    assert (chat.value.param, text.value.param) == (param, param)


async def test_an_error_event_is_raised(fake: FakeInference, client: Client) -> None:
    """After the text before it."""
    fake.script = Script(failure=EngineRestarting(), failure_at=2)
    stream = await client.chat.completions.create(model="fake", messages=[USER], stream=True)
    texts: list[str | None] = []

    async def read() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError, match="being restarted") as caught:
        await read()

    assert texts == ["", "Hello", " "]
    assert caught.value.type == "server_error"


async def test_extensions_are_sent_as_extra_body(fake: FakeInference, client: Client) -> None:
    """They reach the service."""
    await client.chat.completions.create(
        model="fake", messages=[USER], extra_body={"top_k": 3, "min_p": 0.5}
    )

    sampling = fake.calls.requests[0].options.sampling
    assert (sampling.top_k, sampling.min_p, sampling.temperature) == (3, 0.5, 1.0)
