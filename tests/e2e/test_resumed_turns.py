"""Turns on the real engine, broken off after each of their tokens and resumed, as a run is whose
engine or control process has died."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
import pytest
from corral.inference.v1 import generation_pb2 as generation

from control_svc.inference.turn_client import RpcTurnClient
from control_svc.inference.turns import (
    ChoiceMode,
    Delta,
    Done,
    Finished,
    FinishReason,
    JsonSchema,
    Started,
    TextPart,
    TokenLogprob,
    TurnChoice,
    TurnMessage,
    TurnRequest,
    TurnRole,
    TurnTool,
    TurnUsage,
)
from control_svc.jobs.model import EngineDied
from svc_kit.errors import ModelNotFound, SchemaInvalid
from tests.e2e.conftest import Mortal
from tests.support.engine_log import FREED, assert_freed_at_once
from tests.support.services import Corral, wait_until_serving

pytestmark = pytest.mark.e2e
ENGINE = "inference_svc.engine_process.main"
WEATHER = TurnTool(
    "get_weather",
    "Get the weather of a city",
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
)
PERSON = JsonSchema(
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},'
    ' "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"]}'
)


@dataclass
class Turn:
    """What came out of a turn, or of a part of it."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Names and arguments."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    usage: TurnUsage | None = None

    def add(self, delta: Delta) -> None:
        """The next piece."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        for piece in delta.calls:
            name, arguments = self.calls.get(piece.index, ("", ""))
            self.calls[piece.index] = (name + piece.name, arguments + piece.arguments)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs

    def is_end_of(self, other: "Turn") -> bool:
        """Whether each of its texts is the end of the other's."""
        return all(text.endswith(mine) for mine, text in self._beside(other))

    def _beside(self, other: "Turn") -> list[tuple[str, str]]:
        calls = {index: "".join(call) for index, call in other.calls.items()}
        mine = {index: "".join(call) for index, call in self.calls.items()}
        assert mine.keys() <= calls.keys()
        return [
            (self.content, other.content),
            (self.reasoning, other.reasoning),
            *((text, calls[index]) for index, text in mine.items()),
        ]

    @property
    def said(self) -> tuple[Any, ...]:
        """What a reader sees of it."""
        return self.content, self.reasoning, self.calls, self.token_ids, self.logprobs


@pytest.fixture
async def client(up: Corral) -> AsyncIterator[RpcTurnClient]:
    """The control service's client of the shared server."""
    async with grpc.aio.insecure_channel(up.target) as channel:
        yield RpcTurnClient(channel, None, timeout_s=20)


def a_turn(
    text: str, *, logprobs: bool = False, stop: str = "", ignores_end: bool = False, **about: Any
) -> TurnRequest:
    """A turn that comes out the same each time.

    Without log probabilities, what a grammar leaves no choice about is not sampled.
    """
    options = generation.GenerationOptions(deterministic=True)
    options.sampling.temperature = 0.9
    options.stopping.max_tokens = 80
    options.stopping.ignore_eos = ignores_end
    if logprobs:
        options.output.top_logprobs = 2
    if stop:
        options.stopping.stop.append(stop)
    message = TurnMessage(TurnRole.USER, (TextPart(text),))
    defaults = {"project": "p", "model": "", "seed": 7, "options": options.SerializeToString()}
    return TurnRequest(**{**defaults, "messages": (message,), **about})


async def events_of(client: RpcTurnClient, turn: TurnRequest) -> list[Any]:
    """All events, whose order is checked."""
    events = [event async for event in client.run(turn)]
    first, *middle, finished, done = events
    assert isinstance(first, Started)
    assert all(isinstance(event, Delta) for event in middle)
    assert isinstance(finished, Finished)
    assert isinstance(done, Done)
    return events


def states(events: Sequence[Any]) -> Iterator[Turn]:
    """What had come out after each delta."""
    turn = Turn()
    yield deepcopy(turn)
    for event in events:
        if isinstance(event, Delta):
            turn.add(event)
            yield deepcopy(turn)


def together(events: Sequence[Any], whole: Turn | None = None) -> Turn:
    """The events of a turn, behind those before it was broken off."""
    turn = whole or Turn()
    for event in events:
        match event:
            case Delta():
                turn.add(event)
            case Finished(reason):
                turn.reason = reason
            case Done(usage):
                turn.usage = usage
    return turn


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            a_turn("What is 17 plus 25?", enable_thinking=True, logprobs=True), id="thought"
        ),
        pytest.param(
            a_turn("What is the weather in Paris and in Rome?", tools=(WEATHER,), logprobs=True),
            id="calls",
        ),
        pytest.param(
            a_turn("What is the weather in Rome?", tools=(WEATHER,), enable_thinking=True), id="all"
        ),
        pytest.param(
            a_turn(
                "What is the weather in Oslo?",
                tools=(WEATHER,),
                choice=TurnChoice(ChoiceMode.REQUIRED),
            ),
            id="required",
        ),
        pytest.param(a_turn("Describe Ann, who is 31.", format=PERSON), id="schema"),
        pytest.param(a_turn("Tell me a story.", max_tokens=30), id="cut"),
        pytest.param(a_turn("Tell me a story.", stop=" the "), id="stopped"),
    ],
)
async def test_a_turn_goes_on_behind_each_of_its_tokens(
    client: RpcTurnClient, asked: TurnRequest
) -> None:
    """Nothing is missing, nothing comes twice, and the numbers of tokens are those of a whole."""
    events = await events_of(client, asked)
    whole = together(events)
    assert whole.usage is not None
    sent = {len(so_far.token_ids): so_far for so_far in states(events)}
    before = whole
    for cut in range(len(whole.token_ids) + 1):
        resumed = replace(asked, token_ids=tuple(whole.token_ids[:cut]))
        rest_events = await events_of(client, resumed)
        rest = together(rest_events)
        assert rest.is_end_of(before)
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.logprobs == whole.logprobs[cut:]
        if cut in sent:
            assert together(rest_events, sent[cut]).said == whole.said
        assert rest.reason is whole.reason
        assert rest.usage is not None
        assert rest.usage._replace(cached_tokens=0) == whole.usage._replace(cached_tokens=0)
        before = rest


async def test_errors_are_those_of_the_service(client: RpcTurnClient) -> None:
    """A model that is not there is named; so is a field, as callers of OpenAI's know it."""
    with pytest.raises(ModelNotFound):
        await events_of(client, a_turn("Hello", model="nothing"))
    with pytest.raises(SchemaInvalid, match="'response_format'"):
        await events_of(client, a_turn("Hello", format=JsonSchema('{"type": "objct"}')))


async def test_a_turn_outlives_its_engine(mortal: Mortal) -> None:
    """The death is told as one, and what is resumed afterwards joins what came before."""
    asked = a_turn("Tell me a story.", ignores_end=True, max_tokens=4000)
    async with grpc.aio.insecure_channel(mortal.target) as channel:
        client = RpcTurnClient(channel, None, timeout_s=20)
        before = await until_killed(mortal, client, asked)
        await asyncio.to_thread(wait_until_serving, mortal.target)
        limited = replace(asked, max_tokens=len(before.token_ids) + 20)
        whole = together(await events_of(client, limited))
        resumed = replace(limited, token_ids=tuple(before.token_ids))
        rest = await events_of(client, resumed)

    assert together(rest, before).said == whole.said
    assert len(before.token_ids) == limited.max_tokens


async def until_killed(mortal: Mortal, client: RpcTurnClient, asked: TurnRequest) -> Turn:
    """What came out of a turn before its engine, killed after the first tokens, was dead."""
    turn, engine = Turn(), mortal.program.member(ENGINE).pid

    async def read() -> None:
        async for event in client.run(asked):
            if isinstance(event, Delta):
                turn.add(event)
                with suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)

    with pytest.raises(EngineDied):
        await read()
    return turn


async def test_a_turn_that_nobody_reads_any_more_is_cancelled(mortal: Mortal) -> None:
    """Its slot is free at the next step."""
    mark = mortal.program.bookmark()
    async with grpc.aio.insecure_channel(mortal.target) as channel:
        client = RpcTurnClient(channel, None, timeout_s=20)
        async with aclosing(client.run(a_turn("Hello", ignores_end=True, max_tokens=9000))) as run:
            async for event in run:
                if isinstance(event, Delta):
                    break
        freed = await mortal.program.line(FREED, after=mark, service="engine")

    assert_freed_at_once(freed, "decode")
