"""Engines in text mode: messages of `UpstreamConnection` at engines on loopback."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import (
    CallPart,
    Cancelled,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Logprob,
    MessagePart,
    ModelLoad,
    Started,
    ToldUsage,
)
from inference_svc.engine.request import Cancel, SequenceRequest, Submit
from inference_svc.engine_client.process import StartFailed
from inference_svc.upstream.endpoint import EndpointState
from inference_svc.upstream.target import UpstreamTarget
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    EngineRestarting,
    FeatureUnsupported,
    InvalidField,
)
from tests.support.byte_engine import END, Attempt, ByteEngine, Client, connected
from tests.support.sequences import make_request

TEXT = "one, two, three"
REPLY = (*TEXT.encode(), END)
MESSAGES = [{"role": "user", "content": "Say it"}]
_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def stream(*events: Any) -> bytes:
    """A whole answer; texts are data as they are."""
    data = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return _SSE + b"".join(f"data: {each}\n\n".encode() for each in data)


def choice(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def call(**members: Any) -> dict[str, Any]:
    return choice(tool_calls=[members])


def engine(*attempts: bytes | Attempt) -> ByteEngine:
    made = [each if isinstance(each, Attempt) else Attempt(raw=each) for each in attempts]
    return ByteEngine(REPLY, "openai", attempts=made)


def in_text_mode(
    *engines: ByteEngine, path: str = "/v1", **options: Any
) -> AbstractAsyncContextManager[Client]:
    return connected(*engines, kind="openai", default_path=path, **options)


def message_request(sequence_id: int = 0, **changes: Any) -> SequenceRequest:
    chat = {"messages": MESSAGES, "temperature": 0.5, **changes.pop("chat", {})}
    options = {"max_tokens": 100, "chat": chat, "estimated_tokens": 5, **changes}
    return make_request(sequence_id, [], **options)


def parts_of(events: list[Event]) -> list[MessagePart]:
    return [part for each in events if isinstance(each, Delta) for part in each.parts]


def text_of(events: list[Event]) -> str:
    return "".join(part.content for part in parts_of(events))


def end_of(events: list[Event]) -> Finished:
    (finished,) = (each for each in events if isinstance(each, Finished))
    return finished


def error_of(events: list[Event]) -> DomainError:
    (failed,) = (each.error for each in events if isinstance(each, Failed))
    return failed


async def test_a_message_is_that_of_the_engine() -> None:
    """With its own counts; the request has what it was given, and asks for the usage."""
    one = engine()
    async with in_text_mode(one) as client:
        events = await client.run(message_request())
    finished = end_of(events)

    assert text_of(events) == TEXT
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.STOP, len(REPLY))
    assert finished.usage == ToldUsage(7, is_estimated=False)
    assert sum(each.num_tokens for each in events if isinstance(each, Delta)) == len(TEXT)
    assert isinstance(events[0], Started)
    assert one.bodies[0] == {
        "model": "bytes",
        "messages": MESSAGES,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "prompt": None,
    }


async def test_reasoning_content_and_calls_come_in_the_order_of_the_engine() -> None:
    """Of either name of the reasoning; a call without an id gets one, and refusals are content."""
    answer = stream(
        choice(role="assistant", content=None),
        choice(reasoning_content="why"),
        choice(reasoning=" not"),
        choice(content="Let me "),
        choice(refusal="see."),
        call(index=0, id="a", function={"name": "f", "arguments": ""}),
        call(index=0, function={"arguments": '{"x":'}),
        call(index=0, function={"arguments": "1}"}),
        call(index=1, type="function", function={"name": "g", "arguments": "{}"}),
        choice("tool_calls"),
        "[DONE]",
    )
    async with in_text_mode(engine(answer)) as client:
        events = await client.run(message_request())
    *parts, last = parts_of(events)

    assert parts == [
        MessagePart("why"),
        MessagePart(" not"),
        MessagePart("", "Let me "),
        MessagePart("", "see."),
        MessagePart(calls=(CallPart(0, "a", "f", ""),)),
        MessagePart(calls=(CallPart(0, "", "", '{"x":'),)),
        MessagePart(calls=(CallPart(0, "", "", "1}"),)),
    ]
    (second,) = last.calls
    assert (second.position, second.name, second.arguments) == (1, "g", "{}")
    assert second.id.startswith("call_")
    finished = end_of(events)
    assert (finished.num_output_tokens, finished.num_reasoning_tokens) == (8, 2)
    assert finished.usage == ToldUsage(5, is_estimated=True)


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": 1e9}, [1]],
    ids=str,
)
async def test_counts_that_cannot_be_are_estimated(usage: Any) -> None:
    answer = stream(choice(content="a"), choice("length", content="b") | {"usage": usage}, "[DONE]")
    async with in_text_mode(engine(answer)) as client:
        finished = end_of(await client.run(message_request()))
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, 2)
    assert finished.usage == ToldUsage(5, is_estimated=True)


async def test_an_engine_that_does_not_end_is_cut() -> None:
    """After more bytes than the tokens that were asked for can have."""
    answer = stream(*[choice(content="x" * 200)] * 9)
    one = engine(Attempt(raw=answer, hold=asyncio.Event()))
    async with in_text_mode(one) as client:
        events = await client.run(message_request(max_tokens=3))
        async with asyncio.timeout(10):
            await one.closed_one.wait()
    assert end_of(events).reason is FinishReason.LENGTH
    assert len(text_of(events)) == 800


@pytest.mark.parametrize("end", [["[DONE]"], []], ids=["[DONE]", "the end of the stream"])
async def test_an_answer_ends_with_its_reason(end: list[str]) -> None:
    answer = stream(choice(content="a"), choice("stop"), *end)
    async with in_text_mode(engine(answer)) as client:
        events = await client.run(message_request())
    assert (text_of(events), end_of(events).reason) == ("a", FinishReason.STOP)


LIES = {
    "HTML": http("200 OK", b"<html>Bad gateway</html>", "Content-Type: text/html"),
    "no stream": http("200 OK", b'{"error": "busy"}', "Content-Type: application/json"),
    "invalid JSON": stream("{"),
    "no object": stream([1]),
    "no choices": stream({"id": 1}),
    "two choices": stream({"choices": [choice()["choices"][0]] * 2}),
    "another choice": stream({"choices": [{"index": 1, "delta": {"content": "a"}}]}),
    "content of parts": stream(choice(content=[{"type": "text"}])),
    "calls that are no list": stream(choice(tool_calls={"a": 1})),
    "a call without a name": stream(call(index=0, function={"arguments": "{}"})),
    "a call that is no object": stream(choice(tool_calls=["f"])),
    "an odd index": stream(call(index="0", function={"name": "f"})),
    "a piece before the call": stream(call(function={"arguments": "{}"})),
    "arguments that are no text": stream(call(function={"name": "f", "arguments": {"a": 1}})),
    "arguments that are a number": stream(call(function={"name": "f", "arguments": 1})),
    "no reason": stream("[DONE]"),
    "an odd reason": stream(choice(reason=5)),  # type: ignore[arg-type]
    "a redirect": http("307 X", b"", "Location: http://127.0.0.1:9/"),
    "an endless line": _SSE + b"data: " + b"x" * (4 << 20) + b"xx",
    "an error inside": stream({"error": {"code": 500, "message": "boom"}}),
    "an overload inside": stream({"error": {"code": 429, "message": "busy"}}),
    "an error as the reason": stream(choice(reason="error")),
    "nothing": b"",
    "an end without an end": _SSE,
    "a server error": http("500 X", b"{}"),
    "an overload": http("429 X", b"{}", "Retry-After: 1"),
    "a refused key": http("401 X", b"{}"),
}


@pytest.mark.parametrize("raw", LIES.values(), ids=LIES)
async def test_an_answer_that_is_none_is_asked_for_elsewhere(raw: bytes) -> None:
    """As long as nothing of it was shown; the engine is told nothing of the other one."""
    one, other = engine(raw, raw), engine()
    other.attempts = []
    async with in_text_mode(one, other) as client:
        both = [await client.run(message_request(number)) for number in range(2)]
    assert [text_of(events) for events in both] == [TEXT] * 2
    assert all(sum(isinstance(each, Started) for each in events) == 1 for events in both)


SHOWN = {
    "a cut stream": stream(choice(content="one")),
    "an error inside": stream(choice(content="one"), {"error": {"message": "boom"}}),
    "invalid JSON": stream(choice(reasoning="one"), "{"),
    "a call": stream(call(index=0, id="a", function={"name": "f"})),
}


@pytest.mark.parametrize("raw", SHOWN.values(), ids=SHOWN)
async def test_what_was_shown_in_part_does_not_begin_again(raw: bytes) -> None:
    one, other = engine(raw), engine(raw)
    async with in_text_mode(one, other) as client:
        events = await client.run(message_request())
    assert error_of(events) == EngineRestarting(phase="running")
    assert len(one.bodies) + len(other.bodies) == 1


async def test_silence_within_an_answer_ends_it() -> None:
    raw = stream(choice(content="one"))
    one = engine(Attempt(raw=raw, hold=asyncio.Event()))
    async with in_text_mode(one, token_timeout_s=0.2) as client:
        events = await client.run(message_request())
    assert error_of(events) == EngineRestarting(phase="running")


REFUSED = {
    "a field": ({"message": "no tools"}, 400, InvalidField),
    "a value": ({"message": "bad schema"}, 422, InvalidField),
    "a size": ({"message": "too large"}, 413, InvalidField),
    "a content": ({"message": "flagged"}, 403, InvalidField),
    "a picture at llama-server": (
        {"message": "image input is not supported - hint: provide the mmproj"},
        500,
        InvalidField,
    ),
    "a feature": ({"message": "no endpoint takes tools"}, 404, InvalidField),
    "the context": ({"code": "context_length_exceeded"}, 400, InvalidField),
    "the context of llama-server": ({"type": "exceed_context_size_error"}, 400, InvalidField),
}


@pytest.mark.parametrize(("error", "status", "kind"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_is_for_the_request_alone(
    error: dict[str, str], status: int, kind: type[DomainError]
) -> None:
    """The engine stays, and its words are for operators."""
    one = engine(http(f"{status} X", json.dumps({"error": error}).encode()))
    async with in_text_mode(one) as client:
        found = error_of(await client.run(message_request()))
        assert text_of(await client.run(message_request(1))) == TEXT
    assert type(found) is kind
    assert not any(text in found.message for text in error.values())


async def test_a_service_that_knows_only_the_new_name_of_the_limit_gets_that() -> None:
    """From its first refusal on; a value that it does not take is refused."""
    error = {"code": "unsupported_parameter", "param": "max_tokens"}
    refusals = [
        http("400 X", json.dumps({"error": each}).encode())
        for each in (error, {**error, "code": ""})
    ]
    one = engine(refusals[0])
    async with in_text_mode(one) as client:
        for number in range(2):
            events = await client.run(message_request(number, chat={"max_tokens": 50}))
            assert text_of(events) == TEXT
        one.attempts.append(Attempt(raw=refusals[1]))
        refused = error_of(await client.run(message_request(2, chat={"max_tokens": 50})))
    sent = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in one.bodies]
    assert sent == [(50, None), (None, 50), (None, 50), (None, 50)]
    assert isinstance(refused, InvalidField)


async def test_too_long_a_prompt_is_told_with_the_context() -> None:
    error = {"error": {"code": "context_length_exceeded"}}
    one = engine(http("400 X", json.dumps(error).encode()))
    one.routes = {"/v1/models": lambda: (200, {"data": [{"id": "m", "max_model_len": 64}]})}
    async with in_text_mode(one) as client:
        found = error_of(await client.run(message_request()))
    expected = ContextLengthExceeded(field="messages", prompt_tokens=5, context_tokens=64)
    assert found == expected


async def test_a_cancel_closes_the_request_of_the_engine() -> None:
    one = engine(Attempt(hold=asyncio.Event(), held_after=3))
    async with in_text_mode(one) as client:
        client.send(Submit(message_request()))
        await client.wait_for(lambda: bool(text_of(client.events)))
        client.send(Cancel(0))
        async with asyncio.timeout(10):
            await one.closed_one.wait()
    assert [each.phase for each in client.events if isinstance(each, Cancelled)] == ["decode"]


async def test_requests_beyond_the_concurrency_wait_here() -> None:
    hold = asyncio.Event()
    one = engine(*[Attempt(hold=hold, held_after=1)] * 3)
    async with in_text_mode(one, concurrency=2) as client:
        for number in range(3):
            client.send(Submit(message_request(number)))
        await client.wait_for(
            lambda: any(
                isinstance(each, ModelLoad) and each.num_waiting == 1 for each in client.events
            )
        )
        assert len(one.bodies) == 2
        hold.set()
        ended = [await client.end_of(number) for number in range(3)]
    assert [text_of(events) for events in ended] == [TEXT] * 3


@pytest.mark.parametrize("wanted", [0, 2, 5])
async def test_log_probabilities_are_those_of_an_engine_that_tells_them(wanted: int) -> None:
    """With as many alternatives as were asked for."""
    one = engine()
    one.max_logprobs = 5
    async with in_text_mode(one) as client:
        parts = parts_of(await client.run(message_request(top_logprobs=wanted)))
    (body,) = one.bodies
    assert [part.content for part in parts] == list(TEXT)
    for part in parts:
        (told,) = part.logprobs
        assert told.chosen == Logprob(0, part.content.encode(), -0.5)
        assert [each.logprob for each in told.top] == [-0.5 - rank for rank in range(wanted)]
    assert (body["logprobs"], body.get("top_logprobs")) == (True, wanted or None)


@pytest.mark.parametrize(
    ("known", "wanted", "name"),
    [(None, 0, "'logprobs'"), (5, 6, "'logprobs' above 5"), (4, 2, "'logprobs' above 1")],
)
async def test_log_probabilities_that_no_engine_tells_are_refused(
    known: int | None, wanted: int, name: str
) -> None:
    """What was found by a request of one token: an engine that ignores the fields has none."""
    one = engine()
    one.max_logprobs = known
    async with in_text_mode(one) as client:
        found = error_of(await client.run(message_request(top_logprobs=wanted)))
    assert isinstance(found, FeatureUnsupported)
    assert name in found.message
    assert not one.bodies


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"constraint": Constraint("", "format")}, "format")],
    ids=["constraint"],
)
async def test_what_needs_token_ids_is_refused(changes: dict[str, Any], name: str) -> None:
    one = engine()
    async with in_text_mode(one) as client:
        found = error_of(await client.run(message_request(**changes)))
    assert isinstance(found, FeatureUnsupported)
    assert name in found.message
    assert not one.bodies


async def test_the_key_and_the_path_of_the_url_are_used(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    key.chmod(0o600)
    one = engine()
    async with in_text_mode(one, key_file=key) as client:
        await client.run(message_request())
    assert one.requests[-1] == "/v1/chat/completions"
    assert all("Authorization: Bearer secret" in head for head in one.heads)

    other = engine()
    other.routes = {"/api/v4/models": lambda: (200, {"data": [{"id": "m"}]})}
    await other.start()
    other.url += "/api/v4"
    async with in_text_mode(other):
        assert {*other.requests} == {"/api/v4/models", "/api/v4/chat/completions"}


async def test_an_engine_that_serves_another_model_later_is_set_aside() -> None:
    one = engine(b"")
    async with in_text_mode(one) as client:
        one.model = "other"
        client.send(Submit(message_request()))
        await client.wait_for(lambda: bool(client.exits))
        (endpoint,) = client.connection.status.endpoints
    assert endpoint.state is EndpointState.REFUSED
    assert "other" in endpoint.problem


@pytest.mark.parametrize(
    ("models", "model", "problem"),
    [
        ([{"id": "a"}, {"id": "b"}], "", "name one of them"),
        ([{"id": "a"}, {"id": "b"}], "c", "it serves no model 'c'"),
        (None, "", "it does not list its models"),
    ],
)
async def test_a_model_that_is_not_there_fails_the_start(
    models: list[Any] | None, model: str, problem: str
) -> None:
    one = engine()
    status, answer = (404, {}) if models is None else (200, {"data": models})
    one.routes = {"/v1/models": lambda: (status, answer)}
    await one.start()
    target = UpstreamTarget("bytes", [one.url], "openai", model, default_path="/v1")
    client = Client(target)
    try:
        await client.wait_for(lambda: bool(client.exits))
    finally:
        await client.connection.close()
        await one.stop()
    (failed,) = (each for each in client.messages if isinstance(each, StartFailed))
    assert problem in failed.problem


async def test_a_service_without_a_list_has_the_named_model() -> None:
    one = engine()
    one.routes = {"/v1/models": lambda: (404, {})}
    async with in_text_mode(one, model="gpt-x") as client:
        assert text_of(await client.run(message_request())) == TEXT
    assert one.bodies[0]["model"] == "gpt-x"
