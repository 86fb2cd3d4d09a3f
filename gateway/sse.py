"""Responses made of calls: server-sent events while they arrive, or one object at the end.

Both watch the connection from the start, so a client that disconnects cancels its calls.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.active_calls import ActiveCalls
from gateway.calls import Calls
from gateway.http.errors import json_response
from gateway.http.middleware import mark_disconnected
from openai_wire.errors import ParamNames, error_body, with_openai_names
from svc_kit.errors import CallerCancelled, DomainError

PING = b": ping\n\n"

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Chunks(Protocol):
    """Turns events into the payloads of a stream."""

    def payloads(self, message: Any, call: int) -> Iterable[bytes]:
        """The payloads of one event."""

    def closing(self) -> Iterable[bytes]:
        """The payloads after the last event."""


class Collector(Protocol):
    """Gathers events into one object."""

    def add(self, message: Any, call: int) -> None:
        """Takes one event."""

    def as_object(self) -> dict[str, object]:
        """The object."""


class Answer(Protocol):
    """How the events of accepted calls reach the client."""

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the whole response. Raises DomainErrors only before its first byte."""


class EventStream:
    """The answer as server-sent events while they come.

    After `ping_interval_s` seconds of silence a comment is sent, so that nothing between here and
    the client takes the connection for dead.
    """

    def __init__(self, chunks: Chunks, params: ParamNames, ping_interval_s: float) -> None:
        self._chunks = chunks
        self._params = params
        self._ping_interval_s = ping_interval_s
        self._quiet = True

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events. A failure becomes the last one."""
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        pings = asyncio.create_task(self._ping(send))
        try:
            await self._send_events(calls, send)
        except CallerCancelled:
            mark_disconnected(scope)
        except DomainError as error:
            await send(_piece(self._failure(error)))
        finally:
            pings.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, calls: Calls[Any], send: Send) -> None:
        payloads = self._chunks.payloads
        async for call, message in calls:
            for payload in payloads(message, call):
                self._quiet = False
                await send(_piece(self._framed(payload)))
        for payload in self._chunks.closing():
            await send(_piece(self._framed(payload)))

    def _framed(self, payload: bytes) -> bytes:
        """A payload as one event."""
        return b"data: %b\n\n" % payload

    def _failure(self, error: DomainError) -> bytes:
        """The event of an error."""
        body = orjson.dumps(error_body(with_openai_names(error, self._params)))
        return self._framed(body)

    async def _ping(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._ping_interval_s)
            if self._quiet:
                await send(_piece(PING))
            self._quiet = True


class WholeObject:
    """The answer as one object when the calls are done."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Collects the events and sends the object."""
        async for call, message in calls:
            self._collector.add(message, call)
        await json_response(self._collector.as_object())(scope, receive, send)


class CallResponse(Response):
    """An answer made of calls. They start with the answer and never outlive it."""

    def __init__(
        self,
        start: Callable[[], Calls[Any]],
        answer: Answer,
        live: ActiveCalls,
        params: ParamNames,
    ) -> None:
        super().__init__()
        self._start = start
        self._answer = answer
        self._live = live
        self._params = params

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the calls. Raises the DomainError they fail with before the first byte is sent."""
        calls = self._start()
        watcher = asyncio.create_task(_stop_when_gone(receive, calls))
        try:
            with self._live.holding(calls):
                await calls.open()
                await self._answer.send_all(calls, scope, receive, send)
        except DomainError as error:
            raise with_openai_names(error, self._params) from error.__cause__
        finally:
            watcher.cancel()
            calls.stop(CallerCancelled())


async def _stop_when_gone(receive: Receive, calls: Calls[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    calls.stop(CallerCancelled())


def _piece(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
