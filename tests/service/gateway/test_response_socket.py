"""Responses over a WebSocket: lanes, local history, limits, and who may open one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import openai
import pytest
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from svc_kit.errors import EngineRestarting
from svc_kit.settings.groups import KeySettings
from tests.support.fake_responses import FakeResponses, a_response_service
from tests.support.loopback_gateway import Loopback, a_gateway
from tests.support.open_responses import check_response, check_stream

MODEL = "m"
Event = dict[str, Any]


@dataclass
class Socket:
    """An open connection, and the service behind the gateway."""

    connection: ClientConnection
    fake: FakeResponses
    gateway: Loopback

    async def say(self, **fields: Any) -> None:
        """A frame that has a response made."""
        frame = {"type": "response.create", "model": MODEL, "store": False, **fields}
        await self.connection.send(json.dumps(frame))

    async def hear(self) -> Event:
        """The next frame."""
        event: Event = json.loads(await self.connection.recv())
        return event

    async def rest(self) -> list[Event]:
        """The frames up to the end of a response, or an error."""
        events = [await self.hear()]
        while events[-1]["type"] not in ("response.completed", "error"):
            events.append(await self.hear())
        return events

    async def ask(self, text: str, **fields: Any) -> Event:
        """The response to a text."""
        await self.say(input=text, **fields)
        *_, last = await self.rest()
        return last["response"] if last["type"] == "response.completed" else last


@asynccontextmanager
async def a_socket(headers: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[Socket]:
    """A connection to a gateway with a fake behind it."""
    fake = FakeResponses()
    async with (
        a_response_service(fake) as target,
        a_gateway(control_target=target, **settings) as gateway,
        connect(
            f"ws://{gateway.address}/v1/responses", additional_headers=headers, proxy=None
        ) as connection,
    ):
        yield Socket(connection, fake, gateway)


@pytest.fixture
async def socket() -> AsyncIterator[Socket]:
    """An open connection."""
    async with a_socket() as opened:
        yield opened


def text_of(response: Event) -> str:
    """What was answered."""
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def test_the_events_are_those_of_http(socket: Socket) -> None:
    """Bare, one a frame, without a lane where none was named."""
    await socket.say(input="hey")

    events = await socket.rest()

    check_stream(events)
    assert text_of(events[-1]["response"]) == "hey"
    assert all("stream_id" not in event for event in events)
    assert socket.connection.response is not None
    assert socket.connection.response.headers["x-request-id"].startswith("req_")


async def test_what_is_stored_nowhere_goes_on_within_its_connection(socket: Socket) -> None:
    """The service gets the items; the client sees the id that it named."""
    first = await socket.ask("one")
    second = await socket.ask("two", previous_response_id=first["id"])
    third = await socket.ask("three", previous_response_id=second["id"])

    assert text_of(second) == "one+one+two"
    assert text_of(third) == "one+one+two+one+one+two+three"
    assert third["previous_response_id"] == second["id"]
    check_response(third)
    assert socket.fake.stored == {}
    async with connect(f"ws://{socket.gateway.address}/v1/responses", proxy=None) as other:
        stranger = Socket(other, socket.fake, socket.gateway)
        refused = await stranger.ask("x", previous_response_id=third["id"])
    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["param"] == "previous_response_id"


async def test_what_is_stored_goes_on_by_its_id(socket: Socket) -> None:
    """Also under items that are stored nowhere: the service gets the last stored id and them."""
    stored = await socket.ask("one", store=True)
    local = await socket.ask("two", previous_response_id=stored["id"])
    await socket.ask("three", previous_response_id=local["id"])

    last = socket.fake.asked[-1]
    assert last.previous_response_id == stored["id"]
    assert len(last.input) == 3


async def test_a_continuation_that_failed_takes_its_past_with_it(socket: Socket) -> None:
    """The id that it named is not known any more."""
    first = await socket.ask("one")
    socket.fake.failure = EngineRestarting(phase="running")
    failed = await socket.ask("two", previous_response_id=first["id"])
    socket.fake.failure = None

    again = await socket.ask("two", previous_response_id=first["id"])

    assert (failed["status"], failed["error"]["code"]) == (503, "engine_restarting")
    assert again["error"]["param"] == "previous_response_id"


async def test_lanes_run_side_by_side_and_each_in_order(socket: Socket) -> None:
    """One that waits holds up what is behind it in its lane, and nothing else."""
    socket.fake.hold = asyncio.Event()
    await socket.say(input="a1", stream_id="a")
    await socket.fake.begun.wait()
    held, socket.fake.hold = socket.fake.hold, None
    await socket.say(input="a2", stream_id="a")
    await socket.say(input="b1", stream_id="b")
    done: list[tuple[str, str]] = []
    while len(done) < 3:
        event = await socket.hear()
        if event["type"] == "response.completed":
            done.append((event["stream_id"], text_of(event["response"])))
            held.set()

    assert done == [("b", "b1"), ("a", "a1"), ("a", "a2")]


async def test_a_lane_takes_only_so_many(socket: Socket) -> None:
    """Frames over the bound of a lane, and lanes over theirs, are refused."""
    socket.fake.hold = asyncio.Event()
    for number in range(18):
        await socket.say(input="x" * (number + 1), stream_id="a")
    refused = await until_error(socket)
    assert (refused["status"], refused["stream_id"]) == (429, "a")
    for number in range(16):
        await socket.say(input="x", stream_id=f"lane {number}")
    refused = await until_error(socket)
    assert refused["stream_id"] == "lane 15"


async def test_what_waits_in_all_lanes_is_bounded() -> None:
    """It is no longer than one body may be, however many frames it is in."""
    async with a_socket(body_limit_bytes=4096) as socket:
        socket.fake.hold = asyncio.Event()
        for text in ("1", "2" * 3000, "3" * 3000):
            await socket.say(input=text, stream_id="a")
        await socket.say(input="4" * 3000, stream_id="b")
        refused = await until_error(socket)
        socket.fake.hold.set()
        done: set[str] = set()
        while len(done) < 3:
            event = await socket.hear()
            if event["type"] == "response.completed":
                done.add(text_of(event["response"])[:1])

    assert (refused["status"], refused["stream_id"]) == (429, "a")
    assert done == {"1", "2", "4"}


async def until_error(socket: Socket) -> Event:
    """The next frame that is an error."""
    while (event := await socket.hear())["type"] != "error":
        pass
    return event


async def test_a_warm_up_gives_an_id_to_go_on_from(socket: Socket) -> None:
    """Nothing is generated; what it said comes first in what follows."""
    prepared = await socket.ask("one", generate=False)
    answered = await socket.ask("two", previous_response_id=prepared["id"])

    assert prepared["output"] == []
    check_response(prepared)
    assert text_of(answered) == "one+two"


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
    ],
)
async def test_a_frame_that_says_nothing_is_refused_and_the_connection_goes_on(
    socket: Socket, frame: str | bytes, param: str | None
) -> None:
    """With the status and the error that HTTP would answer."""
    await socket.connection.send(frame)

    refused = await socket.hear()

    assert (refused["type"], refused["status"]) == ("error", 400)
    assert refused["error"]["param"] == param
    assert refused["error"].keys() == {"type", "code", "message", "param"}
    assert text_of(await socket.ask("x")) == "x"


async def test_a_defect_of_ours_leaves_nobody_waiting(
    socket: Socket, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told as one, and the connection goes on."""
    socket.fake.nonsense = True
    broken = await socket.ask("x")
    socket.fake.nonsense = False

    assert (broken["status"], broken["error"]["code"]) == (500, "internal")
    assert "a response over a WebSocket failed" in caplog.text
    assert text_of(await socket.ask("x")) == "x"


async def test_a_frame_is_bounded() -> None:
    """One over the limit of bodies closes the connection."""
    async with a_socket(body_limit_bytes=1024) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.ask("x" * 2000)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_a_connection_has_an_age() -> None:
    """At its end it says so, finishes what runs, and is closed."""
    async with a_socket(websocket_max_age_s=0.5) as socket:
        socket.fake.hold = asyncio.Event()
        await socket.say(input="x")
        limit = await until_error(socket)
        socket.fake.hold.set()
        done = await socket.rest()
        with pytest.raises(ConnectionClosed):
            await socket.hear()

    assert limit["error"]["code"] == "websocket_connection_limit_reached"
    assert text_of(done[-1]["response"]) == "x"


async def test_a_client_that_leaves_ends_its_calls(socket: Socket) -> None:
    """What is stored nowhere is of no use to anybody else."""
    socket.fake.hold = asyncio.Event()
    await socket.say(input="x")
    await socket.fake.begun.wait()

    await socket.connection.close()

    await socket.fake.abandoned.wait()


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
async def test_who_may_open_one(headers: dict[str, str], status: int) -> None:
    """As over HTTP: foreign pages never, and others with a key."""
    keys = (KeySettings(name="k", sha256=SecretStr(sha256(b"right").hexdigest())),)
    if status == 101:
        async with a_socket(headers, keys=keys) as socket:
            assert socket.connection.response is not None
        return

    with pytest.raises(InvalidStatus) as refused:
        async with a_socket(headers, keys=keys):
            pass

    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["message"]


# The client's own use of its library, of which a later release than it knows is installed.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
async def test_the_official_client_connects(socket: Socket) -> None:
    """`responses.connect`, asynchronous and synchronous."""
    url = f"{socket.gateway.url}/v1"
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="any") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model=MODEL, input="hello", store=False)
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "hello"
                break

    def synchronous() -> str:
        with (
            openai.OpenAI(base_url=url, api_key="any") as client,
            client.responses.connect() as connection,
        ):
            connection.response.create(model=MODEL, input="hello", store=False)
            for event in connection:
                if event.type == "response.completed":
                    return event.response.output_text
        return ""

    assert await asyncio.to_thread(synchronous) == "hello"
