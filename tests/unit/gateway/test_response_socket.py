"""What of a WebSocket for responses no well-behaved client brings about."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from starlette.types import Message
from starlette.websockets import WebSocket

from gateway.context import AppContext
from gateway.response_socket import ResponseSocket
from svc_kit.errors import ApiKeyInvalid


class Unknown:
    """Identifies nobody any more."""

    async def identify(self, _connection: object, _method: str) -> None:
        """The key has been revoked."""
        raise ApiKeyInvalid


def some_parts(**settings: Any) -> AppContext:
    """What a connection needs of a gateway."""
    bounds = {"websocket_max_age_s": 60.0, "drain_grace_s": 60.0, "body_limit_bytes": 1024}
    parts = SimpleNamespace(settings=SimpleNamespace(**bounds | settings))
    parts.authentication = Unknown()
    return cast("AppContext", parts)


async def test_a_client_that_does_not_read_keeps_nothing_for_ever() -> None:
    """Its connection ends with its age, though nothing can be written to it."""

    sent: list[str] = []
    never = asyncio.Event()

    async def receive() -> Message:
        if sent:
            await never.wait()
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if message["type"] != "websocket.accept":
            await never.wait()

    websocket = WebSocket({"type": "websocket", "headers": []}, receive, send)

    await ResponseSocket(websocket, some_parts(websocket_max_age_s=0.01, drain_grace_s=0.01)).run()

    assert sent == ["websocket.accept", "websocket.send", "websocket.close"]


async def test_a_key_that_was_revoked_opens_no_lane() -> None:
    """Each response is asked for by somebody who is known then, not when the connection opened."""
    frame = json.dumps({"type": "response.create", "model": "m", "input": "x"})
    coming = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": frame}]
    told: list[Message] = []
    refused = asyncio.Event()

    async def receive() -> Message:
        if coming:
            return coming.pop(0)
        await refused.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            told.append(json.loads(message["text"]))
            refused.set()

    websocket = WebSocket({"type": "websocket", "headers": []}, receive, send)

    await ResponseSocket(websocket, some_parts()).run()

    assert [event["status"] for event in told] == [401]
