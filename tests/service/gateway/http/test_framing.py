"""Framing of server-sent events."""

import asyncio

import orjson
import pytest

from svc_kit.errors import DecodeFailed, ModelNotFound
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_and_connect
from tests.support.raw_http import RawConnection

CHAT = "/v1/chat/completions"
BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_every_event_is_one_write(connection: RawConnection) -> None:
    status, _ = await connection.request(CHAT, BODY)
    events = await connection.chunks()

    assert status == 200
    assert len(events) == 6
    for event in events:
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2
        assert b"\r" not in event
    assert events[-1] == b"data: [DONE]\n\n"


async def test_stream_headers(connection: RawConnection) -> None:
    """They disable buffering in proxies."""
    _, headers = await connection.request(CHAT, BODY)

    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"].startswith("req_")
    assert headers["openai-version"] == "2020-10-01"
    assert int(headers["openai-processing-ms"]) >= 0


async def test_streams_start_on_acceptance(fake: FakeInference, connection: RawConnection) -> None:
    """Before the first token."""
    gate = asyncio.Event()
    fake.script = Script(gate=gate, gate_at=0)
    await connection.request(CHAT, BODY)
    role = await connection.chunk()
    assert fake.calls.num_pieces == 0
    gate.set()
    events = await connection.chunks()

    assert b'"role":"assistant"' in role
    assert len(events) == 5


async def test_tokens_are_sent_at_once(fake: FakeInference, connection: RawConnection) -> None:
    """Before the next one is generated."""
    gate = asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    await connection.request(CHAT, BODY)
    _, first = await connection.chunk(), await connection.chunk()
    gate.set()
    await connection.chunks()

    assert b'"content":"Hello"' in first


async def test_early_errors_have_a_status(fake: FakeInference, connection: RawConnection) -> None:
    """And the usual envelope."""
    fake.script = Script(refusal=ModelNotFound(model="fake"))
    status, headers = await connection.request(CHAT, BODY)
    body = await connection.body(headers)

    assert status == 404
    assert headers["content-type"] == "application/json"
    assert orjson.loads(body)["error"]["code"] == "model_not_found"


async def test_late_errors_end_the_stream(fake: FakeInference, connection: RawConnection) -> None:
    """Without [DONE]."""
    fake.script = Script(failure=DecodeFailed(request_id="r"), failure_at=1)
    await connection.request(CHAT, BODY)
    events = await connection.chunks()

    error = orjson.loads(events[-1].removeprefix(b"data: "))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "decode_failed")
    assert b"[DONE]" not in b"".join(events)


async def test_an_idle_stream_gets_pings() -> None:
    """They are whole events."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=0)
    async with run_and_connect(fake, ping_interval_s=0.01) as connection:
        await connection.request(CHAT, BODY)
        _, *pings = [await connection.chunk() for _ in range(3)]
        gate.set()
        events = [event for event in await connection.chunks() if event != pings[0]]

    assert pings == [b": ping\n\n"] * 2
    assert events[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_the_connection_is_reused(connection: RawConnection, path: str) -> None:
    body = BODY if path == CHAT else {"model": "fake", "prompt": "a", "stream": True}
    for _ in range(2):
        await connection.request(path, body)
        assert (await connection.chunks())[-1] == b"data: [DONE]\n\n"
