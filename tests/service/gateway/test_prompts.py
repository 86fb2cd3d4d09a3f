"""Several prompts in one request."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from gateway.calls import PARALLEL_PROMPTS
from gateway.fake_inference import FakeInference, Script
from svc_kit.errors import ContextLengthExceeded, DecodeFailed, MissingField, QueueFull
from tests.support.loopback_gateway import a_gateway
from tests.support.raw_http import a_connection, a_post

TEXT = "/v1/completions"


async def test_many_prompts_are_all_answered() -> None:
    """A long list loses nothing and keeps its order."""
    fake = FakeInference()
    prompts = [str(number) for number in range(3 * PARALLEL_PROMPTS)]
    async with a_gateway(fake) as gateway, gateway.client() as client:
        answer = await client.post(TEXT, json={"model": "fake", "prompt": prompts, "echo": True})

    texts = [choice["text"] for choice in answer.json()["choices"]]
    assert texts == [f"{prompt}Hello world" for prompt in prompts]


async def test_the_stream_opens_with_the_first_round() -> None:
    """Only so many calls run at a time, and the stream does not wait for the others."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    body = {"model": "fake", "prompt": ["a"] * (PARALLEL_PROMPTS + 4), "stream": True}
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(TEXT, body))
        await connection.head()
        gate.set()
        events = await connection.chunks()

    assert fake.calls.peak_running == PARALLEL_PROMPTS
    assert sum(b'"finish_reason":"stop"' in event for event in events) == PARALLEL_PROMPTS + 4


async def test_a_refused_prompt_refuses_the_request() -> None:
    """One answer for all: the first refusal is the request's, with its own status."""
    fake = FakeInference()
    fake.script = Script(refusal=QueueFull(bound="requests", depth=1, limit=1))
    body = {"model": "fake", "prompt": ["a", "b"], "stream": True}
    async with a_gateway(fake) as gateway, gateway.client() as client:
        answer = await client.post(TEXT, json=body)

    assert answer.status_code == 429


class Particular(FakeInference):
    """Refuses some texts, as the service does."""

    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Answers with the script."""
        if not request.text:
            raise MissingField(field="prompt")
        if request.text == "long":
            raise ContextLengthExceeded(field="prompt", prompt_tokens=9, context_tokens=8)
        async for event in super().Generate(request, context):
            yield event


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("prompts", "param", "code"),
    [
        (["a", "long", "b"], "prompt[1]", "context_length_exceeded"),
        (["a", "b", ""], "prompt[2]", "empty_string"),
        (["a"] * PARALLEL_PROMPTS + ["long"], "prompt[16]", "context_length_exceeded"),
        ("long", "prompt", "context_length_exceeded"),
    ],
    ids=["long", "empty", "late", "alone"],
)
async def test_a_wrong_prompt_of_several_is_named(
    prompts: Any, param: str, code: str, *, stream: bool
) -> None:
    """By its number, also where the stream has begun when it is sent."""
    body = {"model": "fake", "prompt": prompts, "stream": stream}
    async with a_gateway(Particular()) as gateway, gateway.client() as client:
        answer = await client.post(TEXT, json=body)
    text = answer.text.split("data: ")[-1]
    error = json.loads(text)["error"]

    assert (error["param"], error["code"]) == (param, code)


async def test_a_failed_prompt_ends_the_others() -> None:
    """When one call fails, the stream ends with its error and no call goes on."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(failure=DecodeFailed(request_id="r"), failure_at=2, gate=gate)
    body = {"model": "fake", "prompt": ["a", "b", "c"], "stream": True}
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(TEXT, body))
        await connection.head()
        gate.set()
        *_, last = await connection.chunks()
        while fake.calls.num_running:
            fake.calls.ended.clear()
            await fake.calls.ended.wait()

    assert b"decode_failed" in last


async def test_prompts_are_streamed_side_by_side() -> None:
    """No prompt waits for the end of another one's answer."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    body = {"model": "fake", "prompt": ["a", "b"], "stream": True}
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(TEXT, body))
        await connection.head()
        first = [await connection.chunk(), await connection.chunk()]
        gate.set()
        rest = await connection.chunks()

    assert sorted(b'"index":1' in chunk for chunk in first) == [False, True]
    assert rest[-1] == b"data: [DONE]\n\n"
