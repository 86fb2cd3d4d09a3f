"""POST /v1/embeddings in front of a fake service."""

import asyncio
from typing import Any

import openai
from httpx import AsyncClient

from svc_kit.errors import ContextLengthExceeded, ModelCannot
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import Loopback, run_gateway, run_gateway_until
from tests.support.raw_http import RawConnection

PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": "fake", "input": "hi"}


def make_sdk(gateway: Loopback) -> openai.AsyncOpenAI:
    """The official client without retries."""
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(
        http_client=http, api_key="any", max_retries=0, base_url=f"{gateway.url}/v1"
    )


async def test_the_sdk_gets_the_same_vectors_in_both_encodings() -> None:
    """Its default is base64."""
    async with run_gateway() as gateway, make_sdk(gateway) as client:
        packed = await client.embeddings.create(model="fake", input=["four", "to"])
        plain = await client.embeddings.create(
            model="fake", input=["four", "to"], encoding_format="float"
        )
        tokens = await client.embeddings.create(model="fake", input=[[1, 2, 3]])

    assert [each.embedding for each in packed.data] == [[4, 0.5], [2, 0.5]]
    assert [each.embedding for each in plain.data] == [[4, 0.5], [2, 0.5]]
    assert [each.index for each in packed.data] == [0, 1]
    assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (6, 6)
    assert tokens.data[0].embedding == [3, 0.5]


async def test_errors_have_the_callers_field(fake: FakeInference, client: AsyncClient) -> None:
    """And OpenAI's status."""
    fake.script = Script(
        refusal=ContextLengthExceeded(field="inputs[1]", prompt_tokens=9, context_tokens=8)
    )
    too_long = await client.post(PATH, json=BODY)
    fake.script = Script(
        refusal=ModelCannot(model="fake", model_class="reranker", operation="embed")
    )
    wrong = await client.post(PATH, json=BODY)
    empty = await client.post(PATH, json=BODY | {"input": []})

    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "input[1]")
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "model_cannot")
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "input")
    assert len(fake.calls.requests) == 2


async def test_a_disconnect_cancels(fake: FakeInference, connection: RawConnection) -> None:
    """The service stops computing, as in streams: Embed is a unary call."""
    fake.script = Script(gate=asyncio.Event(), gate_at=0)
    await connection.post(PATH, BODY)
    await fake.calls.arrived.wait()
    connection.leave()
    await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_a_drain_cancels_the_call_after_the_grace_period() -> None:
    fake = FakeInference()
    fake.script = Script(gate=asyncio.Event(), gate_at=0)
    stop = asyncio.Event()
    async with (
        run_gateway_until(stop, fake, drain_grace_s=0.2) as gateway,
        gateway.client() as client,
    ):
        request = asyncio.create_task(client.post(PATH, json=BODY))
        await fake.calls.arrived.wait()
        stop.set()
        answer = await request

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
