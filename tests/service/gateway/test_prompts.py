"""Several prompts in one request."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from httpx import AsyncClient

from gateway.calls import PARALLEL_PROMPTS
from svc_kit.errors import ContextLengthExceeded, DecodeFailed, MissingField, QueueFull
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway
from tests.support.raw_http import RawConnection

TEXT = "/v1/completions"


async def test_many_prompts_are_all_answered(client: AsyncClient) -> None:
    prompts = [str(number) for number in range(3 * PARALLEL_PROMPTS)]
    answer = await client.post(TEXT, json={"model": "fake", "prompt": prompts, "echo": True})

    texts = [choice["text"] for choice in answer.json()["choices"]]
    assert texts == [f"{prompt}Hello world" for prompt in prompts]


async def test_streams_need_only_some_calls(fake: FakeInference, connection: RawConnection) -> None:
    """At most PARALLEL_PROMPTS calls run at a time."""
    gate = asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    body = {"model": "fake", "prompt": ["a"] * (PARALLEL_PROMPTS + 4), "stream": True}
    await connection.request(TEXT, body)
    gate.set()
    events = await connection.chunks()

    assert fake.calls.peak_running == PARALLEL_PROMPTS
    assert sum(b'"finish_reason":"stop"' in event for event in events) == PARALLEL_PROMPTS + 4


async def test_one_rejected_prompt_rejects_all(fake: FakeInference, client: AsyncClient) -> None:
    """With the status of the first rejection."""
    fake.script = Script(refusal=QueueFull(bound="requests", depth=1, limit=1))
    body = {"model": "fake", "prompt": ["a", "b"], "stream": True}
    answer = await client.post(TEXT, json=body)

    assert answer.status_code == 429


class RejectingInference(FakeInference):
    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Answer according to the script."""
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
async def test_prompt_errors_have_the_index_of_the_prompt(
    prompts: Any, param: str, code: str, *, stream: bool
) -> None:
    """Also if the stream has started."""
    body = {"model": "fake", "prompt": prompts, "stream": stream}
    async with run_gateway(RejectingInference()) as gateway, gateway.client() as client:
        answer = await client.post(TEXT, json=body)
    text = answer.text.split("data: ")[-1]
    error = json.loads(text)["error"]

    assert (error["param"], error["code"]) == (param, code)


async def test_a_failure_cancels_all_prompts(
    fake: FakeInference, connection: RawConnection
) -> None:
    """The stream ends with the error."""
    gate = asyncio.Event()
    fake.script = Script(failure=DecodeFailed(request_id="r"), failure_at=2, gate=gate)
    body = {"model": "fake", "prompt": ["a", "b", "c"], "stream": True}
    await connection.request(TEXT, body)
    gate.set()
    *_, last = await connection.chunks()
    while fake.calls.num_running:
        fake.calls.ended.clear()
        await fake.calls.ended.wait()

    assert b"decode_failed" in last


async def test_prompts_run_concurrently(fake: FakeInference, connection: RawConnection) -> None:
    """A prompt does not wait for another one."""
    gate = asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    body = {"model": "fake", "prompt": ["a", "b"], "stream": True}
    await connection.request(TEXT, body)
    first = [await connection.chunk(), await connection.chunk()]
    gate.set()
    chunks = await connection.chunks()

    assert sorted(b'"index":1' in chunk for chunk in first) == [False, True]
    assert chunks[-1] == b"data: [DONE]\n\n"
