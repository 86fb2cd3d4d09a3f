"""A client that goes away, or stops reading."""

import asyncio
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from gateway.fake_inference import FakeInference, Script
from gateway.http.listener import run_listener
from svc_kit.network import Address, open_listener
from tests.support.fake_responses import FakeResponses, a_response_service
from tests.support.loopback_gateway import a_gateway
from tests.support.raw_http import a_connection, a_post

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_acceptance_cancels(stream: bool) -> None:
    """The call ends while it still waits for its place, streamed or not."""
    fake = FakeInference()
    fake.script = Script(acceptance_gate=asyncio.Event())
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY | {"stream": stream}))
        await fake.calls.arrived.wait()
        connection.leave()
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_during_the_answer_cancels(stream: bool) -> None:
    """The call ends between two tokens, streamed or not."""
    fake = FakeInference()
    fake.script = Script(endless=True)
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY | {"stream": stream}))
        await fake.calls.arrived.wait()
        if stream:
            await connection.head()
        connection.leave()
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_leaving_in_a_silent_phase_cancels() -> None:
    """No token has to come for the departure to be noticed."""
    fake = FakeInference()
    fake.script = Script(gate=asyncio.Event(), gate_at=0)
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await connection.head()
        connection.leave()
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_leaving_cancels_every_prompt() -> None:
    """All calls of one request end together."""
    fake = FakeInference()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    body = {"model": "fake", "prompt": ["a", "b", "c"], "stream": True}
    async with a_gateway(fake) as gateway, a_connection(gateway.address) as connection:
        await connection.send(a_post("/v1/completions", body))
        await connection.head()
        connection.leave()
        while fake.calls.num_running:
            fake.calls.ended.clear()
            await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 3


async def test_an_unread_stream_stops_the_service() -> None:
    """Nothing is read ahead: what one client leaves unread stays a bounded amount, others go on."""
    fake = FakeInference()
    fake.script = Script(pieces=("x" * 8192,), endless=True)
    async with (
        a_gateway(fake) as gateway,
        a_connection(gateway.address, receive_buffer=8192) as connection,
        gateway.client() as client,
    ):
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await connection.head()
        produced = await settled(fake)
        fake.script = Script()
        other = await client.post(CHAT, json=BODY)

    assert produced * 8192 < 2 * 1024 * 1024
    assert other.json()["choices"][0]["message"]["content"] == "Hello world"


async def test_a_client_that_never_reads_is_cut_off() -> None:
    """After the limit the connection is lost, and with it the call."""
    fake = FakeInference()
    fake.script = Script(pieces=("x" * 8192,), endless=True)
    async with (
        a_gateway(fake, unread_limit_s=0.5) as gateway,
        a_connection(gateway.address, receive_buffer=8192) as connection,
    ):
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await fake.calls.ended.wait()

    assert fake.calls.num_cancelled == 1


async def test_a_response_that_is_never_read_ends_its_call() -> None:
    """As soon as the limit is over: nothing behind the gateway is read ahead, or waits for ever."""
    fake = FakeResponses()
    body = {"model": "m", "input": "x" * 50_000, "stream": True}
    async with (
        a_response_service(fake) as target,
        a_gateway(control_target=target, unread_limit_s=0.5) as gateway,
        a_connection(gateway.address, receive_buffer=8192) as connection,
    ):
        await connection.send(a_post("/v1/responses", body))
        await fake.abandoned.wait()

    assert fake.told < 25_000


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("request_head", [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", UPGRADE])
async def test_the_limit_needs_no_help_of_the_kernel(request_head: bytes) -> None:
    """Not every system has a limit for sockets: a full write buffer counts, over HTTP and over a
    WebSocket."""
    ended = asyncio.Event()
    with open_listener(Address("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        address = Address("127.0.0.1", bound.getsockname()[1])
        async with (
            asyncio.timeout(20),
            run_listener(
                endless(ended),
                bound,
                tls=None,
                grace_s=1,
                head_timeout_s=20,
                unread_limit_s=0.2,
                frame_bytes=1024,
            ),
            a_connection(address, receive_buffer=8192) as connection,
        ):
            await connection.send(request_head)
            await ended.wait()


def endless(ended: asyncio.Event) -> ASGIApp:
    """An application that writes until its client is gone."""

    async def write(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        piece: Message = {"type": "websocket.send", "bytes": b"x" * 8192}
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            piece = {"type": "http.response.body", "body": b"x" * 8192, "more_body": True}
        gone = asyncio.ensure_future(receive())
        try:
            while not gone.done():
                await send(piece)
                await asyncio.sleep(0)
        except ClientDisconnected:
            pass  # what a WebSocket says instead
        ended.set()

    return write


async def test_a_slow_reader_gets_everything() -> None:
    """A stream that was left unread for a while goes on where it was."""
    fake = FakeInference()
    fake.script = Script(pieces=["x" * 8192] * 1000)
    async with (
        a_gateway(fake) as gateway,
        a_connection(gateway.address, receive_buffer=8192) as connection,
    ):
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await connection.head()
        await settled(fake)
        assert fake.calls.num_pieces < 1000
        events = 0
        while event := await connection.chunk():
            events, last = events + 1, event

    assert events == 1003
    assert last == b"data: [DONE]\n\n"


async def settled(fake: FakeInference) -> int:
    """How many pieces were handed out when no more are taken for a while."""
    while True:
        before = fake.calls.num_pieces
        try:
            async with asyncio.timeout(0.5):
                await fake.calls.ended.wait()
        except TimeoutError:
            pass
        if before and fake.calls.num_pieces == before:
            return before
