"""Which responses wait for others of their project before their calls start."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Message

from gateway.active_calls import ActiveCalls
from gateway.config import GatewaySettings
from gateway.context import AppContext
from gateway.http.json_body import JsonBodies
from gateway.http.large_bodies import LargeBodies
from gateway.stored_files import StoredFileReader
from svc_kit.errors import DomainError, QueueFull

MIB = 2**20
AT_ONCE = 4


class FakeCalls:
    """Calls that are accepted when `accepted` is set, and have one message."""

    first = None

    def __init__(self, accepted: asyncio.Event) -> None:
        self._accepted = accepted

    async def open(self) -> None:
        """Wait."""
        await self._accepted.wait()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        """Yield a message."""
        yield 0, "message"

    def stop(self, error: DomainError) -> None:
        """Do nothing."""


class FakeCollector:
    """Collects nothing."""

    def add(self, _message: Any, _call: int) -> None:
        """Ignore it."""

    def as_object(self) -> dict[str, object]:
        """An empty object."""
        return {}


def make_context(wait_s: float) -> AppContext:
    """The context of a gateway without clients of other services."""
    unused: Any = None
    active_calls = ActiveCalls()
    return AppContext(
        settings=GatewaySettings(),
        authentication=unused,
        inference=unused,
        control=unused,
        active_calls=active_calls,
        stored_files=StoredFileReader(active_calls),
        bodies=JsonBodies(MIB, wait_s, LargeBodies(64 * MIB, wait_s, MIB)),
        fingerprint="",
    )


async def send_response(response: Response) -> list[str]:
    """Send a response to a client that stays; returns the types of its messages."""
    sent: list[str] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message["type"])

    await response({"type": "http", "method": "POST", "headers": []}, receive, send)
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
