"""Responses from gRPC calls: server-sent events or lines as they arrive, or one object at the end.

Both watch the connection, so that a client that disconnects cancels its calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol, TypeVar, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dialects.shared.errors import Rename
from dialects.shared.parameters import ignore_parameter
from gateway.active_calls import ActiveCalls
from gateway.calls import Calls, ComposedCall
from gateway.http.errors import json_response
from gateway.http.large_bodies import beginning
from gateway.http.middleware import mark_disconnected
from gateway.http.rate_limits import set_rate_limits
from svc_kit.errors import CallerCancelled, DomainError, UnsupportedField, release_frames
from svc_kit.tasks import retrieve_exception

_THINKING = frozenset(("enable_thinking", "reasoning_effort", "thinking_budget_tokens"))
_NO_THINKING = "the model has no such thinking"
_NOT_ENFORCED = "a part of it is not enforced"
Begin = Callable[[Scope], Awaitable[None]]
ResultT = TypeVar("ResultT")
PING = b": ping\n\n"
PING_AFTER_ID = b": ping\n"
"""OpenAI's SDK for Python takes an empty line after an event with an id for one without data, and
fails."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LINE_HEADERS = [(b"content-type", b"application/x-ndjson"), *STREAM_HEADERS[1:]]


class Frames(Protocol):
    """Converts messages to server-sent events."""

    def frames(self, message: Any, call: int) -> Iterable[bytes]:
        """The events of one message."""

    def final_frames(self) -> Iterable[bytes]:
        """The events after the last message."""

    def failure(self, error: DomainError) -> bytes:
        """The last event of a failed stream."""


class Collector(Protocol):
    """Makes one object of the events of a stream."""

    def add(self, message: Any, call: int) -> None:
        """Add one event."""

    def as_object(self) -> object:
        """The object."""


class ResponseWriter(Protocol):
    """Writes the events of accepted calls to the client."""

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole response. Raises DomainErrors only before the first byte."""


class EventStream:
    """A response of server-sent events, or of other frames with their own `headers`.

    `ping`, a comment or an event, is sent after `ping_interval_s` seconds without events, so that
    proxies do not close the connection; None: nothing is sent.
    """

    def __init__(
        self,
        frames: Frames,
        rename: Rename,
        ping_interval_s: float | None,
        ping: bytes = PING,
        headers: Sequence[tuple[bytes, bytes]] = STREAM_HEADERS,
    ) -> None:
        self._headers = headers
        self._frames = frames
        self._rename = rename
        self._ping_frame = ping
        self._ping_interval_s = ping_interval_s
        self._is_idle = True
        self._sends_ids = False

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. An error becomes the last event."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        pings = asyncio.create_task(self._ping(send))
        pings.add_done_callback(retrieve_exception)
        try:
            await self._send_events(calls, send)
        except CallerCancelled as error:
            release_frames(error)
            mark_disconnected(scope)
        except DomainError as error:
            release_frames(error)
            await send(_body_chunk(self._frames.failure(self._rename(error))))
        finally:
            pings.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, calls: Calls[Any], send: Send) -> None:
        frames = self._frames.frames
        async for call, message in calls:
            if body := b"".join(frames(message, call)):
                self._is_idle = False
                self._sends_ids = body.startswith(b"id: ")
                await send(_body_chunk(body))
        await send(_body_chunk(b"".join(self._frames.final_frames())))

    async def _ping(self, send: Send) -> None:
        while self._ping_interval_s is not None:
            await asyncio.sleep(self._ping_interval_s)
            if self._is_idle:
                await send(_body_chunk(PING_AFTER_ID if self._sends_ids else self._ping_frame))
            self._is_idle = True


class SingleObject:
    """A response of one object, sent when the calls are done."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Collect the events and send the object."""
        async for call, message in calls:
            self._collector.add(message, call)
        await json_response(self._collector.as_object())(scope, receive, send)


class UnaryObject:
    """A response of one object: the reply of a unary call."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        """`write` converts the reply to JSON."""
        self._write = write

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        async for _, reply in calls:
            await json_response(self._write(reply))(scope, receive, send)


class CallResponse(Response):
    """A response from gRPC calls, which start and end with the response."""

    def __init__(
        self,
        start: Callable[[], Calls[Any]],
        writer: ResponseWriter,
        active_calls: ActiveCalls,
        rename: Rename,
        begin: Begin | None = None,
        is_queued: bool = True,
    ) -> None:
        """`begin` waits until the calls may start; they are accepted before they have a result.
        Calls that are not queued count as beginning until they have one."""
        super().__init__()
        self.resources: AsyncExitStack | None = None
        """Closed when the response has ended."""
        self._start = start
        self._writer = writer
        self._active_calls = active_calls
        self._rename = rename
        self._begin = begin
        self._is_queued = is_queued

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the calls. Raises their DomainError if they fail before the first byte is sent."""
        if self.resources is None:
            await self._run(scope, receive, send)
            return
        async with self.resources:
            await self._run(scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._begin is not None:
            await self._begin(scope)
        calls = self._start()
        del self._start  # and the request's body, which it holds
        watcher = asyncio.create_task(_stop_on_disconnect(receive, calls))
        watcher.add_done_callback(retrieve_exception)
        try:
            with self._active_calls.track(calls):
                with beginning(scope, is_queued=self._is_queued):
                    await calls.open()
                set_rate_limits(scope, calls.first)
                _report_ignored(calls.first, self._rename)
                await self._writer.send_all(calls, scope, receive, send)
        except DomainError as error:
            raise self._rename(error) from error.__cause__
        finally:
            watcher.cancel()


async def while_connected(
    receive: Receive, calls: Coroutine[Any, Any, ResultT], active_calls: ActiveCalls
) -> ResultT:
    """The result of unary calls before a response. A client that disconnects cancels them, which
    raises CallerCancelled."""
    call = ComposedCall(calls)
    watcher = asyncio.create_task(_stop_on_disconnect(receive, call))
    watcher.add_done_callback(retrieve_exception)
    try:
        with active_calls.track(call):
            await call.open()
            return cast(ResultT, call.first)
    finally:
        watcher.cancel()


def _report_ignored(first: object, rename: Rename) -> None:
    """Report the options that the model of a call cannot honour, by the caller's names."""
    for name in getattr(getattr(first, "accepted", None), "ignored_options", ()):
        problem = _NO_THINKING if name in _THINKING else _NOT_ENFORCED
        renamed = rename(UnsupportedField(field=name, problem=problem))
        ignore_parameter(renamed.field or name, problem)


async def _stop_on_disconnect(receive: Receive, calls: Calls[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    calls.stop(CallerCancelled())


def _body_chunk(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}
