"""Engines that fail or lie: what a request gets then, and what is asked of whom."""

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import Delta, Event, Failed, Finished, Started
from inference_svc.engine.request import Submit
from inference_svc.engine_client.process import StartFailed
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.endpoint import Endpoint, EndpointState
from inference_svc.upstream.faults import EngineLost, EngineOverloaded
from inference_svc.upstream.probe import PinnedIdentity
from inference_svc.upstream.target import UpstreamTarget
from svc_kit.errors import (
    DecodeFailed,
    DomainError,
    GrammarInvalid,
)
from tests.support.byte_engine import (
    END,
    SIZE,
    Attempt,
    ByteEngine,
    Client,
    byte_request,
    connected,
)
from tests.support.certificates import Authority

TEXT = "one, two, three"
REPLY = (*TEXT.encode(), END)
_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def event(**members: Any) -> bytes:
    return _SSE + f"data: {json.dumps(members)}\n\n".encode()


HTML = http("200 OK", b"<html>Bad gateway</html>", "Content-Type: text/html")
LIES = {
    "HTML": HTML,
    "invalid JSON": _SSE + b"data: {\n\n",
    "JSON that is no object": _SSE + b"data: [1]\n\n",
    "no content": event(tokens=[65]),
    "no list of ids": event(tokens="abc", content="abc"),
    "ids that are no numbers": event(tokens=["1"], content="a"),
    "true as an id": event(tokens=[True], content="a"),
    "an id beyond the vocabulary": event(tokens=[SIZE], content="a"),
    "a negative id": event(tokens=[-1], content="a"),
    "text of other tokens": event(tokens=[65], content="\ud7ff" * 100 + "A"),
    "a redirect": http("307 X", b"", "Location: http://127.0.0.1:9/"),
    "an early answer": http("100 Continue", b""),
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    "an endless line": _SSE + b"data: " + b"x" * (4 << 20) + b"xx",
    "endless chunk extensions": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000,
}
LOSSES = {
    "an error inside": event(error={"code": 500, "message": "boom"}),
    "a cut head": b"HTTP/1.1 200",
    "nothing": b"",
    "an end without an end": _SSE,
    "a server error": http("500 X", b"{}"),
    "an overload": http("503 X", b"{}", "Retry-After: 1"),
    "an overload inside": event(error={"code": 503, "message": "busy"}),
}


def text_of(events: list[Event]) -> str:
    return "".join(each.text for each in events if isinstance(each, Delta))


def error_of(events: list[Event]) -> DomainError:
    (failed,) = (each.error for each in events if isinstance(each, Failed))
    return failed


def json_constraint() -> Constraint:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, "{}", "constraint.json_schema")
    grammar = json.dumps({"grammars": [{"json_schema": {}}]})
    return Constraint(grammar, "constraint.json_schema", form)


@pytest.mark.parametrize("raw", [*LIES.values(), *LOSSES.values()], ids=[*LIES, *LOSSES])
async def test_a_request_goes_on_after_an_answer_that_is_none(raw: bytes) -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(lost_after=4)])
    other = ByteEngine(REPLY, attempts=[Attempt(raw=raw)])
    async with connected(engine, other) as client:
        events = await client.run(byte_request())
        assert client.exits == []
    assert text_of(events) == TEXT
    (finished,) = (each for each in events if isinstance(each, Finished))
    assert finished.num_output_tokens == len(REPLY)
    assert sum(isinstance(each, Started) for each in events) == 1


async def test_a_request_that_three_engines_answer_with_lies_fails() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=LIES["HTML"])] * 3)
    async with connected(engine) as client:
        events = await client.run(byte_request(request_id="r"))
    assert error_of(events) == DecodeFailed(request_id="r")


async def test_a_request_that_an_engine_does_not_accept_fails_at_once() -> None:
    refusal = http("400 X", b'{"error": {"message": "no"}}')
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=refusal)] * 2)
    async with connected(engine) as client:
        plain = await client.run(byte_request(0, request_id="r"))
        constrained = await client.run(byte_request(1, constraint=json_constraint()))
        assert client.connection.status.endpoints[0].state is EndpointState.UP
    assert error_of(plain) == DecodeFailed(request_id="r")
    problem = "the engine does not accept it"
    expected = GrammarInvalid(field="constraint.json_schema", problem=problem)
    assert error_of(constrained) == expected


async def test_more_tokens_than_asked_are_cut() -> None:
    more = b"".join(
        f"data: {json.dumps({'tokens': [byte], 'content': chr(byte)})}\n\n".encode()
        for byte in b"one, two"
    )
    engine = ByteEngine(REPLY, attempts=[Attempt(raw=_SSE + more)])
    async with connected(engine) as client:
        events = await client.run(byte_request(max_tokens=5))
    assert text_of(events) == "one, "
    assert len(engine.bodies) == 1


SILENCES: dict[str, dict[str, Any]] = {
    "in the head": {"raw": b"HTTP/1.1 200 OK\r\nX-Slow: "},
    "with comments": {"raw": _SSE + b": ping\n\n" * 9},
    "before the first token": {"held_after": 1},
    "between two tokens": {"held_after": 4},
}


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)
async def test_a_silent_engine_is_given_up(silence: dict[str, Any]) -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=asyncio.Event(), **silence)])
    async with connected(engine, first_token_timeout_s=2.0, token_timeout_s=2.0) as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert len(engine.bodies) == 2


async def test_an_overloaded_engine_is_set_aside_for_as_long_as_it_asks() -> None:
    busy = Attempt(raw=http("503 X", b"{}", "Retry-After: 60"))
    engine, other = ByteEngine(REPLY, attempts=[busy]), ByteEngine(REPLY)
    async with connected(engine, other) as client:
        texts = [text_of(await client.run(byte_request(number))) for number in range(3)]
    assert texts == [TEXT] * 3
    assert (len(engine.bodies), len(other.bodies)) == (1, 3)


AN_HOUR = timedelta(hours=1)
TOLD_TIMES: dict[str, tuple[str, float | None]] = {
    "7": ("7", 7.0),
    "none": ("0", 1.0),
    "minutes": ("600", 60.0),
    "a date": (format_datetime(datetime.now(UTC) + AN_HOUR, usegmt=True), 60.0),
    "a date that has passed": (format_datetime(datetime.now(UTC) - AN_HOUR, usegmt=True), 1.0),
    "nonsense": ("soon", None),
}


@pytest.mark.parametrize(("told", "expected"), TOLD_TIMES.values(), ids=TOLD_TIMES)
async def test_an_engine_tells_when_to_ask_again(told: str, expected: float | None) -> None:
    """In seconds or as a date; a rest is from 1 to 60 s."""
    busy = Attempt(raw=http("429 X", b"{}", f"Retry-After: {told}"))
    engine = ByteEngine(REPLY, attempts=[busy])
    await engine.start()
    endpoint = Endpoint(UpstreamTarget("bytes", [engine.url]), engine.url, unverified)
    with pytest.raises(EngineOverloaded) as caught:
        await endpoint.call("POST", "/completion", {"n_predict": 9, "stream": True})
    endpoint.close()
    await engine.stop()
    assert caught.value.retry_after_s == (expected or 1.0)
    assert caught.value.has_said_when == (expected is not None)


async def test_the_loss_of_all_engines_ends_the_connection() -> None:
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=2)])
    async with connected(engine) as client:
        client.send(Submit(byte_request()))
        await client.wait_for(lambda: any(isinstance(each, Delta) for each in client.events))
        await engine.stop()
        await client.wait_for(lambda: bool(client.exits))
    assert client.exits == [1]


async def test_an_engine_that_is_not_there_yet_is_waited_for() -> None:
    """Its port is closed, then it still loads, and then it serves."""
    loading = iter([True, True])
    engine = ByteEngine(REPLY, slots=3)
    await engine.start()
    await engine.stop()
    client = Client(UpstreamTarget("bytes", [engine.url], kind="llama_server"))
    props = {"total_slots": 3, "default_generation_settings": {"n_ctx": 512}}
    engine.routes["/props"] = lambda: (503, {}) if next(loading, False) else (200, props)
    await engine.start(int(engine.url.rpartition(":")[2]))
    ready = await client.ready()
    await client.connection.close()
    await engine.stop()
    assert (ready.model.slots, client.exits) == (3, [])


REFUSALS = {
    "a key that is wrong": ({"/props": (401, {})}, "status 401"),
    "another model": ({"/v1/models": (200, {"data": [{"id": "other"}]})}, "no model 'bytes'"),
    "another vocabulary": (
        {"/tokenize": (200, {"tokens": [72, 101, 108, 99]})},
        "token 3 of 'Hello, world! How are you today?' is 99 there, and 108 in the configured",
    ),
}


@pytest.mark.parametrize(("routes", "problem"), REFUSALS.values(), ids=REFUSALS)
async def test_an_engine_that_can_never_be_used_is_refused(
    routes: dict[str, tuple[int, Any]], problem: str
) -> None:
    engine = ByteEngine(REPLY)
    await engine.start()
    for route, answer in routes.items():
        for path in (route, f"{route}?model=bytes"):
            engine.routes[path] = partial(tuple, answer)
    client = Client(UpstreamTarget("bytes", [engine.url], kind="llama_server", model="bytes"))
    await client.wait_for(lambda: bool(client.exits))
    await client.connection.close()
    await engine.stop()
    (failed,) = client.messages
    assert isinstance(failed, StartFailed)
    assert problem in failed.problem


async def test_another_model_under_the_same_name_gets_no_request() -> None:
    """It is found at the first new connection, and by the next connection of the service."""
    pin = PinnedIdentity()
    engine = ByteEngine(REPLY)
    await engine.start()
    client = Client(UpstreamTarget("bytes", [engine.url]), pin)
    await client.ready()
    await engine.stop()
    engine.model = "another"
    await engine.start(int(engine.url.rpartition(":")[2]))
    client.send(Submit(byte_request()))
    await client.wait_for(lambda: bool(client.exits))
    await client.connection.close()
    again = Client(UpstreamTarget("bytes", [engine.url]), pin)
    engine.model = "bytes"
    await again.ready()
    await again.connection.close()
    await engine.stop()
    assert engine.bodies == []
    assert not any(isinstance(each, StartFailed) for each in client.messages)


async def test_the_key_and_the_headers_go_with_each_request(tmp_path: Path) -> None:
    """The key file is read again."""
    key = tmp_path / "key"
    key.write_text("first\n")
    engine = ByteEngine(REPLY)
    options = {"key_file": key, "headers": (("X-Team", "red"),)}
    async with connected(engine, **options) as client:
        key.write_text("second\n")
        await client.run(byte_request())
    assert "Authorization: Bearer first\r\n" in engine.heads[0]
    assert "Authorization: Bearer second\r\n" in engine.heads[-1]
    assert all("X-Team: red\r\n" in head for head in engine.heads)


async def test_nothing_of_a_request_follows_a_redirect() -> None:
    target = ByteEngine(REPLY)
    await target.start()
    redirect = http("307 X", b"", f"Location: {target.url}/completion")
    async with connected(ByteEngine(REPLY, attempts=[Attempt(raw=redirect)])) as client:
        await client.run(byte_request())
    await target.stop()
    assert target.heads == []


CERTIFICATES = {
    "valid": (timedelta(days=1), "up"),
    "expired": (timedelta(seconds=-1), "certificate has expired"),
}


async def unverified(endpoint: Endpoint) -> None:
    """Streams are not asked for here."""


@pytest.mark.parametrize(("valid_for", "expected"), CERTIFICATES.values(), ids=CERTIFICATES)
async def test_the_certificate_of_an_engine_is_verified(
    tmp_path: Path, valid_for: timedelta, expected: str
) -> None:
    authority = Authority()
    certificate, key = authority.issue("localhost", valid_for=valid_for).write(tmp_path, "engine")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    engine = ByteEngine(REPLY)
    await engine.start(ssl=context)
    target = UpstreamTarget("bytes", [engine.url], ca_file=tmp_path / "ca.crt")
    endpoint = Endpoint(target, engine.url, unverified)
    try:
        await endpoint.call("GET", "/props")
        found = "up"
    except EngineLost as fault:
        found = str(fault)
    endpoint.close()
    await engine.stop()
    assert expected in found
