"""Connections to engines: which are kept, when an engine is asked who it is, how long it has."""

import asyncio

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Delta, Event, Failed, Finished
from inference_svc.engine.request import Pause, Submit
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.endpoint import EndpointState
from svc_kit.errors import DecodeFailed
from tests.support.byte_engine import END, Attempt, ByteEngine, byte_request, connected

KINDS = ["llama_server", "vllm", "sglang"]
TEXT = "one, two"
REPLY = (*TEXT.encode(), END)


def text_of(events: list[Event]) -> str:
    return "".join(each.text for each in events if isinstance(each, Delta))


def refusal(status: int) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode()


@pytest.mark.parametrize("max_tokens", [100, 4], ids=["to the end", "to the limit"])
@pytest.mark.parametrize("kind", KINDS)
async def test_all_requests_use_the_connection_of_the_probe(kind: str, max_tokens: int) -> None:
    engine = ByteEngine(REPLY, kind)
    async with connected(engine, concurrency=1) as client:
        for number in range(3):
            events = await client.run(byte_request(number, max_tokens=max_tokens))
            assert text_of(events) == TEXT[:max_tokens]
    assert engine.accepted == 1


async def test_a_pause_after_the_end_does_not_keep_the_slot() -> None:
    hold, num_before_stop = asyncio.Event(), 1 + len(REPLY)
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=num_before_stop)])
    async with connected(engine, concurrency=1) as client:
        await client.run(byte_request(0))
        client.send(Pause(0, paused=True))
        hold.set()
        events = await client.run(byte_request(1))
    assert text_of(events) == TEXT


async def test_a_silent_engine_is_not_asked_again_on_another_connection() -> None:
    silent = ByteEngine(REPLY, attempts=[Attempt(raw=b"", hold=asyncio.Event())])
    other = ByteEngine(REPLY)
    async with connected(silent, other, first_token_timeout_s=2.0) as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert (len(silent.bodies), len(other.bodies)) == (1, 1)


async def test_a_request_on_a_connection_that_was_just_closed_is_sent_again() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=b"")])
    async with connected(engine) as client:
        events = await client.run(byte_request())
        (endpoint,) = client.connection.status.endpoints
    assert text_of(events) == TEXT
    assert (len(engine.bodies), endpoint.state) == (2, EndpointState.UP)


async def test_the_engine_is_asked_who_it_is_before_a_request_is_sent_again() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=b"")])
    async with connected(engine) as client:
        engine.model = "another"
        client.send(Submit(byte_request()))
        await client.wait_for(lambda: bool(client.exits))
    assert len(engine.bodies) == 1


async def test_the_engine_is_asked_who_it_is_at_each_new_connection() -> None:
    """The connection that stayed open leads to the engine that was probed, and is served by it."""
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold)])
    async with connected(engine) as client:
        engine.model = "another"
        for number in range(3):
            client.send(Submit(byte_request(number)))
        await engine.got_one.wait()
        hold.set()
        await client.wait_for(lambda: bool(client.exits))
    assert len(engine.bodies) == 1


async def test_the_time_between_tokens_counts_from_the_first_one() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=asyncio.Event(), held_after=4)])
    async with connected(engine, first_token_timeout_s=600.0, token_timeout_s=2.0) as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert len(engine.bodies) == 2


async def test_a_long_prompt_has_the_time_until_the_first_token() -> None:
    """Its progress does not begin the time between tokens."""
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=1)])
    async with connected(engine, first_token_timeout_s=600.0, token_timeout_s=1.0) as client:
        asyncio.get_running_loop().call_later(2.5, hold.set)
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert len(engine.bodies) == 1


@pytest.mark.parametrize("route", ["/version", "/v1/models"])
async def test_a_server_without_the_routes_of_the_engine_gets_no_request(route: str) -> None:
    """Another one was started at its address."""
    replaced, other = ByteEngine(REPLY, "vllm"), ByteEngine(REPLY, "vllm")
    async with connected(replaced, other) as client:
        await replaced.stop()
        replaced.routes[route] = lambda: (404, {})
        await replaced.start(int(replaced.url.rpartition(":")[2]))
        events = await client.run(byte_request())
        assert client.connection.status.endpoints[0].state is EndpointState.DOWN
    assert text_of(events) == TEXT
    assert (len(replaced.bodies), len(other.bodies)) == (0, 1)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_the_route_of_requests_is_given_up(status: int) -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=refusal(status))])
    async with connected(engine, ByteEngine(REPLY)) as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT


async def test_a_grammar_is_not_blamed_for_a_request_that_is_too_large() -> None:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, "{}", "f")
    constraint = Constraint('{"grammars": [{"json_schema": {}}]}', "f", form)
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=refusal(413))])
    async with connected(engine) as client:
        events = await client.run(byte_request(request_id="r", constraint=constraint))
    (failed,) = (each for each in events if isinstance(each, (Failed, Finished)))
    assert isinstance(failed, Failed)
    assert failed.error == DecodeFailed(request_id="r")
