"""Which engine gets a request, and when: slots that are freed, batches, overload, and requests at
which an engine fails."""

import asyncio
import json
import time
from functools import partial
from typing import Any

import pytest

from inference_svc.engine.events import Cancelled, Delta, Event, Failed, ModelLoad
from inference_svc.engine.request import Cancel, Submit
from inference_svc.engine.scheduler.queue import BATCH
from inference_svc.upstream.endpoint import Endpoint, EndpointState
from inference_svc.upstream.faults import EngineOverloaded
from inference_svc.upstream.target import UpstreamTarget
from svc_kit.errors import DeadlineExpired, DecodeFailed, DomainError
from tests.support.byte_engine import END, Attempt, ByteEngine, Client, byte_request, connected

PROPS = {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}}
TEXT = "one, two"
REPLY = (*TEXT.encode(), END)
BUSY = b"HTTP/1.1 503 X\r\nContent-Length: 2\r\nRetry-After: 0\r\n\r\n{}"
FAILED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    + f"data: {json.dumps({'error': {'code': 500, 'message': 'boom'}})}\n\n".encode()
)


def text_of(events: list[Event]) -> str:
    return "".join(each.text for each in events if isinstance(each, Delta))


def has_text(client: Client, number: int) -> bool:
    return any(isinstance(each, Delta) and each.sequence_id == number for each in client.events)


def error_of(events: list[Event]) -> DomainError:
    (failed,) = (each.error for each in events if isinstance(each, Failed))
    return failed


def state_of(client: Client, number: int) -> EndpointState:
    return client.connection.status.endpoints[number].state


def load_of(client: Client) -> tuple[int, int]:
    """How many run and wait, as it was reported last."""
    loads = [each for each in client.events if isinstance(each, ModelLoad)]
    return (loads[-1].num_running, loads[-1].num_waiting) if loads else (0, 0)


def limits(engine: ByteEngine) -> list[int]:
    """The output limits of the requests that it got, by which the tests tell them apart."""
    return [body["n_predict"] for body in engine.bodies]


# --- slots ----------------------------------------------------------------------------------------


async def test_a_request_that_is_cancelled_as_it_starts_frees_its_slot() -> None:
    engine = ByteEngine(REPLY, slots=1)
    async with connected(engine) as client:
        client.send(Submit(byte_request(0)))
        client.send(Cancel(0))
        events = await client.run(byte_request(1))
    assert text_of(events) == TEXT
    assert len(engine.bodies) == 1
    assert [each.sequence_id for each in client.events if isinstance(each, Cancelled)] == [0]


async def test_a_slot_is_left_to_other_projects_at_the_engines_that_are_up() -> None:
    """Project a may have 7 of the 8 slots of two engines, and 3 of 4 after the loss of one."""
    hold, released = asyncio.Event(), asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold)])
    other = ByteEngine(REPLY)
    async with connected(engine, other) as client:
        client.send(Submit(byte_request(0, project="b")))
        await engine.got_one.wait()
        await other.stop()
        await client.run(byte_request(1, project="b"))
        assert state_of(client, 1) is EndpointState.DOWN
        hold.set()
        await client.end_of(0)
        engine.attempts = [Attempt(hold=released) for _ in range(3)]
        for number in range(2, 6):
            client.send(Submit(byte_request(number, project="a", max_tokens=90)))
        assert text_of(await client.run(byte_request(6, project="b"))) == TEXT
        assert limits(engine).count(90) == 3
        released.set()
        for number in range(2, 6):
            await client.end_of(number)


# --- batches --------------------------------------------------------------------------------------


async def test_of_a_batch_an_engine_gets_more_than_it_has_slots_for() -> None:
    """One line is written, another one waits in the engine, and the third one waits here."""
    hold = asyncio.Event()
    attempts = [Attempt(hold=hold, held_after=2), Attempt(hold=hold)]
    engine = ByteEngine(REPLY, slots=1, attempts=attempts)
    async with connected(engine) as client:
        for number in range(3):
            client.send(Submit(byte_request(number, priority=BATCH)))
        await engine.got(2)
        await client.wait_for(lambda: load_of(client) == (1, 2))
        hold.set()
        for number in range(3):
            assert text_of(await client.end_of(number)) == TEXT
    assert (len(engine.bodies), engine.most_at_once, engine.closed) == (3, 2, 0)


async def test_what_waits_in_an_engine_makes_way_for_others() -> None:
    """The line that is written goes on. What is taken back may meet another line at the engine."""
    hold = asyncio.Event()
    attempts = [Attempt(hold=hold, held_after=2), Attempt(hold=asyncio.Event())]
    engine = ByteEngine(REPLY, slots=1, attempts=attempts)
    async with connected(engine) as client:
        for number in range(2):
            client.send(Submit(byte_request(number, priority=BATCH, max_tokens=90 + number)))
        await engine.got(2)
        await client.wait_for(lambda: has_text(client, 0))
        client.send(Submit(byte_request(2, max_tokens=92)))
        client.send(Submit(byte_request(3, priority=BATCH, max_tokens=93)))
        await asyncio.wait_for(engine.closed_one.wait(), 30)
        assert limits(engine) == [90, 91]
        hold.set()
        for number in range(4):
            assert text_of(await client.end_of(number)) == TEXT
    assert limits(engine)[:3] == [90, 91, 92]
    assert sorted(limits(engine)[3:]) == [91, 93]
    assert engine.closed == 1


async def test_what_is_cancelled_while_it_leaves_an_engine_does_not_come_back() -> None:
    hold = asyncio.Event()
    attempts = [Attempt(hold=hold, held_after=2), Attempt(hold=asyncio.Event())]
    engine = ByteEngine(REPLY, slots=1, attempts=attempts)
    async with connected(engine) as client:
        for number in range(2):
            client.send(Submit(byte_request(number, priority=BATCH)))
        await engine.got(2)
        await client.wait_for(lambda: has_text(client, 0))
        client.send(Submit(byte_request(2)))
        client.send(Cancel(1))
        hold.set()
        for number in (0, 2):
            assert text_of(await client.end_of(number)) == TEXT
        await client.wait_for(lambda: load_of(client) == (0, 0))
    assert len(engine.bodies) == 3


async def test_an_engine_is_not_lost_because_something_waits_in_it_for_long() -> None:
    hold = asyncio.Event()
    attempts = [Attempt(hold=hold, held_after=2), Attempt(hold=asyncio.Event())]
    engine = ByteEngine(REPLY, slots=1, attempts=attempts)
    async with connected(engine, first_token_timeout_s=3.0) as client:
        for number in range(2):
            client.send(Submit(byte_request(number, priority=BATCH)))
        await asyncio.wait_for(engine.closed_one.wait(), 30)
        hold.set()
        for number in range(2):
            assert text_of(await client.end_of(number)) == TEXT
    assert len(engine.bodies) == 3
    assert engine.requests.count("/v1/embeddings") == 1  # it was not probed again


async def test_an_engine_that_refuses_what_would_wait_in_it_gets_no_more_of_that() -> None:
    hold = asyncio.Event()
    attempts = [Attempt(hold=hold, held_after=2), Attempt(raw=BUSY)]
    engine = ByteEngine(REPLY, slots=1, attempts=attempts)
    async with connected(engine) as client:
        for number in range(3):
            client.send(Submit(byte_request(number, priority=BATCH)))
        await engine.got(2)
        await client.wait_for(lambda: load_of(client) == (1, 2))
        hold.set()
        for number in range(3):
            assert text_of(await client.end_of(number)) == TEXT
    assert len(engine.bodies) == 4


@pytest.mark.parametrize(("ahead", "most"), [(0, 1), (2, 3)])
async def test_how_many_wait_in_an_engine_is_set(ahead: int, most: int) -> None:
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, slots=1, attempts=[Attempt(hold=hold) for _ in range(5)])
    async with connected(engine, batch_ahead=ahead) as client:
        for number in range(5):
            client.send(Submit(byte_request(number, priority=BATCH)))
        await engine.got(most)
        hold.set()
        for number in range(5):
            await client.end_of(number)
    assert engine.most_at_once == most


# --- overload -------------------------------------------------------------------------------------


def idle_endpoint() -> Endpoint:
    """One that is never asked."""
    target = UpstreamTarget("bytes", ["http://127.0.0.1:9"])
    endpoint = Endpoint(target, target.urls[0], lambda _: asyncio.sleep(0))
    endpoint.slots = 1
    return endpoint


def test_an_engine_rests_longer_each_time_until_it_serves_again() -> None:
    endpoint = idle_endpoint()
    endpoint.mark_up()
    now, rests = 100.0, []
    for is_served in (False, False, False, False, False, False, True, False):
        if is_served:
            endpoint.mark_served()
        for _ in range(3):  # requests that were on their way together
            endpoint.mark_failed(EngineOverloaded("busy", 1.0), now)
        rests.append(endpoint.rest_until - now)
        assert not endpoint.can_start(endpoint.rest_until - 0.01)
        assert endpoint.can_start(endpoint.rest_until)
        now = endpoint.rest_until
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 1.0, 2.0]


def test_an_engine_that_refuses_what_would_wait_in_it_does_not_rest() -> None:
    endpoint = idle_endpoint()
    endpoint.mark_up()
    endpoint.ahead, endpoint.num_running = 1, 1
    assert endpoint.can_start(100.0, is_ahead=True)
    endpoint.mark_failed(EngineOverloaded("busy", 1.0), 100.0)
    assert (endpoint.ahead, endpoint.rest_until) == (0, 0.0)


def test_an_engine_rests_for_as_long_as_it_asks() -> None:
    endpoint = idle_endpoint()
    endpoint.mark_up()
    endpoint.mark_failed(EngineOverloaded("busy", 1.0), 100.0)
    endpoint.mark_failed(EngineOverloaded("busy", 60.0), 100.5)
    assert endpoint.rest_until == 160.5


async def test_a_prompt_that_is_refused_is_charged_to_its_project_once() -> None:
    """Charged for each refusal, project a would be served after b."""
    engine = ByteEngine(REPLY, slots=1, attempts=[Attempt(raw=BUSY)] * 2)
    async with connected(engine) as client:
        client.send(Submit(byte_request(0, project="a", max_tokens=90)))
        await engine.got_one.wait()
        client.send(Submit(byte_request(1, project="b", max_tokens=91)))
        await client.end_of(1)
    assert limits(engine) == [90, 90, 90, 91]


async def test_the_deadline_of_the_queue_applies_while_engines_refuse() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=BUSY)] * 9)
    async with connected(engine) as client:
        deadline = time.monotonic() + 0.5
        events = await client.run(byte_request(queue_deadline=deadline, deadline=deadline + 20.0))
    assert error_of(events) == DeadlineExpired(phase="queued")


# --- engines that fail at a request ---------------------------------------------------------------


async def test_a_request_at_which_the_engine_fails_twice_ends_and_no_other_waits() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=FAILED)] * 2)
    states = []

    def props() -> tuple[int, Any]:
        """The engine is asked while it is up."""
        states.append(state_of(client, 0))
        return 200, PROPS

    async with connected(engine) as client:
        engine.routes["/props"] = props
        events = await client.run(byte_request(request_id="r"))
        assert state_of(client, 0) is EndpointState.UP
        assert text_of(await client.run(byte_request(1))) == TEXT
    assert error_of(events) == DecodeFailed(request_id="r")
    assert set(states) == {EndpointState.UP}
    assert len(engine.bodies) == 3


async def test_an_engine_that_fails_at_what_another_one_serves_is_set_aside() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=FAILED)])
    is_down = asyncio.Event()

    def props() -> tuple[int, Any]:
        if state_of(client, 0) is EndpointState.DOWN:
            is_down.set()
        return 200, PROPS

    async with connected(engine, ByteEngine(REPLY)) as client:
        engine.routes["/props"] = props
        assert text_of(await client.run(byte_request())) == TEXT
        await asyncio.wait_for(is_down.wait(), 30)
    assert len(engine.bodies) == 1


async def test_a_request_waits_for_an_engine_that_loads_again() -> None:
    """Its probe is refused with status 503."""
    loading = iter([True])
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=2, lost_after=2)])
    async with connected(engine) as client:
        client.send(Submit(byte_request()))
        await client.wait_for(lambda: bool(text_of(client.events)))
        engine.routes["/props"] = lambda: (503, {}) if next(loading, False) else (200, PROPS)
        hold.set()
        assert text_of(await client.end_of(0)) == TEXT
        assert client.exits == []


async def test_a_request_that_runs_is_finished_though_no_engine_can_be_probed() -> None:
    hold, other_hold, is_asked_again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    attempts = [
        Attempt(hold=hold, held_after=4),
        Attempt(hold=other_hold, held_after=2, lost_after=2),
    ]
    engine, asked = ByteEngine(REPLY, attempts=attempts), []

    def broken() -> tuple[int, Any]:
        asked.append(502)
        if len(asked) == 2:
            is_asked_again.set()
        return 502, {}

    async with connected(engine) as client:
        for number in range(2):
            client.send(Submit(byte_request(number)))
            await client.wait_for(partial(has_text, client, number))
        engine.routes["/props"] = broken
        other_hold.set()
        await asyncio.wait_for(is_asked_again.wait(), 30)
        hold.set()
        assert text_of(await client.end_of(0)) == TEXT
        await client.wait_for(lambda: bool(client.exits))
    assert client.exits == [1]
