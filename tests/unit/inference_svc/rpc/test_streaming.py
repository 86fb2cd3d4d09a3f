"""From engine events to the messages of a stream."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.chat.parsers import ReasoningFormat, ToolCallFormat, TurnFormat, TurnParser
from inference_svc.engine import events
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.rpc.streaming import (
    AcceptedRequest,
    ChatTurn,
    Event,
    TextTurn,
    Turn,
    stream_events,
)
from inference_svc.usage import Counts
from svc_kit.errors import DecodeFailed
from tests.support.sequences import make_request
from tests.support.turns import TOOLS

HERMES = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


class Running:
    """A generation of some choices, with a count of cancels."""

    def __init__(self, choices: int = 1) -> None:
        self.cancelled = 0
        self.used: list[tuple[str, str, Counts]] = []
        self.stream = OutputStream(
            "req_1",
            tuple(range(choices)),
            ReaderLimits(1000, 60.0),
            set_paused=lambda _: None,
            cancel=self._cancel,
        )
        self.admitted = AcceptedRequest(
            [make_request(i) for i in range(choices)], self.stream, 2, "demo", "red"
        )

    def count(self, project: str, model: str, counts: Counts) -> None:
        """Remember what was used."""
        self.used.append((project, model, counts))

    def _cancel(self) -> None:
        self.cancelled += 1

    def say(self, text: str, choice: int = 0) -> None:
        """One token of text."""
        self.stream.deliver(events.Delta(choice, text, (7,), ()))

    def end(self, choice: int = 0, reason: events.FinishReason = events.FinishReason.STOP) -> None:
        """The end of a choice after three tokens."""
        timings = events.Timings(0.5, 0.25, 2.0)
        self.stream.deliver(events.Finished(choice, reason, None, 2, 3, timings))


def texts(choices: int = 1, *, token_ids: bool = False) -> list[TextTurn]:
    """Raw turns."""
    return [TextTurn(i, token_ids=token_ids) for i in range(choices)]


def a_chat(max_calls: int | None = None) -> list[ChatTurn]:
    """One turn that may call tools."""
    parser = TurnParser(HERMES, tools=TOOLS, new_call_id=lambda: "call_1")
    return [ChatTurn(0, parser, token_ids=False, max_calls=max_calls)]


async def collect(
    running: Running, turns: Sequence[Turn], into: list[Event] | None = None
) -> list[Event]:
    """All events; those before an error are in `into`."""
    seen = [] if into is None else into
    async for event in stream_events(running.admitted, turns, running.count):
        seen.append(event)
    return seen


async def test_events_come_in_order() -> None:
    """Accepted, started, deltas, finished, done."""
    running = Running()
    running.stream.deliver(events.Started(0, 3, 2, events.CacheSource.LIVE))
    running.say("a")
    running.end()

    accepted, started, delta, finished, done = await collect(running, texts())

    assert isinstance(accepted, pb.Accepted)
    assert (accepted.request_id, accepted.queue_position, accepted.model) == ("req_1", 2, "demo")
    assert isinstance(started, pb.Started)
    assert (started.cached_tokens, started.cache_source) == (2, pb.CACHE_SOURCE_LIVE)
    assert isinstance(delta, service_pb.TextDelta)
    assert (delta.text, delta.num_tokens, list(delta.token_ids)) == ("a", 1, [])
    assert isinstance(finished, pb.ChoiceFinished)
    assert (finished.reason, finished.stop_token_id) == (pb.FINISH_REASON_STOP, 2)
    assert isinstance(done, pb.Done)
    assert (done.usage.completion_tokens, done.usage.cached_tokens) == (3, 2)
    assert done.usage.cache_source == pb.CACHE_SOURCE_LIVE
    assert done.timings.queue.ToTimedelta().total_seconds() == 0.5


async def test_pending_deltas_of_a_choice_become_one_message() -> None:
    """Text, ids and counts are joined; choices stay apart."""
    running = Running(2)
    running.say("a")
    running.say("x", 1)
    running.say("b")
    running.end(0)
    running.end(1)

    deltas = [
        event
        for event in await collect(running, texts(2, token_ids=True))
        if isinstance(event, service_pb.TextDelta)
    ]

    assert [(delta.index, delta.text, list(delta.token_ids)) for delta in deltas] == [
        (0, "ab", [7, 7]),
        (1, "x", [7]),
    ]


async def test_usage_sums_over_the_choices() -> None:
    """The prompt counts once."""
    running = Running(2)
    running.end(0)
    running.end(1)

    done = (await collect(running, texts(2)))[-1]

    assert isinstance(done, pb.Done)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 6)


async def test_what_a_request_used_is_counted_once_it_ends() -> None:
    """By project and model, over all choices; the prompt once."""
    running = Running(2)
    running.stream.deliver(events.Started(0, 3, 2))
    running.stream.deliver(events.Started(1, 4, 3))
    for choice in (0, 1):
        running.say("a", choice)
        running.end(choice)
    await collect(running, texts(2))

    assert running.used == [("red", "demo", Counts(1, 3, 2, 6))]


async def test_what_was_resumed_is_not_used_again() -> None:
    """Its tokens were counted by the request that generated them."""
    running = Running()
    resumed = replace(running.admitted.requests[0], resumed=array("i", [7, 7]))
    running.admitted = replace(running.admitted, requests=[resumed])
    running.stream.deliver(events.Started(0, 3, 0))
    running.end()
    await collect(running, texts())

    assert [counts.completion_tokens for _, _, counts in running.used] == [1]


@pytest.mark.parametrize(
    ("began", "used"), [(True, [("red", "demo", Counts(1, 3, 0, 2))]), (False, [])]
)
async def test_a_request_that_ends_early_used_what_it_generated(
    began: bool, used: list[tuple[str, str, Counts]]
) -> None:
    """A client that goes away, or an engine that fails; nothing where it never had a slot."""
    running = Running()
    if began:
        running.stream.deliver(events.Started(0, 3, 0))
        running.say("a")
        running.say("b")
    running.stream.deliver(events.Failed(0, DecodeFailed(request_id="req_1")))
    with pytest.raises(DecodeFailed):
        await collect(running, texts())

    assert running.used == used


async def test_leaving_a_stream_cancels_it() -> None:
    """Also before the first event from the engine."""
    running = Running()
    stream = stream_events(running.admitted, texts(), running.count)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator

    assert running.cancelled == 1


async def test_an_error_ends_the_stream_after_its_text() -> None:
    """What was said before is sent."""
    running = Running()
    running.say("a")
    running.stream.fail(DecodeFailed(request_id="r"))
    seen: list[Event] = []
    with pytest.raises(DecodeFailed):
        await collect(running, texts(), seen)

    assert [type(event).__name__ for event in seen] == ["Accepted", "TextDelta"]


async def test_thinking_and_calls_come_as_such() -> None:
    """The finish reason says that tools are called."""
    running = Running()
    for piece in ("<think>hm", "</think>", CALL):
        running.say(piece)
    running.end()

    received = await collect(running, a_chat())
    (delta,) = [event for event in received if isinstance(event, service_pb.ChatDelta)]
    (finished,) = [event for event in received if isinstance(event, pb.ChoiceFinished)]

    assert delta.reasoning == "hm"
    assert [(call.name, call.arguments_json) for call in delta.tool_calls] == [("f", '{"a": 1}')]
    assert finished.reason == pb.FINISH_REASON_TOOL_CALLS


async def test_tokens_of_thinking_count_however_they_travel() -> None:
    """A slow reader gets them together with what comes after, and pays for the same."""
    running = Running()
    for text in ("<think>", "one", "two", "</think>", "three"):
        running.say(text)
    running.end()
    said = await collect(running, a_chat())
    (delta,) = [event for event in said if isinstance(event, service_pb.ChatDelta)]
    assert (delta.reasoning, delta.content, delta.num_tokens) == ("onetwo", "three", 5)
    done = said[-1]
    assert isinstance(done, pb.Done)
    assert done.usage.reasoning_tokens == 2


async def test_pieces_of_a_call_that_travel_together_are_one() -> None:
    """Each piece would be an event of its own for a client."""
    running = Running()
    for character in CALL:
        running.say(character)
    running.end()

    received = await collect(running, a_chat())

    (delta,) = [event for event in received if isinstance(event, service_pb.ChatDelta)]
    assert [(call.name, call.arguments_json) for call in delta.tool_calls] == [("f", '{"a": 1}')]


async def test_a_length_stop_stays_one_with_calls_too() -> None:
    """A call that was cut off must not look complete."""
    running = Running()
    running.say(CALL)
    running.end(reason=events.FinishReason.LENGTH)

    received = await collect(running, a_chat())

    (finished,) = [event for event in received if isinstance(event, pb.ChoiceFinished)]
    assert finished.reason == pb.FINISH_REASON_LENGTH


async def test_calls_that_were_not_asked_for_are_left_out() -> None:
    """`parallel` false means one call a turn."""
    running = Running()
    running.say(CALL + CALL)
    running.end()

    received = await collect(running, a_chat(max_calls=1))

    calls = [
        call.index
        for event in received
        if isinstance(event, service_pb.ChatDelta)
        for call in event.tool_calls
    ]
    assert set(calls) == {0}


async def test_timings_tell_the_first_choices_pace() -> None:
    """The first token after queue and prompt, the others evenly over the rest."""
    running = Running()
    running.end()
    *_, done = await collect(running, texts())

    assert isinstance(done, pb.Done)
    timings = done.timings
    assert timings.first_token.ToMilliseconds() == 750
    assert timings.between_tokens.ToMilliseconds() == 1000
    assert timings.tokens_per_second == 1.0
    assert timings.completion_tokens == 3


async def test_resumed_tokens_took_no_time() -> None:
    """A pace is that of the tokens that were made now; of one alone there is none."""
    running = Running()
    resumed = replace(running.admitted.requests[0], resumed=array("i", [7, 7]))
    running.admitted = replace(running.admitted, requests=[resumed])
    running.end()
    *_, done = await collect(running, texts())

    assert isinstance(done, pb.Done)
    assert done.timings.completion_tokens == 1
    assert not done.timings.HasField("between_tokens")
    assert done.timings.tokens_per_second == 0


async def test_drafts_are_counted_over_the_choices() -> None:
    """How many there were, and how many stood."""
    running = Running(2)
    timings = events.Timings(0.0, 0.0, 0.0)
    for choice, (drafted, accepted) in enumerate([(5, 3), (4, 4)]):
        end = events.Finished(
            choice, events.FinishReason.STOP, None, 2, 9, timings, drafted, accepted
        )
        running.stream.deliver(end)
    *_, done = await collect(running, texts(2))

    assert isinstance(done, pb.Done)
    assert (done.usage.draft_tokens, done.usage.accepted_draft_tokens) == (9, 7)
