"""Which responses wait for others of their project before their calls start."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Message, Scope

from gateway.active_calls import ActiveCalls
from gateway.config import GatewaySettings
from gateway.context import AppContext
from gateway.http.json_body import JsonBodies
from gateway.http.large_bodies import LargeBodies
from gateway.response_socket import ResponseSocket
from gateway.stored_files import StoredFileReader
from svc_kit.errors import DomainError, QueueFull

MIB = 2**20
AT_ONCE = 4


class FakeCalls:
    first = None

    def __init__(self, accepted: asyncio.Event) -> None:
        self._accepted = accepted

    async def open(self) -> None:
        await self._accepted.wait()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        yield 0, "message"

    def stop(self, error: DomainError) -> None:
        """Do nothing."""


class FakeCollector:
    def add(self, _message: Any, _call: int) -> None:
        """Ignore it."""

    def as_object(self) -> dict[str, object]:
        return {}


class FakeSocket:
    """A WebSocket whose client sends frames, and stays until it is told something."""

    def __init__(self, frames: list[dict[str, Any]]) -> None:
        self._frames = iter(frames)
        self._told = asyncio.Event()
        self.scope: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []

    async def accept(self) -> None:
        """Do nothing."""

    async def receive(self) -> Mapping[str, Any]:
        frame = next(self._frames, None)
        if frame is not None:
            return {"type": "websocket.receive", "text": json.dumps(frame)}
        await self._told.wait()
        return {"type": "websocket.disconnect"}

    async def send_text(self, text: str) -> None:
        self.sent.append(json.loads(text))
        self._told.set()


class FakeControl:
    """A client of the control service, and the authentication of its callers."""

    def __init__(self, calls: FakeCalls) -> None:
        self._calls = calls

    async def identify(self, *_: object) -> object:
        return SimpleNamespace(principal=SimpleNamespace(project="default"))

    def for_caller(self, _caller: object) -> "FakeControl":
        return self

    def stream(self, _request: object) -> FakeCalls:
        return self._calls


def make_context(wait_s: float, control: FakeControl | None = None) -> AppContext:
    """The context of a gateway without clients of other services."""
    unused: Any = None
    active_calls = ActiveCalls()
    return AppContext(
        settings=GatewaySettings(),
        authentication=cast(Any, control),
        inference=unused,
        control=cast(Any, control),
        active_calls=active_calls,
        stored_files=StoredFileReader(active_calls),
        bodies=JsonBodies(MIB, wait_s, LargeBodies(64 * MIB, wait_s, MIB)),
        fingerprint="",
    )


async def send_response(response: Response, scope: Scope | None = None) -> list[str]:
    """Send a response to a client that stays; returns the types of its messages."""
    sent: list[str] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message["type"])

    await response(scope or {"type": "http", "method": "POST", "headers": []}, receive, send)
    return sent


def generation(context: AppContext, calls: FakeCalls) -> Response:
    """The response of a generation that is accepted before it ends."""
    return context.object_response(
        lambda: cast(Any, calls), FakeCollector(), cast(Any, lambda error: error)
    )


async def test_a_reply_does_not_wait_for_generations_that_begin() -> None:
    """The service accepts it only with its result, and computes many at once; the fifth generation
    waits until one of the others is accepted."""
    context, accepted = make_context(0.01), asyncio.Event()
    calls = FakeCalls(accepted)
    running = [
        asyncio.create_task(send_response(generation(context, calls))) for _ in range(AT_ONCE)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="requests that begin"):
        await send_response(generation(context, calls))
    replies = [
        asyncio.create_task(
            send_response(
                context.reply_response(
                    lambda: cast(Any, calls), str, cast(Any, lambda error: error)
                )
            )
        )
        for _ in range(2 * AT_ONCE)
    ]
    await asyncio.sleep(0)
    accepted.set()

    sent = await asyncio.gather(*running, *replies, send_response(generation(context, calls)))
    assert all(types[0] == "http.response.start" for types in sent)


async def test_a_generation_that_is_not_accepted_delays_no_others_for_long() -> None:
    """After half a second it only waits, as for a model that loads."""
    context, accepted, never = make_context(60.0), asyncio.Event(), asyncio.Event()
    accepted.set()
    waiting = [
        asyncio.create_task(send_response(generation(context, FakeCalls(never))))
        for _ in range(AT_ONCE)
    ]

    assert await send_response(generation(context, FakeCalls(accepted)))
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("is_queued", [True, False])
async def test_a_large_body_counts_until_its_composed_result(*, is_queued: bool) -> None:
    """Only what may be queued lets the next large body in after half a second."""
    bodies, never = LargeBodies(64 * MIB, 1.0, MIB), asyncio.Event()

    async def calls() -> object:
        return await never.wait()

    first: dict[str, Any] = {"type": "http", "method": "POST", "headers": []}
    await bodies.reserve(first, MIB)
    response = make_context(1.0).composed_response(calls, is_queued=is_queued)
    running = asyncio.create_task(send_response(response, first))
    is_refused = False
    try:
        await bodies.reserve({}, MIB)
    except QueueFull:
        is_refused = True

    assert is_refused is not is_queued
    running.cancel()


async def test_responses_over_a_websocket_wait_for_each_other() -> None:
    """The fifth stream of a connection, while four are not accepted."""
    context = make_context(0.01, FakeControl(FakeCalls(asyncio.Event())))
    frame = {"type": "response.create", "model": "m", "input": "hi"}
    socket = FakeSocket([{**frame, "stream_id": f"s{number}"} for number in range(AT_ONCE + 1)])

    await ResponseSocket(cast(Any, socket), context).run()

    (refused,) = socket.sent
    assert (refused["type"], refused["stream_id"]) == ("error", f"s{AT_ONCE}")
    assert "requests that begin" in refused["error"]["message"]
