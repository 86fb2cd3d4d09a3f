"""WebSockets of responses with clients that do not read and keys that are revoked."""

import asyncio
import json
from typing import Any, cast

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket

from gateway.active_calls import ActiveCalls
from gateway.config import GatewaySettings
from gateway.context import AppContext
from gateway.http.json_body import JsonBodies
from gateway.http.large_bodies import LargeBodies
from gateway.response_socket import ResponseSocket
from gateway.stored_files import StoredFileReader
from svc_kit.errors import ApiKeyInvalid


class RevokedKey:
    async def identify(self, *_: object) -> None:
        raise ApiKeyInvalid


class PendingKey:
    """Authentication that never ends."""

    async def identify(self, *_: object) -> None:
        await asyncio.Event().wait()


def make_context(
    authentication: Any = None, memory_bytes: int = 2**26, **settings: Any
) -> AppContext:
    """The context of a gateway without clients of other services."""
    unused: Any = None
    active_calls = ActiveCalls()
    return AppContext(
        settings=GatewaySettings(**settings),
        authentication=authentication or cast("Any", RevokedKey()),
        inference=unused,
        control=unused,
        active_calls=active_calls,
        stored_files=StoredFileReader(active_calls),
        bodies=JsonBodies(2**25, 60.0, LargeBodies(memory_bytes, 0.01, 2**25)),
        fingerprint="",
    )


async def test_a_socket_is_closed_at_its_maximum_age_even_if_the_client_does_not_read() -> None:
    """Writes that block do not keep the connection open."""

    sent: list[str] = []
    never_set = asyncio.Event()

    async def receive() -> Message:
        if sent:
            await never_set.wait()
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if message["type"] != "websocket.accept":
            await never_set.wait()

    websocket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    context = make_context(websocket_max_age_s=0.01, drain_grace_s=0.01)

    await ResponseSocket(websocket, context).run()

    assert sent == ["websocket.accept", "websocket.send", "websocket.close"]


async def test_the_key_is_checked_again_for_each_response() -> None:
    """A key that is revoked after the handshake is rejected with 401."""
    frame = json.dumps({"type": "response.create", "model": "m", "input": "x"})
    incoming = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": frame}]
    events: list[Message] = []
    rejected = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop(0)
        await rejected.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            events.append(json.loads(message["text"]))
            rejected.set()

    websocket = WebSocket({"type": "websocket", "headers": []}, receive, send)

    await ResponseSocket(websocket, make_context()).run()

    assert [event["status"] for event in events] == [401]


async def refusals_of(context: AppContext, frames: list[str], num_refused: int) -> list[Any]:
    """The first errors for frames that are sent at once, then the client disconnects."""
    incoming = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", "text": frame} for frame in frames),
    ]
    errors: list[Any] = []
    refused = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop(0)
        await refused.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            errors.append(json.loads(message["text"]))
            if len(errors) == num_refused:
                refused.set()

    await ResponseSocket(
        WebSocket({"type": "websocket", "headers": []}, receive, send), context
    ).run()
    return errors


@pytest.mark.parametrize(
    ("memory_bytes", "limit_bytes", "problem"),
    [
        (2**20, 2**25, "bytes of large requests"),
        (2**26, 2**19, "bytes"),
    ],
    ids=["memory of the gateway", "size of a connection"],
)
async def test_running_frames_count_against_the_limits(
    memory_bytes: int, limit_bytes: int, problem: str
) -> None:
    """Those of other streams, too. What they reserve is free when the client has left."""
    context = make_context(PendingKey(), memory_bytes, body_limit_bytes=limit_bytes)
    large = {"type": "response.create", "model": "m", "input": "x" * 300_000}
    frames = [json.dumps(large | {"stream_id": str(number)}) for number in range(2)]
    for _ in range(2):
        [error] = await refusals_of(context, frames, 1)

        assert error["status"] == 429
        assert problem in error["error"]["message"]
    await context.bodies.reserve({}, memory_bytes // 2)
