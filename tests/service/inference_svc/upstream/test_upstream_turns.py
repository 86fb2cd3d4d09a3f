"""Generations of `UpstreamConnection` at engines on loopback."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.events import (
    CacheSource,
    Cancelled,
    ChosenLogprob,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Logprob,
    ModelLoad,
    Started,
)
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import Cancel, Pause, Submit
from inference_svc.engine.sequence import Sequence
from inference_svc.upstream.engine_api import Generation
from inference_svc.upstream.upstream_turn import SentPrompts
from inference_svc.upstream.vllm import Vllm
from svc_kit.errors import ContextLengthExceeded, DeadlineExpired, FeatureUnsupported
from tests.support.byte_engine import END, PROMPT, Attempt, ByteEngine, byte_request, connected
from tests.support.sequences import make_request

KINDS = ["llama_server", "vllm", "sglang"]
TEXT = "Grüße, 世界 👋🏽!"
REPLY = (*TEXT.encode(), END)


def text_of(events: list[Event]) -> str:
    return "".join(each.text for each in events if isinstance(each, Delta))


def tokens_of(events: list[Event]) -> list[int]:
    return [token for each in events if isinstance(each, Delta) for token in each.tokens]


def end_of(events: list[Event]) -> Finished:
    (finished,) = (each for each in events if isinstance(each, Finished))
    return finished


def error_of(events: list[Event]) -> Failed:
    (failed,) = (each for each in events if isinstance(each, Failed))
    return failed


@pytest.mark.parametrize("kind", KINDS)
async def test_text_and_tokens_are_those_of_the_engine(kind: str) -> None:
    engine = ByteEngine(REPLY, kind)
    async with connected(engine) as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert tokens_of(events) == list(REPLY)
    finished = end_of(events)
    assert (finished.reason, finished.stop_token) == (FinishReason.STOP, END)
    assert finished.num_output_tokens == len(REPLY)
    started = next(each for each in events if isinstance(each, Started))
    assert (started.slot, started.cached_tokens, started.source) == (0, 0, CacheSource.NONE)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_limit_of_tokens_ends_the_text(kind: str) -> None:
    engine = ByteEngine(REPLY, kind)
    async with connected(engine) as client:
        events = await client.run(byte_request(max_tokens=6))
    assert text_of(events) == "Grüß"
    assert (end_of(events).reason, end_of(events).num_output_tokens) == (FinishReason.LENGTH, 6)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stop_text_ends_the_text_and_the_request_of_the_engine(kind: str) -> None:
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, kind, attempts=[Attempt(hold=hold, held_after=10)])
    async with connected(engine) as client:
        events = await client.run(byte_request(stop=(", ",)))
        async with asyncio.timeout(10):
            await engine.closed_one.wait()
    assert text_of(events) == "Grüße"
    assert (end_of(events).stop_text, end_of(events).stop_token) == (", ", None)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_closes_the_request_of_the_engine(kind: str) -> None:
    engine = ByteEngine(REPLY, kind, attempts=[Attempt(hold=asyncio.Event(), held_after=3)])
    async with connected(engine) as client:
        client.send(Submit(byte_request()))
        await client.wait_for(lambda: bool(tokens_of(client.events)))
        client.send(Cancel(0))
        async with asyncio.timeout(10):
            await engine.closed_one.wait()
    assert [each.phase for each in client.events if isinstance(each, Cancelled)] == ["decode"]


@pytest.mark.parametrize("kind", KINDS)
async def test_log_probabilities_are_told(kind: str) -> None:
    engine = ByteEngine((*b"ab", END), kind)
    async with connected(engine) as client:
        events = await client.run(byte_request(top_logprobs=2))
    found = [each for event in events if isinstance(event, Delta) for each in event.logprobs]
    assert [each.chosen.token for each in found] == [*b"ab", END]
    one = Logprob(1, b"\x01", -1.5)
    a = Logprob(97, b"a", -0.5)
    assert found[0] == ChosenLogprob(a, (a, one), text=b"a")


@pytest.mark.parametrize("kind", KINDS)
async def test_resumed_tokens_are_sent_and_not_emitted_again(kind: str) -> None:
    engine = ByteEngine(REPLY, kind)
    async with connected(engine) as client:
        events = await client.run(byte_request(resumed=REPLY[:4]))
    assert engine.bodies[0]["prompt"] == [*PROMPT, *REPLY[:4]]
    assert tokens_of(events) == list(REPLY[4:])
    assert end_of(events).num_output_tokens == len(REPLY)


@pytest.mark.parametrize(("kind", "field"), [("vllm", "cache_salt"), ("sglang", "extra_key")])
async def test_prefixes_in_the_engine_are_of_one_cache_key(kind: str, field: str) -> None:
    engine = ByteEngine(REPLY, kind)
    async with connected(engine) as client:
        for number, key in enumerate((b"a", b"b", b"a", b"")):
            await client.run(byte_request(number, cache_key=key))
    first, other, again, unset = (body.get(field) for body in engine.bodies)
    assert first == again
    assert unset is None
    assert None not in (first, other)
    assert first != other


def test_vllm_takes_the_salt_of_any_cache_key() -> None:
    """Which must not have some characters (the exchange "salt in base64")."""
    keys = [bytes([first]) * 16 for first in range(256)]
    requests = [byte_request(cache_key=key) for key in keys]
    salts = [Vllm().body(Generation(each, "m", PROMPT, 1))[1]["cache_salt"] for each in requests]

    assert len(set(salts)) == len(keys)
    assert all(each.isascii() and each.isalnum() and len(each) <= 128 for each in salts)


async def test_what_llama_server_has_cached_of_others_is_not_told() -> None:
    """It has no salts: the number would tell what other projects have sent."""
    engine = ByteEngine(REPLY)
    async with connected(engine) as client:
        events = await client.run(byte_request())
    (started,) = (each for each in events if isinstance(each, Started))
    assert started.cached_tokens == 0


async def test_resumed_tokens_that_end_the_text_ask_no_engine() -> None:
    engine = ByteEngine(REPLY)
    async with connected(engine) as client:
        ended = await client.run(byte_request(0, resumed=REPLY))
        full = await client.run(byte_request(1, resumed=REPLY[:4], max_tokens=4))
    assert engine.bodies == []
    assert (end_of(ended).reason, end_of(full).reason) == (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reasoning_ends_at_its_budget(kind: str) -> None:
    """The engine goes on after the tokens that close the reasoning."""
    closing = tuple(b"</t>")
    reply = (*b"abc</t>xyz", END)
    engine = ByteEngine(reply, kind, attempts=[Attempt(), Attempt()])
    spec = ReasoningSpec("<t>", ("</t>",), is_open=True, budget=3, closings=(closing,))
    async with connected(engine) as client:
        events = await client.run(byte_request(reasoning=spec))
    assert tokens_of(events) == list(reply)
    assert [len(body["prompt"]) for body in engine.bodies] == [5, 12]
    assert end_of(events).num_reasoning_tokens == 3


async def test_requests_beyond_the_slots_wait_for_their_turn() -> None:
    hold = asyncio.Event()
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=1)] * 2, slots=2)
    async with connected(engine) as client:
        for number in range(3):
            client.send(Submit(byte_request(number)))
        await client.wait_for(
            lambda: any(
                isinstance(each, ModelLoad) and (each.num_running, each.num_waiting) == (2, 1)
                for each in client.events
            )
        )
        await client.wait_for(lambda: sum(isinstance(each, Started) for each in client.events) == 2)
        assert len(engine.bodies) == 2
        hold.set()
        ends = [end_of(await client.end_of(number)) for number in range(3)]
    assert [each.num_output_tokens for each in ends] == [len(REPLY)] * 3


async def test_the_concurrency_is_that_of_each_url() -> None:
    hold = asyncio.Event()
    engines = [ByteEngine(REPLY, attempts=[Attempt(hold=hold, held_after=1)] * 2) for _ in range(2)]
    async with connected(*engines, concurrency=1) as client:
        for number in range(3):
            client.send(Submit(byte_request(number)))
        await client.wait_for(lambda: sum(isinstance(each, Started) for each in client.events) == 2)
        assert [len(engine.bodies) for engine in engines] == [1, 1]
        hold.set()
        for number in range(3):
            await client.end_of(number)


async def test_deadlines_end_waiting_and_running_requests() -> None:
    engine = ByteEngine(REPLY, attempts=[Attempt(hold=asyncio.Event(), held_after=3)], slots=1)
    async with connected(engine) as client:
        now = time.monotonic()
        client.send(Submit(byte_request(0, deadline=now + 0.6)))
        late = error_of(await client.run(byte_request(1, queue_deadline=now + 0.2)))
        running = error_of(await client.end_of(0))
        async with asyncio.timeout(10):
            await engine.closed_one.wait()
    assert late.error == DeadlineExpired(phase="queued")
    assert running.error == DeadlineExpired(phase="decode")


async def test_a_paused_request_reads_no_more_until_it_goes_on() -> None:
    reply = (*b"x" * 400, END)
    hold = asyncio.Event()
    engine = ByteEngine(reply, attempts=[Attempt(hold=hold, held_after=2)])
    async with connected(engine) as client:
        client.send(Submit(byte_request(max_tokens=1000)))
        await client.wait_for(lambda: bool(tokens_of(client.events)))
        client.send(Pause(0, paused=True))
        hold.set()
        other = await client.run(byte_request(1, max_tokens=5))
        num_before = len(tokens_of(client.events)) - len(tokens_of(other))
        client.send(Pause(0, paused=False))
        events = await client.end_of(0)
    assert num_before < 10
    assert tokens_of(events) == list(reply)


async def test_what_the_engine_would_ignore_is_refused() -> None:
    engine = ByteEngine(REPLY, "vllm")
    async with connected(engine) as client:
        sampling = replace(byte_request().sampling, temperature=1.0, xtc_probability=0.5)
        events = await client.run(byte_request(sampling=sampling))
    feature = "'xtc_probability' with the engine vllm 0.33.0"
    assert error_of(events).error == FeatureUnsupported(feature=feature)
    assert engine.bodies == []


async def test_an_adapter_of_the_engine_is_asked_by_its_name() -> None:
    """vLLM lists it beside its base."""
    engine = ByteEngine(REPLY, "vllm")
    models = [{"id": "bytes"}, {"id": "tuned", "parent": "bytes", "max_model_len": 512}]
    engine.routes["/v1/models"] = lambda: (200, {"data": models})
    async with connected(engine, model="tuned") as client:
        events = await client.run(byte_request())
    assert text_of(events) == TEXT
    assert engine.bodies[0]["model"] == "tuned"


async def test_a_prompt_beyond_the_context_is_refused() -> None:
    engine = ByteEngine(REPLY)
    async with connected(engine, context_tokens=4) as client:
        events = await client.run(byte_request())
    expected = ContextLengthExceeded(field="prompt", prompt_tokens=5, context_tokens=4)
    assert error_of(events).error == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_a_prompt_that_breaks_an_earlier_one_has_its_place(kind: str) -> None:
    """It is compared with prompts that the project sent under the same key, and their outputs."""
    engine = ByteEngine((*b"a" * 500, END), kind)
    first = bytes(range(256)) + bytes(range(44))
    changed = first[:40] + b"!" + first[41:]
    goes_on = changed + b"a" * 8 + b"?"
    requests: list[tuple[bytes, dict[str, Any]]] = [
        (first, {}),
        (changed, {"project": "blue"}),
        (changed, {"cache_key": b"other"}),
        (changed, {"reuse": False}),
        (changed, {}),
        (goes_on, {}),
    ]
    found = []
    async with connected(engine) as client:
        for number, (prompt, changes) in enumerate(requests):
            options = {"max_tokens": 8, "project": "red", **changes}
            events = await client.run(make_request(number, (*PROMPT, *prompt), **options))
            (started,) = (each for each in events if isinstance(each, Started))
            found.append(started.divergence and started.divergence[:2])

    at = len(PROMPT) + 40
    assert found == [None, None, None, None, (at, len(first) - 40), None]


def test_the_oldest_prompts_are_forgotten_but_those_that_others_continue_first() -> None:
    """Nor is there a divergence where the engine had more of a prompt."""
    sent = SentPrompts(max_tokens=1000)
    sessions = [[number, *range(400)] for number in range(3)]

    def add(tokens: list[int]) -> None:
        sent.add(Sequence(make_request(prompt=tokens, project="red"), arrived_at=0.0))

    def found(num_cached: int = 0) -> list[bool]:
        changed = [[*tokens[:100], 9999, *tokens[101:]] for tokens in sessions]
        requests = [make_request(prompt=tokens, project="red") for tokens in changed]
        return [sent.find_divergence(each, num_cached) is not None for each in requests]

    add(sessions[0])
    for length in (280, 320, 360, 401):
        add(sessions[1][:length])
    before = found()
    add(sessions[2])

    assert before == [True, True, False]
    assert found() == [False, True, True]
    assert found(num_cached=101) == [False, False, False]
