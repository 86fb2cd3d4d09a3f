"""Server-sent events on the wire."""

import asyncio

import orjson
import pytest

from gateway.fake_inference import FakeInference, Script
from svc_kit.errors import DecodeFailed, ModelNotFound
from tests.support.loopback_gateway import a_gateway
from tests.support.raw_http import a_connection, a_post

CHAT = "/v1/chat/completions"
BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_each_event_is_one_write() -> None:
    """Parsers that work chunk by chunk see whole events: data line, blank line, nothing else."""
    async with a_gateway() as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        status, _ = await connection.head()
        events = await connection.chunks()

    assert status == 200
    assert len(events) == 6
    for event in events:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2
        assert b"\r" not in event
    assert events[-1] == b"data: [DONE]\n\n"


async def test_the_headers_keep_proxies_from_buffering() -> None:
    """Type, caching, buffering and the identity of the request."""
    async with a_gateway() as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        _, headers = await connection.head()

    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"].startswith("req_")
    assert headers["openai-version"] == "2020-10-01"
    assert int(headers["openai-processing-ms"]) >= 0


async def test_the_stream_opens_when_the_request_is_accepted() -> None:
    """The first chunk comes before the first token, and not before the acceptance."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=0)
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        await connection.head()
        role = await connection.chunk()
        assert fake.calls.num_pieces == 0
        gate.set()
        events = await connection.chunks()

    assert b'"role":"assistant"' in role
    assert len(events) == 5


async def test_tokens_are_not_held_back() -> None:
    """A piece is on the wire before the next one exists."""
    fake = FakeInference()
    gate = asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        await connection.head()
        _, first = await connection.chunk(), await connection.chunk()
        gate.set()
        await connection.chunks()

    assert b'"content":"Hello"' in first


async def test_an_early_failure_is_an_ordinary_answer() -> None:
    """What goes wrong before the acceptance has its own status."""
    fake = FakeInference()
    fake.script = Script(refusal=ModelNotFound(model="fake"))
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        status, headers = await connection.head()
        body = await connection.body(headers)

    assert status == 404
    assert headers["content-type"] == "application/json"
    assert orjson.loads(body)["error"]["code"] == "model_not_found"


async def test_a_late_failure_is_the_last_event() -> None:
    """An error event with the envelope, no [DONE] after it, and the stream ends."""
    fake = FakeInference()
    fake.script = Script(failure=DecodeFailed(request_id="r"), failure_at=1)
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY))
        await connection.head()
        events = await connection.chunks()

    error = orjson.loads(events[-1].removeprefix(b"data: "))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "decode_failed")
    assert b"[DONE]" not in b"".join(events)


async def test_silence_is_filled_with_comments() -> None:
    """A quiet stream gets pings, which are whole events of their own."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=0)
    async with (
        a_gateway(fake, ping_interval_s=0.01) as gateway,
        a_connection(gateway.address) as connection,
    ):
        await connection.send(a_post(CHAT, BODY))
        await connection.head()
        _, *pings = [await connection.chunk() for _ in range(3)]
        gate.set()
        events = [event for event in await connection.chunks() if event != pings[0]]

    assert pings == [b": ping\n\n"] * 2
    assert events[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_the_connection_is_used_again(path: str) -> None:
    """After a stream the same connection takes the next request."""
    body = BODY if path == CHAT else {"model": "fake", "prompt": "a", "stream": True}
    async with a_gateway() as gateway, a_connection(gateway.address) as connection:
        for _ in range(2):
            await connection.send(a_post(path, body))
            await connection.head()
            assert (await connection.chunks())[-1] == b"data: [DONE]\n\n"
