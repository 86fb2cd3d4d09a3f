"""Embeddings by engines on loopback, with token ids: what is asked, checked and asked again."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.embedding_request import EmbeddingRequest, SubmitEmbedding
from inference_svc.engine.events import Cancelled, Embedded
from inference_svc.engine.request import Cancel
from inference_svc.engine_client.process import StartFailed
from inference_svc.upstream.endpoint import MAX_BODY_BYTES, EndpointState
from inference_svc.upstream.target import UpstreamTarget
from svc_kit.errors import (
    ContextLengthExceeded,
    DeadlineExpired,
    DecodeFailed,
    DomainError,
    FeatureUnsupported,
    InvalidField,
)
from tests.support.byte_engine import SIZE, Attempt, ByteEngine, Client, byte_request, connected
from tests.support.embedding_engine import (
    EmbeddingEngine,
    embed,
    embedded,
    embedding_answer,
    embedding_request,
    error_in,
    vector_of,
    vectors_in,
)

TEXTS = ("one", "two, three", "four")
COMPLETION = {"llama_server": "/completion", "vllm": "/v1/completions", "sglang": "/generate"}


def engine_of(kind: str = "llama_server", **options: Any) -> EmbeddingEngine:
    """One that does not generate."""
    engine = EmbeddingEngine(kind=kind, **options)
    engine.routes[COMPLETION[kind]] = lambda: (500, {"error": {"code": 500, "message": "no"}})
    return engine


def normalized(*texts: str, size: int = 3) -> list[list[float]]:
    vectors = (np.array(vector_of(text, size), np.float32) for text in texts)
    return [(each / float(np.linalg.norm(each.astype(np.float64)))).tolist() for each in vectors]


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def answer(value: Any) -> bytes:
    return http("200 OK", json.dumps(value).encode())


def inputs_of(engine: EmbeddingEngine) -> list[str]:
    """What it was asked to embed after it was probed."""
    return [bytes(each).decode() for body in engine.embedded[1:] for each in body["input"]]


@pytest.mark.parametrize("kind", COMPLETION)
async def test_vectors_of_token_ids_come_in_the_order_of_the_inputs(kind: str) -> None:
    """Of length 1, with the tokens of each input."""
    engine = engine_of(kind)
    async with connected(engine) as client:
        ready = (await client.ready()).model
        events = await embed(client, embedding_request(*TEXTS, normalize=True))

    assert vectors_in(events) == normalized(*TEXTS)
    counts = [each.num_tokens for each in events if isinstance(each, Embedded)]
    assert counts == [len(text) for text in TEXTS]
    inputs = [list(text.encode()) for text in TEXTS]
    assert engine.embedded[-1] == {"model": "bytes", "input": inputs}
    assert ready.embedding is not None
    limits = (ready.embedding.vector_size, ready.embedding.vocabulary_size)
    assert (*limits, ready.embedding.input_tokens) == (3, SIZE, 512)
    assert ready.features is not None
    assert not ready.features.generates


async def test_vectors_are_truncated_and_then_scaled() -> None:
    async with connected(engine_of(vector_size=8)) as client:
        events = await embed(client, embedding_request("one", dimensions=2, normalize=True))
    (vector,) = vectors_in(events)
    kept = np.array(vector_of("one", 8)[:2])
    assert vector == pytest.approx((kept / np.linalg.norm(kept)).tolist())


async def test_many_inputs_are_asked_for_a_few_at_a_time() -> None:
    """At most 32, and 8,192 tokens unless one input has more."""
    texts = [f"text {number}" for number in range(70)]
    long = ["a" * 5000, "b" * 3000, "c" * 200, "d" * 9000, "e"]
    engine = engine_of()
    async with connected(engine) as client:
        first = await embed(client, embedding_request(*texts, normalize=True))
        client.events.clear()
        second = await embed(client, embedding_request(*long, normalize=True))

    assert vectors_in(first) == normalized(*texts)
    assert vectors_in(second) == normalized(*long)
    counts = [len(body["input"]) for body in engine.embedded[1:]]
    assert counts == [32, 32, 6, 2, 1, 1, 1]


def wrong(**changes: Any) -> bytes:
    """An answer to one input that is not as it should be."""
    return answer(embedding_answer([b"a"], 3, **changes))


def item(vector: Any = (1.0, 2.0, 3.0), index: Any = 0) -> dict[str, Any]:
    return {"index": index, "embedding": vector}


LIES = {
    "HTML": http("200 OK", b"<html>Bad gateway</html>", "Content-Type: text/html"),
    "invalid JSON": http("200 OK", b'{"data": ['),
    "not a number": http("200 OK", b'{"data": [{"index": 0, "embedding": [NaN, 1, 2]}]}'),
    "infinity": http("200 OK", b'{"data": [{"index": 0, "embedding": [1e999, 1, 2]}]}'),
    "beyond float32": wrong(data=[item([1e39, 1.0, 2.0])]),
    "null": wrong(data=[item([None, 1.0, 2.0])]),
    "true": wrong(data=[item([True, 1.0, 2.0])]),
    "texts": wrong(data=[item(["1", "2", "3"])]),
    "base64": wrong(data=[item("AACAPwAAAEAAAEBA")]),
    "a list of vectors": wrong(data=[item([[1.0, 2.0, 3.0]])]),
    "a short vector": wrong(data=[item([1.0, 2.0])]),
    "a long vector": wrong(data=[item([1.0, 2.0, 3.0, 4.0])]),
    "no vector": wrong(data=[{"index": 0}]),
    "no index": wrong(data=[{"embedding": [1.0, 2.0, 3.0]}]),
    "another index": wrong(data=[item(index=1)]),
    "true as an index": wrong(data=[item(index=False)]),
    "too few vectors": wrong(data=[]),
    "too many vectors": wrong(data=[item(), item(index=1)]),
    "no list": wrong(data={"a": 1}),
    "no object": answer([1]),
    "an error inside": wrong(error={"code": 500, "message": "boom"}),
    "an overload inside": wrong(error={"code": 503, "message": "busy"}),
    "a server error": http("500 X", b"{}"),
    "an overload": http("503 X", b"{}", "Retry-After: 1"),
    "without the route": http("404 X", b"{}"),
    "a redirect": http("307 X", b"", "Location: http://127.0.0.1:9/"),
    "a cut answer": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
    "nothing": b"",
    "more than an answer may have": http("200 OK", b" " * (MAX_BODY_BYTES + 1)),
}


@pytest.mark.parametrize("raw", LIES.values(), ids=LIES)
async def test_an_answer_that_is_none_is_asked_for_elsewhere(raw: bytes) -> None:
    engine, other = engine_of(), engine_of()
    async with connected(engine, other) as client:
        engine.answers = [Attempt(raw=raw)]
        events = await embed(client, embedding_request("one", normalize=True))
        assert client.exits == []
    assert vectors_in(events) == normalized("one")
    assert engine.answers == []


async def test_two_inputs_with_one_index_are_no_answer() -> None:
    engine, other = engine_of(), engine_of()
    twice = answer(embedding_answer([b"a", b"b"], 3, data=[item(), item()]))
    async with connected(engine, other) as client:
        engine.answers = [Attempt(raw=twice)]
        events = await embed(client, embedding_request("one", "two", normalize=True))
    assert vectors_in(events) == normalized("one", "two")


async def test_what_was_embedded_before_a_loss_is_not_asked_for_again() -> None:
    """And is told once."""
    texts = [f"text {number}" for number in range(64)]
    engine, other = engine_of(), engine_of()
    async with connected(engine, other) as client:
        first = answer(embedding_answer([text.encode() for text in texts[:32]], 3))
        engine.answers = [Attempt(raw=first), Attempt(raw=b"")]
        events = await embed(client, embedding_request(*texts, normalize=True))

    assert vectors_in(events) == normalized(*texts)
    assert len(events) == 64
    assert inputs_of(other) == texts[32:]


async def test_a_request_that_engines_answer_three_times_with_lies_fails() -> None:
    engines = [engine_of(), engine_of(), engine_of()]
    async with connected(*engines) as client:
        for each in engines:
            each.answers = [Attempt(raw=wrong(data=[]))]
        events = await embed(client, embedding_request("one", request_id="r"))
    assert error_in(events) == DecodeFailed(request_id="r")


async def test_a_silent_engine_is_given_up_and_another_one_asked() -> None:
    engine, other = engine_of(), engine_of()
    async with connected(engine, other, first_token_timeout_s=0.2) as client:
        engine.answers = [Attempt(hold=asyncio.Event())]
        events = await embed(client, embedding_request("one", normalize=True))
        assert client.connection.status.endpoints[0].state is not EndpointState.REFUSED
    assert vectors_in(events) == normalized("one")


@pytest.mark.parametrize("status", ["400", "413", "422"])
async def test_what_the_engine_does_not_accept_is_an_error_of_the_inputs(status: str) -> None:
    """It serves others meanwhile."""
    engine = engine_of()
    async with connected(engine) as client:
        engine.answers = [Attempt(raw=http(f"{status} X", b'{"error": {"message": "no"}}'))]
        refused = error_in(await embed(client, embedding_request("one")))
        client.events.clear()
        assert vectors_in(await embed(client, embedding_request("two", normalize=True)))
    assert isinstance(refused, InvalidField)
    assert refused.metadata["field"] == "inputs"


async def test_another_length_under_the_same_name_is_another_model() -> None:
    """Its vectors go to nobody, and it gets no more requests."""
    engine = engine_of()
    async with connected(engine) as client:
        engine.vector_size = 4
        client.send(SubmitEmbedding(embedding_request("one")))
        await client.wait_for(lambda: bool(client.exits))
        (endpoint,) = client.connection.status.endpoints
    assert endpoint.state is EndpointState.REFUSED
    assert "'1/2', 4), but this name was" in endpoint.problem
    assert not any(isinstance(each, Embedded) for each in client.events)


async def test_another_engine_at_the_same_url_gets_no_inputs() -> None:
    """It is asked what it is at the first new connection."""
    engine = engine_of()
    async with connected(engine) as client:
        await engine.stop()
        engine.model = "another"
        await engine.start(int(engine.url.rpartition(":")[2]))
        client.send(SubmitEmbedding(embedding_request("one")))
        await client.wait_for(lambda: bool(client.exits))
    assert "one" not in inputs_of(engine)


async def test_an_engine_that_only_chats_is_not_asked_to_embed() -> None:
    """It was asked once, as it was probed."""
    engine = ByteEngine(b"a")
    async with connected(engine) as client:
        ready = (await client.ready()).model
        error = error_in(await embed(client, embedding_request("one")))
    assert isinstance(error, FeatureUnsupported)
    assert "embeddings with the engine llama-server b1" in str(error)
    assert ready.embedding is None
    assert engine.requests.count("/v1/embeddings") == 1


async def test_an_engine_that_only_embeds_is_not_asked_to_generate() -> None:
    engine = engine_of("vllm")
    async with connected(engine) as client:
        (failed,) = await client.run(byte_request())
    assert isinstance(error_in([failed]), FeatureUnsupported)
    assert "generation with the engine vllm 0.33.0" in str(error_in([failed]))
    assert "/v1/completions" not in engine.requests


async def test_llama_server_may_embed_and_generate() -> None:
    engine = EmbeddingEngine(reply=(*b"ab", 256))
    async with connected(engine) as client:
        ready = (await client.ready()).model
        events = await embed(client, embedding_request("one", normalize=True))
        assert await client.run(byte_request(1))
    assert ready.features is not None
    assert ready.features.generates
    assert vectors_in(events) == normalized("one")


# --- the queue ------------------------------------------------------------------------------------


async def test_requests_beyond_the_slots_wait_and_a_cancelled_one_frees_its_slot() -> None:
    engine = engine_of(slots=1)
    async with connected(engine) as client:
        engine.answers = [Attempt(hold=asyncio.Event())]
        client.send(SubmitEmbedding(embedding_request("one")))
        await engine.got_one.wait()
        waiting = EmbeddingRequest(1, "m", embedding_request("two").inputs, normalize=True)
        client.send(SubmitEmbedding(waiting))
        assert inputs_of(engine) == ["one"]
        client.send(Cancel(0))
        events = await embedded(client, 1)
    assert vectors_in(events) == normalized("two")
    assert [each.sequence_id for each in client.events if isinstance(each, Cancelled)] == [0]


async def test_an_engine_whose_queue_is_short_gets_fewer_inputs_at_once() -> None:
    """vLLM queues each input as a request."""
    engine = engine_of()
    async with connected(engine) as client:
        engine.embedded.clear()
        engine.answers = [Attempt(raw=http("503 X", b"{}")) for _ in range(2)]
        events = await embed(client, embedding_request(*"abcde", normalize=True))
    assert vectors_in(events) == normalized(*"abcde")
    assert [len(each["input"]) for each in engine.embedded] == [5, 2, 1, 1, 1, 1, 1]


async def test_an_engine_that_says_when_to_ask_again_gets_no_inputs_before() -> None:
    """The other one gets fewer at once, too."""
    engine, other = engine_of(), engine_of()
    async with connected(engine, other) as client:
        for each in (engine, other):
            each.embedded.clear()
        engine.answers = [Attempt(raw=http("429 X", b"{}", "Retry-After: 60"))]
        events = await embed(client, embedding_request(*"abcde", normalize=True))
    assert vectors_in(events) == normalized(*"abcde")
    sizes = [[len(body["input"]) for body in each.embedded] for each in (engine, other)]
    assert sizes == [[5], [2, 2, 1]]


@pytest.mark.parametrize(
    ("waiting", "served"),
    [
        ([{"project": "a"}, {"project": "a"}, {"project": "b"}], ["0", "2", "1"]),
        ([{"priority": 1}, {"priority": 2}, {"priority": 3}], ["2", "1", "0"]),
    ],
    ids=["projects", "priorities"],
)
async def test_requests_wait_in_the_order_of_priorities_and_projects(
    waiting: list[dict[str, Any]], served: list[str]
) -> None:
    """While the only slot is taken."""
    engine, hold = engine_of(slots=1), asyncio.Event()
    async with connected(engine) as client:
        engine.answers = [Attempt(raw=answer(embedding_answer([b"first"], 3)), hold=hold)]
        client.send(SubmitEmbedding(replace(embedding_request("first"), sequence_id=9)))
        await engine.got_one.wait()
        for number, fields in enumerate(waiting):
            request = embedding_request(str(number), **fields)
            client.send(SubmitEmbedding(replace(request, sequence_id=number)))
        hold.set()
        for number in range(len(waiting)):
            await embedded(client, number)
    assert inputs_of(engine) == ["first", *served]


async def test_a_deadline_ends_a_request_that_runs() -> None:
    engine = engine_of()
    async with connected(engine) as client:
        engine.answers = [Attempt(hold=asyncio.Event())]
        deadline = time.monotonic() + 0.3
        events = await embed(client, embedding_request("one", deadline=deadline))
    assert error_in(events) == DeadlineExpired(phase="prefill")


async def test_a_request_waits_for_an_engine_that_embeds_again() -> None:
    """Its probe embeds too, and is refused with status 503 once."""
    engine = engine_of()
    async with connected(engine) as client:
        engine.answers = [Attempt(raw=http("502 X", b"{}")), Attempt(raw=http("503 X", b"{}"))]
        events = await embed(client, embedding_request("one", normalize=True))
        assert client.exits == []
    assert vectors_in(events) == normalized("one")
    assert len(engine.embedded) == 5  # a probe, the request, two probes, the request


# --- text mode ------------------------------------------------------------------------------------

IN_TEXT_MODE: dict[str, Any] = {"kind": "openai", "default_path": "/v1", "embeds": True}


async def test_texts_are_embedded_with_the_counts_of_the_engine() -> None:
    engine = EmbeddingEngine(kind="openai")
    async with connected(engine, **IN_TEXT_MODE) as client:
        ready = (await client.ready()).model
        request = embedding_request("one", "two, three", is_text=True, normalize=True)
        events = await embed(client, request)

    assert vectors_in(events) == normalized("one", "two, three")
    counts = [(each.num_tokens, each.is_estimated) for each in events if isinstance(each, Embedded)]
    assert counts == [(13, False), (0, False)]
    assert engine.embedded == [
        {"model": "bytes", "input": ["a"]},
        {"model": "bytes", "input": ["one", "two, three"]},
    ]
    assert ready.embedding is not None
    assert ready.embedding.vector_size == 3
    assert ready.features is not None
    assert not ready.features.generates


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -1}, {"prompt_tokens": 1 << 40}, [1]], ids=str
)
async def test_counts_that_cannot_be_are_estimated(usage: Any) -> None:
    """As a fourth of the bytes of each text."""
    engine = EmbeddingEngine(kind="openai")
    async with connected(engine, **IN_TEXT_MODE) as client:
        told = answer(embedding_answer(["one", "a text of 20 bytes.."], 3, usage=usage))
        engine.answers = [Attempt(raw=told)]
        request = embedding_request("one", "a text of 20 bytes..", is_text=True)
        events = await embed(client, request)
    counts = [(each.num_tokens, each.is_estimated) for each in events if isinstance(each, Embedded)]
    assert counts == [(1, True), (6, True)]


async def test_a_service_is_asked_to_embed_only_if_the_settings_say_so() -> None:
    """It may be paid by the token."""
    engine = EmbeddingEngine(kind="openai")
    async with connected(engine, **IN_TEXT_MODE | {"embeds": False}) as client:
        error = error_in(await embed(client, embedding_request("one", is_text=True)))
    assert "embeddings with the engine openai (text mode)" in str(error)
    assert engine.embedded == []


async def test_a_service_that_does_not_embed_cannot_be_used_to() -> None:
    engine = ByteEngine(b"a", kind="openai")
    await engine.start()
    client = Client(UpstreamTarget("bytes", [engine.url], **IN_TEXT_MODE))
    await client.wait_for(lambda: bool(client.exits))
    await client.connection.close()
    await engine.stop()
    (failed,) = client.messages
    assert isinstance(failed, StartFailed)
    assert "it does not embed: it answered with status 404" in failed.problem


@pytest.mark.parametrize(
    ("context", "error", "problem"),
    [(None, InvalidField, "too long for the engine"), (300, ContextLengthExceeded, "300")],
)
async def test_too_long_a_text_is_an_error_of_the_inputs(
    context: int | None, error: type[DomainError], problem: str
) -> None:
    engine = EmbeddingEngine(kind="openai")
    async with connected(engine, **IN_TEXT_MODE, context_tokens=context) as client:
        refusal = {"error": {"code": "context_length_exceeded", "message": "no"}}
        engine.answers = [Attempt(raw=http("400 X", json.dumps(refusal).encode()))]
        refused = error_in(await embed(client, embedding_request("word " * 900, is_text=True)))
    assert isinstance(refused, error)
    assert problem in str(refused)
    assert refused.metadata["field"] == "inputs"
