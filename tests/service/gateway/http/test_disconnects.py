"""Clients that disconnect or stop reading."""

import asyncio
from typing import Any

import pytest
from corral.inference.v1 import model_pb2
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from gateway.http.connection_limits import ConnectionLimits
from gateway.http.listener import run_listener
from svc_kit.errors import ContextLengthExceeded
from svc_kit.metrics import HttpMetrics
from svc_kit.network import Address, open_listener
from tests.support.fake_inference import FakeInference, Script
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import run_and_connect, run_gateway
from tests.support.raw_http import RawConnection, open_connection

CHAT = "/v1/chat/completions"
READY = model_pb2.Model.STATE_READY
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def before_acceptance() -> Script:
    """A call that is never accepted."""
    return Script(acceptance_gate=asyncio.Event())


def before_first_token() -> Script:
    return Script(gate=asyncio.Event(), gate_at=0)


def during_generation() -> Script:
    """A call with tokens until it is cancelled."""
    return Script(endless=True)


@pytest.mark.parametrize(
    ("script", "stream", "has_head"),
    [
        (before_acceptance, True, False),
        (before_acceptance, False, False),
        (before_first_token, True, True),
        (during_generation, True, True),
        (during_generation, False, False),
    ],
)
async def test_a_disconnect_cancels(
    fake: FakeInference, connection: RawConnection, script: Any, stream: bool, has_head: bool
) -> None:
    """In every phase, also without a write to notice it."""
    fake.script = script()
    await connection.post(CHAT, BODY | {"stream": stream})
    await fake.calls.arrived.wait()
    if has_head:
        await connection.head()
    connection.leave()
    await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


CALLS_BEFORE_RESPONSES: dict[str, tuple[str, dict[str, Any], model_pb2.Model.State]] = {
    "the prompt of a generation": ("/api/generate", {"prompt": "hi"}, READY),
    "the load of a model": ("/api/generate", {}, model_pb2.Model.STATE_LOADING),
    "the echo of token ids": ("/v1/completions", {"prompt": [1, 2], "echo": True}, READY),
}


@pytest.mark.parametrize(
    ("path", "body", "state"), CALLS_BEFORE_RESPONSES.values(), ids=CALLS_BEFORE_RESPONSES
)
async def test_a_disconnect_cancels_what_a_response_needs_before_it_begins(
    fake: FakeInference,
    connection: RawConnection,
    path: str,
    body: dict[str, Any],
    state: model_pb2.Model.State,
) -> None:
    fake.script = before_acceptance()
    fake.models[0].state = state
    await connection.post(path, {"model": "fake", **body})
    await fake.calls.arrived.wait()
    connection.leave()
    async with asyncio.timeout(20):
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_a_disconnect_cancels_the_count_of_a_chat_that_is_too_long(
    fake: FakeInference, connection: RawConnection
) -> None:
    too_long = ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=4)
    fake.script = Script(refusal=too_long, count_gate=asyncio.Event())
    await connection.post("/api/chat", {**BODY, "messages": BODY["messages"] * 3})
    await fake.calls.counting.wait()
    connection.leave()
    async with asyncio.timeout(20):
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_a_disconnect_cancels_a_count_of_the_control_service() -> None:
    fake = FakeResponses(gate=asyncio.Event())
    async with (
        run_response_service(fake) as target,
        run_gateway(control_target=target) as gateway,
        open_connection(gateway.address) as connection,
    ):
        await connection.post("/v1/responses/input_tokens", {"model": "m", "input": "hi"})
        await fake.started.wait()
        connection.leave()
        async with asyncio.timeout(20):
            await fake.ended.wait()

    assert len(fake.requests) == 1


async def test_every_prompt_is_cancelled(fake: FakeInference, connection: RawConnection) -> None:
    """All calls of the request."""
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    body = {"model": "fake", "prompt": ["a", "b", "c"], "stream": True}
    await connection.request("/v1/completions", body)
    connection.leave()
    while fake.calls.num_running:
        fake.calls.ended.clear()
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 3


async def test_an_unread_stream_stops_generation() -> None:
    """The unread amount is bounded; other requests are served."""
    fake = FakeInference()
    fake.script = Script(pieces=("x" * 8192,), endless=True)
    async with (
        run_gateway(fake) as gateway,
        open_connection(gateway.address, receive_buffer=8192) as connection,
        gateway.client() as client,
    ):
        await connection.request(CHAT, BODY | {"stream": True})
        produced = await wait_until_blocked(fake)
        fake.script = Script()
        other = await client.post(CHAT, json=BODY)

    assert produced * 8192 < 2 * 1024 * 1024
    assert other.json()["choices"][0]["message"]["content"] == "Hello world"


async def test_a_client_that_never_reads_is_cut_off() -> None:
    fake = FakeInference()
    fake.script = Script(pieces=("x" * 8192,), endless=True)
    async with run_and_connect(fake, receive_buffer=8192, unread_limit_s=0.5) as connection:
        await connection.post(CHAT, BODY | {"stream": True})
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_an_unread_response_ends_its_call() -> None:
    """The service stops before it has sent all events, which exceed any socket buffer."""
    fake = FakeResponses()
    num_deltas = 200_000
    body = {"model": "m", "input": "x" * num_deltas, "stream": True}
    async with (
        run_response_service(fake) as target,
        run_gateway(control_target=target, unread_limit_s=0.5) as gateway,
        open_connection(gateway.address, receive_buffer=8192) as connection,
    ):
        await connection.post("/v1/responses", body)
        await fake.ended.wait()

    assert fake.num_events < num_deltas


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("request_head", [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", UPGRADE])
async def test_the_limit_does_not_depend_on_socket_options(request_head: bytes) -> None:
    ended = asyncio.Event()
    with open_listener(Address("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        address = Address("127.0.0.1", bound.getsockname()[1])
        async with (
            asyncio.timeout(50),
            run_listener(
                endless(ended),
                bound,
                certificate=None,
                grace_s=1,
                limits=ConnectionLimits(
                    receive_timeout_s=20,
                    min_body_rate=0,
                    unread_limit_s=0.2,
                    max_per_address=None,
                    closed=HttpMetrics(CollectorRegistry()).closed_connections,
                ),
                frame_bytes=1024,
            ),
            open_connection(address, receive_buffer=8192) as connection,
        ):
            await connection.send(request_head)
            await ended.wait()


def endless(ended: asyncio.Event) -> ASGIApp:
    """An application that writes until its client disconnects."""

    async def write(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        piece: Message = {"type": "websocket.send", "bytes": b"x" * 8192}
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            piece = {"type": "http.response.body", "body": b"x" * 8192, "more_body": True}
        disconnected = asyncio.ensure_future(receive())
        try:
            while not disconnected.done():
                await send(piece)
                await asyncio.sleep(0)
        except ClientDisconnected:
            pass  # the event of a WebSocket
        ended.set()

    return write


async def test_a_slow_reader_gets_everything() -> None:
    """A stream continues after a pause."""
    fake = FakeInference()
    fake.script = Script(pieces=["x" * 8192] * 1000)
    async with run_and_connect(fake, receive_buffer=8192) as connection:
        await connection.request(CHAT, BODY | {"stream": True})
        await wait_until_blocked(fake)
        assert fake.calls.num_pieces < 1000
        events = 0
        while event := await connection.chunk():
            events, last = events + 1, event

    assert events == 1003
    assert last == b"data: [DONE]\n\n"


async def wait_until_blocked(fake: FakeInference) -> int:
    """Return the number of generated pieces once it is unchanged for half a second."""
    while True:
        before = fake.calls.num_pieces
        try:
            async with asyncio.timeout(0.5):
                await fake.calls.ended.wait()
        except TimeoutError:
            pass
        if before and fake.calls.num_pieces == before:
            return before
