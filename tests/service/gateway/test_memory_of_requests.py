"""What a request held is freed when it ends, without the garbage collector: large requests would
fill the memory until its next full run."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from svc_kit.errors import InternalError, QueueFull
from tests.support.fake_inference import Script
from tests.support.garbage import collecting
from tests.support.loopback_gateway import run_gateway
from tests.support.raw_http import open_connection

CHAT: Final = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "fake", "prompt": ["hi", "ho"]},
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/api/chat": CHAT,
    "/api/generate": {"model": "fake", "prompt": "hi", "raw": True},
}
SCRIPTS: Final[dict[str, Callable[[], Script]]] = {
    "answered": Script,
    "refused": lambda: Script(refusal=QueueFull(bound="requests", depth=1, limit=1)),
    "failed": lambda: Script(failure=InternalError(request_id="r")),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("path", BODIES)
async def test_a_request_that_has_ended_is_freed(path: str, script: str, stream: bool) -> None:
    """However it ended."""
    with collecting("gateway") as found:
        async with run_gateway(patience_s=9) as gateway, gateway.client() as client:
            gateway.fake.script = SCRIPTS[script]()
            await client.post(path, json={**BODIES[path], "stream": stream})
            gateway.fake.calls.requests.clear()
    assert found == []


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_request_whose_client_leaves_is_freed(
    path: str, stream: bool, is_accepted: bool
) -> None:
    """Before the service accepts it, or in the middle of the response."""
    with collecting("gateway") as found:
        async with (
            run_gateway(patience_s=9) as gateway,
            open_connection(gateway.address) as connection,
        ):
            gate, calls = asyncio.Event(), gateway.fake.calls
            gateway.fake.script = Script(gate=gate) if is_accepted else Script(acceptance_gate=gate)
            await connection.post(path, {**BODIES[path], "stream": stream})
            await calls.arrived.wait()
            if is_accepted and stream:
                await connection.head()
            connection.leave()
            await calls.ended.wait()
            calls.requests.clear()
    assert found == []


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"model": "fake"}', b'{"model": "fake", "messages": [{"role": "x"}]}']
)
async def test_a_request_with_a_bad_body_is_freed(body: bytes) -> None:
    with collecting("gateway") as found:
        async with run_gateway(patience_s=9) as gateway, gateway.client() as client:
            response = await client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            await response.aread()
    assert response.status_code == 400
    assert found == []


async def test_a_request_that_is_refused_before_its_route_is_freed() -> None:
    with collecting("gateway") as found:
        async with run_gateway(patience_s=9) as gateway, gateway.client() as client:
            response = await client.get("/v1/models", headers={"host": "other.example"})
    assert response.status_code == 403
    assert found == []


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_a_shutdown_ends_is_freed(path: str) -> None:
    """The error of its last event is that with which all calls are stopped."""
    with collecting("gateway") as found:
        async with (
            AsyncExitStack() as clients,  # they are there until the gateway has stopped
            run_gateway(patience_s=9, drain_grace_s=0) as gateway,
        ):
            gateway.fake.script = Script(gate=asyncio.Event())
            connection = await clients.enter_async_context(open_connection(gateway.address))
            await connection.post(path, {**BODIES[path], "stream": True})
            await connection.head()
            gateway.fake.calls.requests.clear()
    assert found == []
