"""Clients that disconnect or stop reading: their work ends, memory is bounded, others continue."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import grpc
import httpx
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1.load_pb2 import LiveRequest

from tests.e2e.conftest import PATIENCE_S, KillableCorral
from tests.support.engine_log import FREED, assert_freed_at_once
from tests.support.processes import resident_bytes
from tests.support.rpc import PARIS, Rpc, connect, endless_chat, make_chat, read_delta, read_error
from tests.support.sdk import start_story
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

MIB = 1 << 20
SMALL_WINDOW = ("grpc.http2.bdp_probe", 0)
"""Otherwise gRPC buffers megabytes for a local client before flow control stops the server."""


# --- disconnects ----------------------------------------------------------------------------------


async def test_a_disconnect_during_a_stream_frees_the_slot(
    killable: KillableCorral, sdk: openai.AsyncOpenAI, killable_rpc: Rpc
) -> None:
    """At the next step; the cancellation passes through gateway and frontend."""
    mark = killable.program.bookmark()
    stream = await start_story(sdk)
    await stream.close()
    freed = await killable.program.line(FREED, after=mark, service="engine")
    access = await killable.program.line("^request$", after=mark, service="gateway", status="499")

    assert_freed_at_once(freed, "decode")
    assert access
    await wait_until_states(killable_rpc, [])


async def test_a_cancelled_grpc_stream_frees_the_slot(
    killable: KillableCorral, killable_rpc: Rpc
) -> None:
    """The same without the gateway."""
    mark = killable.program.bookmark()
    stream = killable_rpc.inference.Chat(endless_chat())
    await read_delta(stream)
    stream.cancel()
    freed = await killable.program.line(FREED, after=mark, service="engine")

    assert_freed_at_once(freed, "decode")


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_a_disconnect_before_the_first_token_frees_the_slot(
    killable: KillableCorral, killable_rpc: Rpc, streaming: bool
) -> None:
    """During prefill no write can fail."""
    beside = killable_rpc.inference.Chat(endless_chat())  # keeps the chunks of the prompt small
    await read_delta(beside)
    mark = killable.program.bookmark()
    with request_over(killable, prompt="word " * 6000, max_tokens=1, stream=streaming):
        await wait_until_states(killable_rpc, [LiveRequest.STATE_DECODE, LiveRequest.STATE_PREFILL])
    freed = await killable.program.line(FREED, after=mark, service="engine")
    beside.cancel()
    await wait_until_states(killable_rpc, [])

    assert_freed_at_once(freed, "prefill")


async def test_a_disconnect_in_the_queue_removes_the_request(
    killable: KillableCorral, killable_rpc: Rpc
) -> None:
    """It never gets a slot."""
    running = [killable_rpc.inference.Chat(endless_chat()) for _ in range(3)]
    for stream in running:
        await read_delta(stream)
    mark = killable.program.bookmark()
    with request_over(killable, prompt="Hello", stream=True):
        await wait_until_states(
            killable_rpc,
            [LiveRequest.STATE_DECODE] * 3 + [LiveRequest.STATE_QUEUED],
        )
    freed = await killable.program.line(FREED, after=mark, service="engine")
    for stream in running:
        stream.cancel()
    await wait_until_states(killable_rpc, [])

    assert_freed_at_once(freed, "queued")


@contextmanager
def request_over(killable: KillableCorral, **body: object) -> Iterator[socket.socket]:
    """Send a completion request on a plain socket with small buffers, without reading."""
    content = httpx.Request("POST", killable.url, json={"model": MODEL, **body}).content
    address = urlsplit(killable.url)
    with socket.socket() as connection:
        # Small segments and a small window: the kernel buffers kilobytes, not megabytes.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect((address.hostname, address.port))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (address.netloc.encode(), len(content), content)
        )
        yield connection


async def wait_until_states(rpc: Rpc, states: "list[LiveRequest.State]") -> None:
    """Return when the live requests, oldest first, are in these states. Each poll is an RPC."""
    actual: list[LiveRequest.State] = []
    try:
        async with asyncio.timeout(50):
            while True:
                listed = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())
                actual = [live.choices[0].state for live in listed.requests]
                if actual == states:
                    return
    except TimeoutError:
        raise AssertionError(f"{actual} never became {states}") from None


# --- slow readers ---------------------------------------------------------------------------------


async def test_a_grpc_client_that_stops_reading_is_paused_and_dropped(
    killable: KillableCorral, killable_rpc: Rpc
) -> None:
    """Its sequence pauses, others continue, memory is bounded, then the call is cancelled."""
    frontend, mark = killable.program.member("serve inference").pid, killable.program.bookmark()
    before = resident_bytes(frontend)
    async with connect(killable.target, SMALL_WINDOW) as rpc:
        slow = rpc.inference.Chat(endless_chat(output={"top_logprobs": 20}))
        await read_delta(slow)
        await wait_until_paused(killable_rpc)
        freed = await killable.program.line(FREED, after=mark, service="engine")
        grown = resident_bytes(frontend) - before
        error = await read_error(slow)

    assert_freed_at_once(freed, "decode")
    assert grown < 32 * MIB
    assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "SLOW_READER")
    assert error.metadata == {"unread_events": "32", "limit_s": str(PATIENCE_S)}


async def wait_until_paused(rpc: Rpc) -> None:
    """Return when the only live request is paused and computes no tokens; other chats complete."""
    actual: list[tuple[LiveRequest.State, int]] = []
    async with asyncio.timeout(50):
        while True:
            assert (await rpc.chat(make_chat())).text[0] == PARIS
            listed = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
            before = actual
            actual = [
                (each.state, each.completion_tokens) for live in listed for each in live.choices
            ]
            if actual == before and [state for state, _ in actual] == [LiveRequest.STATE_PAUSED]:
                return


async def test_an_http_client_that_stops_reading_is_disconnected(
    killable: KillableCorral, killable_rpc: Rpc
) -> None:
    """Back pressure reaches the engine, then the connection is closed."""
    pids = [
        killable.program.member(command).pid for command in ("serve inference", "serve gateway")
    ]
    before, mark = [resident_bytes(pid) for pid in pids], killable.program.bookmark()
    with request_over(
        killable, prompt="Hello", max_tokens=9999, logprobs=20, stream=True, ignore_eos=True
    ) as connection:
        await wait_until_paused(killable_rpc)
        freed = await killable.program.line(FREED, after=mark, service="engine")
        await killable.program.line("^request$", after=mark, service="gateway", status="499")
        grown = [resident_bytes(pid) - size for pid, size in zip(pids, before, strict=True)]
        assert connection.recv(12) == b"HTTP/1.1 200"

    assert_freed_at_once(freed, "decode")
    assert max(grown) < 32 * MIB
    await wait_until_states(killable_rpc, [])
