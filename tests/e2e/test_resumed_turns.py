"""Turns that are interrupted after each token and resumed, as after the end of an engine or of a
control process."""

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
from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.inference import turns
from control_svc.inference.generation_options import GenerationOptions
from control_svc.inference.turn_client import RpcTurnClient
from control_svc.jobs.model import EngineDied
from svc_kit.errors import ModelNotFound, SchemaInvalid
from tests.e2e.conftest import KillableCorral
from tests.support.engine_log import FREED, assert_freed_at_once
from tests.support.services import Corral, wait_until_serving
from tests.support.stored_files import MemoryFiles

pytestmark = pytest.mark.e2e
ENGINE = "inference_svc.engine_process.main"
WEATHER = turns.TurnTool(
    "get_weather",
    "Get the weather of a city",
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
)
PERSON = turns.JsonSchema(
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},'
    ' "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"]}'
)


@dataclass
class Turn:
    content: str = ""
    reasoning: str = ""
    calls: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Pairs of name and arguments."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generation.ChosenLogprob] = field(default_factory=list)
    held_logprobs: list[bytes] = field(default_factory=list)
    reason: turns.FinishReason | None = None
    usage: turns.TurnUsage | None = None

    def add(self, delta: ChatDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        for piece in delta.tool_calls:
            name, arguments = self.calls.get(piece.index, ("", ""))
            self.calls[piece.index] = (name + piece.name, arguments + piece.arguments_json)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.token_ids:
            self.held_logprobs += [each.SerializeToString() for each in delta.held_logprobs]
            del self.held_logprobs[: len(self.held_logprobs) - delta.num_held]

    def is_suffix_of(self, other: "Turn") -> bool:
        return all(text.endswith(suffix) for suffix, text in self._pairs(other))

    def _pairs(self, other: "Turn") -> list[tuple[str, str]]:
        calls = {index: "".join(call) for index, call in other.calls.items()}
        own_calls = {index: "".join(call) for index, call in self.calls.items()}
        assert own_calls.keys() <= calls.keys()
        return [
            (self.content, other.content),
            (self.reasoning, other.reasoning),
            *((text, calls[index]) for index, text in own_calls.items()),
        ]

    @property
    def visible(self) -> tuple[Any, ...]:
        return self.content, self.reasoning, self.calls, self.token_ids, self.logprobs


@pytest.fixture
async def client(up: Corral) -> AsyncIterator[RpcTurnClient]:
    """The turn client of the control service, for the shared server."""
    async with grpc.aio.insecure_channel(up.target) as channel:
        yield RpcTurnClient(channel, None, MemoryFiles(), timeout_s=20)


def make_turn(
    text: str, *, logprobs: bool = False, stop: str = "", ignore_eos: bool = False, **fields: Any
) -> turns.TurnRequest:
    """Return a deterministic turn.

    Without `logprobs`, tokens that the grammar determines are not sampled.
    """
    options = generation.GenerationOptions(deterministic=True)
    options.sampling.temperature = 0.9
    options.stopping.max_tokens = 80
    options.stopping.ignore_eos = ignore_eos
    if logprobs:
        options.output.top_logprobs = 2
    if stop:
        options.stopping.stop.append(stop)
    message = turns.TurnMessage(turns.TurnRole.USER, (turns.TextPart(text),))
    stored = GenerationOptions.from_bytes(options.SerializeToString())
    defaults = {"project": "p", "model": "", "seed": 7, "options": stored}
    return turns.TurnRequest(**{**defaults, "messages": (message,), **fields})


async def collect_events(client: RpcTurnClient, turn: turns.TurnRequest) -> list[Any]:
    """Collect all events and check their order."""
    events = [event async for event in client.run(turn)]
    first, *middle, reason, usage = events
    assert isinstance(first, turns.Started)
    assert all(isinstance(event, ChatDelta) for event in middle)
    assert isinstance(reason, turns.FinishReason)
    assert isinstance(usage, turns.TurnUsage)
    return events


def states_after_deltas(events: Sequence[Any]) -> Iterator[Turn]:
    turn = Turn()
    yield deepcopy(turn)
    for event in events:
        if isinstance(event, ChatDelta):
            turn.add(event)
            yield deepcopy(turn)


def combine(events: Sequence[Any], partial: Turn | None = None) -> Turn:
    """Combine the events of a turn, appended to the output before its interruption."""
    turn = partial or Turn()
    for event in events:
        match event:
            case ChatDelta():
                turn.add(event)
            case turns.FinishReason():
                turn.reason = event
            case turns.TurnUsage():
                turn.usage = event
    return turn


@pytest.mark.parametrize(
    "turn_request",
    [
        pytest.param(
            make_turn("What is 17 plus 25?", enable_thinking=True, logprobs=True), id="thought"
        ),
        pytest.param(
            make_turn("What is the weather in Paris and in Rome?", tools=(WEATHER,), logprobs=True),
            id="calls",
        ),
        pytest.param(
            make_turn("What is the weather in Rome?", tools=(WEATHER,), enable_thinking=True),
            id="all",
        ),
        pytest.param(
            make_turn(
                "What is the weather in Oslo?",
                tools=(WEATHER,),
                choice=turns.TurnChoice(turns.ChoiceMode.REQUIRED),
            ),
            id="required",
        ),
        pytest.param(make_turn("Describe Ann, who is 31.", format=PERSON), id="schema"),
        pytest.param(make_turn("Tell me a story.", max_tokens=30), id="cut"),
        pytest.param(make_turn("Tell me a story.", stop=" the "), id="stopped"),
        pytest.param(
            make_turn("Tell me a story.", stop=" the moon zzz", logprobs=True),
            id="log probabilities held back",
        ),
    ],
)
async def test_a_turn_can_be_resumed_after_each_token(
    client: RpcTurnClient, turn_request: turns.TurnRequest
) -> None:
    """The combined output and usage are those of an uninterrupted turn."""
    events = await collect_events(client, turn_request)
    full = combine(events)
    assert full.usage is not None
    sent = {len(so_far.token_ids): so_far for so_far in states_after_deltas(events)}
    before = full
    for cut in range(len(full.token_ids) + 1):
        held = tuple(sent[cut].held_logprobs) if cut in sent else ()
        resumed = replace(turn_request, token_ids=tuple(full.token_ids[:cut]), held_logprobs=held)
        tail_events = await collect_events(client, resumed)
        tail = combine(tail_events)
        assert tail.is_suffix_of(before)
        assert tail.token_ids == full.token_ids[cut:]
        assert tail.logprobs == full.logprobs[len(full.logprobs) - len(tail.logprobs) :]
        if cut in sent:
            assert combine(tail_events, sent[cut]).visible == full.visible
        assert tail.reason is full.reason
        assert tail.usage is not None
        assert tail.usage._replace(cached_tokens=0) == full.usage._replace(cached_tokens=0)
        before = tail


async def test_errors_are_those_of_the_service(client: RpcTurnClient) -> None:
    """Unknown models and invalid fields are named as in OpenAI's API."""
    with pytest.raises(ModelNotFound):
        await collect_events(client, make_turn("Hello", model="nothing"))
    with pytest.raises(SchemaInvalid, match="'response_format'"):
        await collect_events(
            client, make_turn("Hello", format=turns.JsonSchema('{"type": "objct"}'))
        )


async def test_a_turn_is_resumed_after_its_engine_was_killed(killable: KillableCorral) -> None:
    """The call fails as unavailable, and the resumed output continues the earlier one."""
    turn_request = make_turn("Tell me a story.", ignore_eos=True, max_tokens=4000)
    async with grpc.aio.insecure_channel(killable.target) as channel:
        client = RpcTurnClient(channel, None, MemoryFiles(), timeout_s=20)
        before = await run_until_killed(killable, client, turn_request)
        await asyncio.to_thread(wait_until_serving, killable.target)
        limited = replace(turn_request, max_tokens=len(before.token_ids) + 20)
        full = combine(await collect_events(client, limited))
        resumed = replace(limited, token_ids=tuple(before.token_ids))
        tail = await collect_events(client, resumed)

    assert combine(tail, before).visible == full.visible
    assert len(before.token_ids) == limited.max_tokens


async def run_until_killed(
    killable: KillableCorral, client: RpcTurnClient, turn_request: turns.TurnRequest
) -> Turn:
    """Return the output of a turn whose engine is killed after the first tokens."""
    turn, engine = Turn(), killable.program.member(ENGINE).pid

    async def read() -> None:
        async for event in client.run(turn_request):
            if isinstance(event, ChatDelta):
                turn.add(event)
                with suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)

    with pytest.raises(EngineDied):
        await read()
    return turn


async def test_an_abandoned_turn_is_cancelled(killable: KillableCorral) -> None:
    """Its slot is free at the next step."""
    mark = killable.program.bookmark()
    async with grpc.aio.insecure_channel(killable.target) as channel:
        client = RpcTurnClient(channel, None, MemoryFiles(), timeout_s=20)
        async with aclosing(
            client.run(make_turn("Hello", ignore_eos=True, max_tokens=9000))
        ) as run:
            async for event in run:
                if isinstance(event, ChatDelta):
                    break
        freed = await killable.program.line(FREED, after=mark, service="engine")

    assert_freed_at_once(freed, "decode")
