"""Event streams that break: whoever continues after the last number it saw gets the whole."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from corral.control.v1 import response_pb2, run_event_pb2, run_pb2
from corral.control.v1 import response_service_pb2 as responses_pb
from corral.control.v1 import run_service_pb2 as runs_pb
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routes.responses import ResponseFrames
from gateway.routes.runs import RunFrames
from gateway.sse import EventStream, Frames
from svc_kit.errors import (
    DeadlineExpired,
    DomainError,
    Draining,
    InternalError,
    UpstreamUnavailable,
)
from tests.support.examples import examples
from tests.support.fake_responses import complete, turn_events

ERRORS: list[DomainError] = [
    Draining(),
    DeadlineExpired(phase="call"),
    InternalError(request_id="req_1"),
    UpstreamUnavailable(service="control"),
]
RESPONSE_EVENTS = [
    responses_pb.WatchResponseResponse(event=event)
    for event in turn_events(complete(response_pb2.Response(id="resp_1"), "hello"))
]
RUN_EVENTS = [
    runs_pb.WatchRunResponse(
        number=number,
        event=run_event_pb2.RunEvent(
            run_changed=run_event_pb2.RunChanged(what=what, run=run_pb2.Run(id="run_1"))
        ),
    )
    for number, what in enumerate(("created", "queued", "in_progress", "completed"))
]


class BrokenCalls:
    """A call that yields some messages, with turns of the loop between them, and then breaks."""

    first = None

    def __init__(self, messages: list[Any], error: DomainError | None) -> None:
        self._messages = messages
        self._error = error

    async def open(self) -> None:
        """Do nothing."""

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        for message in self._messages:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield 0, message
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error

    def stop(self, error: DomainError) -> None:
        """Do nothing."""


async def stream(frames: Frames, calls: BrokenCalls) -> bytes:
    """The body of a stream, with as many pings as fit between its events."""
    body = bytearray()

    async def send(message: Any) -> None:
        body.extend(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    writer = EventStream(frames, lambda error: error, ping_interval_s=0)
    await writer.send_all(calls, {"type": "http"}, receive, send)
    return bytes(body)


def parse(body: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """The events of a body with their fields, each with the last id that an EventSource has."""
    last_id = ""
    for block in body.decode().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if line[:1] not in ("", ":")
        )
        last_id = fields.get("id", last_id)
        if "data" in fields:
            yield last_id, fields


def last_sequence_number(body: bytes) -> str:
    """The number of the last event, as clients of OpenAI read it from the data of each event."""
    events = [json.loads(f["data"]) for _, f in parse(body) if f["data"] != "[DONE]"]
    return str(events[-1]["sequence_number"]) if events else ""


def last_event_id(body: bytes) -> str:
    """The id of the last event, as an EventSource keeps it."""
    return [last_id for last_id, _ in parse(body)][-1]


CLIENTS = [
    pytest.param(RESPONSE_EVENTS, ResponseFrames, last_sequence_number, id="responses, number"),
    pytest.param(RESPONSE_EVENTS, ResponseFrames, last_event_id, id="responses, id"),
    pytest.param(RUN_EVENTS, lambda _after: RunFrames([]), last_event_id, id="runs, id"),
]


@pytest.mark.parametrize(("events", "frames", "read_cursor"), CLIENTS)
@settings(max_examples=examples(100))
@given(data=st.data())
async def test_a_client_that_continues_after_what_it_saw_gets_the_whole(
    events: list[Any],
    frames: Callable[[int | None], Frames],
    read_cursor: Callable[[bytes], str],
    data: st.DataObject,
) -> None:
    """However often the stream breaks, at whichever event, and with whichever frames between."""
    received: list[str] = []
    after: int | None = None
    for _ in range(data.draw(st.integers(0, 4), label="breaks")):
        rest = events[0 if after is None else after + 1 :]
        count = data.draw(st.integers(0, len(rest)), label="events before the break")
        error = data.draw(st.sampled_from(ERRORS), label="error")
        body = await stream(frames(after), BrokenCalls(rest[:count], error))
        received += [f["id"] for _, f in parse(body) if "id" in f]
        cursor = read_cursor(body)
        after = int(cursor) if cursor else after
    rest = events[0 if after is None else after + 1 :]
    body = await stream(frames(after), BrokenCalls(rest, None))
    received += [f["id"] for _, f in parse(body) if "id" in f]

    assert received == [str(number) for number in range(len(events))]
