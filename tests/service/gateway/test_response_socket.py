"""Responses over a WebSocket: streams, history of unstored responses, limits, authentication."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from svc_kit.errors import EngineRestarting
from svc_kit.settings.groups import KeySettings
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import Loopback, run_gateway
from tests.support.open_responses import check_response, check_stream

MODEL = "m"
Event = dict[str, Any]


@dataclass
class Socket:
    connection: ClientConnection
    fake: FakeResponses
    gateway: Loopback

    async def send(self, **fields: Any) -> None:
        frame = {"type": "response.create", "model": MODEL, "store": False, **fields}
        await self.connection.send(json.dumps(frame))

    async def receive(self) -> Event:
        event: Event = json.loads(await self.connection.recv())
        return event

    async def receive_all(self) -> list[Event]:
        """Receive the events up to the end of a response, or an error."""
        events = [await self.receive()]
        while events[-1]["type"] not in ("response.completed", "error"):
            events.append(await self.receive())
        return events

    async def create(self, text: str, **fields: Any) -> Event:
        """Create a response; return it, or the error event."""
        await self.send(input=text, **fields)
        *_, last = await self.receive_all()
        return last["response"] if last["type"] == "response.completed" else last


@asynccontextmanager
async def open_socket(
    headers: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Socket]:
    """Run a gateway in front of a fake service, and connect to it."""
    fake = FakeResponses()
    async with (
        run_response_service(fake) as target,
        run_gateway(control_target=target, **settings) as gateway,
        connect(
            f"ws://{gateway.address}/v1/responses", additional_headers=headers, proxy=None
        ) as connection,
    ):
        yield Socket(connection, fake, gateway)


@pytest.fixture
async def socket() -> AsyncIterator[Socket]:
    async with open_socket() as opened:
        yield opened


def output_text(response: Event) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def test_events_equal_those_of_http(socket: Socket) -> None:
    """One per frame, without stream_id if none was given."""
    await socket.send(input="hey")

    events = await socket.receive_all()

    check_stream(events)
    assert output_text(events[-1]["response"]) == "hey"
    assert all("stream_id" not in event for event in events)
    assert socket.connection.response is not None
    assert socket.connection.response.headers["x-request-id"].startswith("req_")


async def test_the_first_event_names_ignored_parameters(socket: Socket) -> None:
    """Those of its own frame; others have none."""
    options = {"include_obfuscation": True}
    await socket.send(input="a", service_tier="flex", stream=True, stream_options=options)
    await socket.send(input="b", stream_id="s", client_metadata={"a": "b"})
    events = [*await socket.receive_all(), *await socket.receive_all()]
    named = {
        event.get("stream_id"): event["ignored_parameters"]
        for event in events
        if "ignored_parameters" in event
    }

    assert named == {
        None: ["stream_options.include_obfuscation", "service_tier"],
        "s": ["client_metadata"],
    }


async def test_a_strict_connection_refuses_what_would_be_ignored() -> None:
    """By the header of its handshake, as a request does."""
    async with open_socket({"x-corral-strict-parameters": "true"}) as socket:
        refused = await socket.create("a", client_metadata={"a": "b"})
        late = await socket.create("a", service_tier="flex")
        answered = await socket.create("a")

    assert (refused["error"]["param"], refused["error"]["code"]) == (
        "client_metadata",
        "unsupported_parameter",
    )
    assert late["error"]["param"] == "service_tier"
    assert output_text(answered) == "a"


async def test_unstored_responses_can_be_continued_on_their_connection(socket: Socket) -> None:
    """Other connections do not know them."""
    first = await socket.create("one")
    second = await socket.create("two", previous_response_id=first["id"])
    third = await socket.create("three", previous_response_id=second["id"])

    assert output_text(second) == "one+one+two"
    assert output_text(third) == "one+one+two+one+one+two+three"
    assert third["previous_response_id"] == second["id"]
    check_response(third)
    assert socket.fake.stored == {}
    async with connect(f"ws://{socket.gateway.address}/v1/responses", proxy=None) as other:
        other_socket = Socket(other, socket.fake, socket.gateway)
        rejected = await other_socket.create("x", previous_response_id=third["id"])
    assert (rejected["type"], rejected["status"]) == ("error", 400)
    assert rejected["error"]["param"] == "previous_response_id"


async def test_stored_responses_are_continued_by_id(socket: Socket) -> None:
    """Unstored items after them are sent along."""
    stored = await socket.create("one", store=True)
    local = await socket.create("two", previous_response_id=stored["id"])
    await socket.create("three", previous_response_id=local["id"])

    last = socket.fake.requests[-1]
    assert last.previous_response_id == stored["id"]
    assert len(last.input) == 3


async def test_a_failed_continuation_removes_the_response_from_history(socket: Socket) -> None:
    """Its id is then unknown."""
    first = await socket.create("one")
    socket.fake.failure = EngineRestarting(phase="running")
    failed = await socket.create("two", previous_response_id=first["id"])
    socket.fake.failure = None

    rejected = await socket.create("two", previous_response_id=first["id"])

    assert (failed["status"], failed["error"]["code"]) == (503, "engine_restarting")
    assert rejected["error"]["param"] == "previous_response_id"


async def test_streams_are_concurrent_and_ordered(socket: Socket) -> None:
    """A blocked stream does not block others."""
    socket.fake.gate = asyncio.Event()
    await socket.send(input="a1", stream_id="a")
    await socket.fake.started.wait()
    gate, socket.fake.gate = socket.fake.gate, None
    await socket.send(input="a2", stream_id="a")
    await socket.send(input="b1", stream_id="b")
    outputs: list[tuple[str, str]] = []
    while len(outputs) < 3:
        event = await socket.receive()
        if event["type"] == "response.completed":
            outputs.append((event["stream_id"], output_text(event["response"])))
            gate.set()

    assert outputs == [("b", "b1"), ("a", "a1"), ("a", "a2")]


async def test_streams_and_queued_frames_are_limited(socket: Socket) -> None:
    """Further frames get 429."""
    socket.fake.gate = asyncio.Event()
    for number in range(18):
        await socket.send(input="x" * (number + 1), stream_id="a")
    rejected = await next_error(socket)
    assert (rejected["status"], rejected["stream_id"]) == (429, "a")
    for number in range(16):
        await socket.send(input="x", stream_id=f"stream {number}")
    rejected = await next_error(socket)
    assert rejected["stream_id"] == "stream 15"


async def test_the_size_of_queued_and_running_frames_is_limited() -> None:
    """Over all streams, by body_limit_bytes."""
    async with open_socket(body_limit_bytes=4096) as socket:
        socket.fake.gate = asyncio.Event()
        for text in ("1", "2" * 3000, "3" * 3000):
            await socket.send(input=text, stream_id="a")
        await socket.send(input="4" * 3000, stream_id="b")
        rejected = [await next_error(socket) for _ in range(2)]
        socket.fake.gate.set()
        outputs: set[str] = set()
        while len(outputs) < 2:
            event = await socket.receive()
            if event["type"] == "response.completed":
                outputs.add(output_text(event["response"])[:1])

    assert [(each["status"], each["stream_id"]) for each in rejected] == [(429, "a"), (429, "b")]
    assert outputs == {"1", "2"}


async def next_error(socket: Socket) -> Event:
    while (event := await socket.receive())["type"] != "error":
        pass
    return event


async def test_generate_false_returns_an_id_to_continue_from(socket: Socket) -> None:
    """Without output."""
    prepared = await socket.create("one", generate=False)
    answered = await socket.create("two", previous_response_id=prepared["id"])

    assert prepared["output"] == []
    check_response(prepared)
    assert output_text(answered) == "one+two"


_ITEMS = ", ".join(['{"role": "user", "content": "x"}'] * 20_000)
TOO_MANY_ITEMS = f'{{"type": "response.create", "input": [{_ITEMS}]}}'


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("no json", None),
        ("[]", None),
        ("{}", "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create", "stream_id": 1}', "stream_id"),
        ('{"type": "response.create", "model": "m"}', "input"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "generate": "no"}', "generate"),
        (b"bytes", "frame"),
        pytest.param(TOO_MANY_ITEMS, "input", id="too many items"),
    ],
)
async def test_an_invalid_frame_is_rejected(
    socket: Socket, frame: str | bytes, param: str | None
) -> None:
    """The connection stays open."""
    await socket.connection.send(frame)

    rejected = await socket.receive()

    assert (rejected["type"], rejected["status"]) == ("error", 400)
    assert rejected["error"]["param"] == param
    assert rejected["error"].keys() == {"type", "code", "message", "param"}
    assert output_text(await socket.create("x")) == "x"


@pytest.mark.parametrize("cuts", [(), (1, 100_001, 250_003)], ids=["a frame", "fragments"])
async def test_a_large_text_arrives_whole(socket: Socket, cuts: tuple[int, ...]) -> None:
    """With characters of several bytes at the ends of its parts."""
    text = "é€😀x" * 80_000
    fields = {"type": "response.create", "model": MODEL, "input": "x", "instructions": text}
    frame = json.dumps(fields, ensure_ascii=False)
    ends = (*cuts, len(frame))
    parts = [frame[start:end] for start, end in zip((0, *cuts), ends, strict=True)]
    await socket.connection.send(parts if cuts else frame)

    await socket.receive_all()

    assert socket.fake.requests[0].settings.instructions == text


async def test_an_unexpected_error_is_sent(
    socket: Socket, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection stays open."""
    socket.fake.sends_empty_event = True
    broken = await socket.create("x")
    socket.fake.sends_empty_event = False

    assert (broken["status"], broken["error"]["code"]) == (500, "internal")
    assert "a response over a WebSocket failed" in caplog.text
    assert output_text(await socket.create("x")) == "x"


async def test_the_size_of_a_frame_is_limited() -> None:
    async with open_socket(body_limit_bytes=1024) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.create("x" * 2000)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_a_connection_has_a_maximum_age() -> None:
    """Active responses are finished before it is closed."""
    async with open_socket(websocket_max_age_s=0.5) as socket:
        socket.fake.gate = asyncio.Event()
        await socket.send(input="x")
        limit = await next_error(socket)
        socket.fake.gate.set()
        outputs = await socket.receive_all()
        with pytest.raises(ConnectionClosed):
            await socket.receive()

    assert limit["error"]["code"] == "websocket_connection_limit_reached"
    assert output_text(outputs[-1]["response"]) == "x"


async def test_a_disconnect_ends_the_calls(socket: Socket) -> None:
    """They are cancelled."""
    socket.fake.gate = asyncio.Event()
    await socket.send(input="x")
    await socket.fake.started.wait()

    await socket.connection.close()

    await socket.fake.ended.wait()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Authorization": "Bearer wrong"}, 401),
        ({}, 401),
        ({"Authorization": "Bearer right"}, 101),
        ({"Authorization": "Bearer right", "Origin": "http://localhost:3000"}, 101),
    ],
)
async def test_the_handshake_is_authenticated(
    headers: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign origins and missing keys are rejected as over HTTP, and are no errors in the log."""
    keys = (KeySettings(name="k", sha256=SecretStr(sha256(b"right").hexdigest())),)
    if status == 101:
        async with open_socket(headers, keys=keys) as socket:
            assert socket.connection.response is not None
        return

    with pytest.raises(InvalidStatus) as rejected:
        async with open_socket(headers, keys=keys):
            pass

    assert rejected.value.response.status_code == status
    assert json.loads(rejected.value.response.body)["error"]["message"]
    assert [each.message for each in caplog.records if each.levelno > logging.INFO] == []


async def test_each_response_is_one_line_of_the_access_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its model and its tokens; the connection has a line of its own when it ends."""
    caplog.set_level(logging.INFO, "gateway.access")
    async with open_socket() as socket:
        await socket.create("one")
        await socket.create("two")
        await socket.create("x", previous_response_id="resp_" + "0" * 32)

    lines = [r for r in caplog.records if r.message == "response over a WebSocket"]
    fields: list[dict[str, Any]] = [line.fields for line in lines]  # type: ignore[attr-defined]
    assert [line["succeeded"] for line in fields] == [True, True, False]
    assert [line.get("model") for line in fields] == [MODEL, MODEL, None]
    assert [line.get("completion_tokens") for line in fields] == [3, 3, None]
    assert len([r for r in caplog.records if r.message == "request"]) == 1


BAD_TEXT = b"\x81\x82\0\0\0\0\xff\xfe"
UNKNOWN_OPCODE = b"\x85\x80\0\0\0\0"


@pytest.mark.parametrize("frame", [BAD_TEXT, UNKNOWN_OPCODE, None])
async def test_a_client_that_breaks_its_connection_is_no_error(
    frame: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """While a response streams: with frames that are not allowed, or without a word."""
    async with open_socket() as socket:
        socket.fake.gate = asyncio.Event()
        await socket.send(input="xyz")
        await socket.fake.started.wait()
        transport = socket.connection.transport
        if frame is None:
            transport.abort()
        else:
            transport.write(frame)
        socket.fake.gate.set()
        await socket.connection.wait_closed()
        await socket.fake.ended.wait()

    assert [each.message for each in caplog.records if each.levelno > logging.INFO] == []


async def test_a_socket_of_another_path_is_refused_with_an_envelope(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As over HTTP, with the route that there is. It is no error in the log."""
    async with run_gateway() as gateway:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://{gateway.address}/v1/realtime", proxy=None):
                pass

    response = refused.value.response
    error = json.loads(response.body or b"")["error"]
    assert (response.status_code, error["code"]) == (404, "route_not_found")
    assert "/v1/responses" in error["message"]
    assert response.headers["x-request-id"].startswith("req_")
    assert [each.message for each in caplog.records if each.levelno > logging.INFO] == []
