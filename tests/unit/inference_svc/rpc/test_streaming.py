"""Conversion of engine events to the messages of a stream."""

from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from corral.inference.v1.session_pb2 import SessionTurn
from prometheus_client import CollectorRegistry

from inference_svc.chat.divergence_text import PromptText
from inference_svc.chat.parsers.formats import ReasoningFormat, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.engine import events
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.limits.limiter import LimitReservation
from inference_svc.rpc.chat_turn import ChatTurn
from inference_svc.rpc.generation_span import GenerationSpan
from inference_svc.rpc.streaming import (
    AcceptedRequest,
    ResponseT,
    TextTurn,
    Turn,
    stream_responses,
)
from inference_svc.sessions import SessionKey, SessionLog
from inference_svc.usage import Counts, UsageKey
from svc_kit.errors import DecodeFailed, TemplateFailed
from svc_kit.metrics import EngineMetrics
from tests.support.sequences import make_request
from tests.support.turns import TOOLS

HERMES = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'

NO_SPAN = GenerationSpan("chat", service_pb.ChatRequest())


class FakeGeneration:
    """An output stream of `choices`; counts cancellations and records usage."""

    def __init__(self, choices: int = 1) -> None:
        self.num_cancelled = 0
        self.recorded: list[tuple[str, str, Counts]] = []
        self.stream = OutputStream(
            "req_1",
            tuple(range(choices)),
            ReaderLimits(1000, 60.0),
            set_paused=lambda _: None,
            cancel=self._cancel,
        )
        self.accepted_request = AcceptedRequest(
            [make_request(i) for i in range(choices)],
            self.stream,
            2,
            UsageKey("red", "key_1", "demo"),
            LimitReservation(0),
            SessionKey("s1", "mine"),
            label="label_1",
        )
        self.registry = CollectorRegistry()
        self.sessions = SessionLog(EngineMetrics(self.registry).divergences)

    def count(self, key: UsageKey, counts: Counts) -> None:
        self.recorded.append((key.project, key.model, counts))

    def stream_responses(self, turns: Sequence[Turn[ResponseT]]) -> AsyncIterator[ResponseT]:
        accepted = self.accepted_request
        return stream_responses(accepted, turns, self.count, self.sessions, NO_SPAN)

    def turn(self) -> SessionTurn:
        """The only one that is remembered."""
        (ended,) = self.sessions.requests(project="red", session_id="s1")
        return ended.turn

    def _cancel(self) -> None:
        self.num_cancelled += 1

    def deliver_text(self, text: str, choice: int = 0) -> None:
        self.stream.deliver(events.Delta(choice, (text,), (7,), ()))

    def deliver_tokens(self, *pieces: bytes) -> None:
        """Deliver tokens with these bytes and their log probabilities."""
        detokenizer = Detokenizer()
        for number, piece in enumerate(pieces):
            chosen = events.ChosenLogprob(
                events.Logprob(number, piece or b"<eos>", -number), (), text=piece
            )
            text = detokenizer.push(piece)
            self.stream.deliver(events.Delta(0, (text,), (number,), (chosen,)))

    def finish(
        self,
        choice: int = 0,
        reason: events.FinishReason = events.FinishReason.STOP,
        stop_text: str | None = None,
    ) -> None:
        """Finish a choice with three output tokens, two of them reasoning."""
        timings = events.Timings(0.5, 0.25, 2.0)
        self.stream.deliver(events.Finished(choice, reason, stop_text, 2, 3, timings, 0, 0, 2))


def text_turns(choices: int = 1, *, token_ids: bool = False) -> list[TextTurn]:
    """A turn of raw text per choice."""
    return [TextTurn(i, token_ids=token_ids) for i in range(choices)]


def chat_turns(max_calls: int | None = None) -> list[ChatTurn]:
    parser = TurnParser(HERMES, tools=TOOLS, new_call_id=lambda: "call_1")
    return [ChatTurn(0, parser, token_ids=False, max_calls=max_calls)]


async def collect(
    generation: FakeGeneration,
    turns: Sequence[Turn[ResponseT]],
    received: list[ResponseT] | None = None,
) -> list[ResponseT]:
    """Return all responses; `received` has those before an error."""
    received = [] if received is None else received
    async for response in generation.stream_responses(turns):
        received.append(response)
    assert [response.sequence_number for response in received] == list(range(len(received)))
    return received


async def collect_chat(
    generation: FakeGeneration, max_calls: int | None = None
) -> tuple[list[service_pb.ChatDelta], pb.ChoiceFinished, pb.Done]:
    _, *deltas, finished, done = await collect(generation, chat_turns(max_calls))
    assert all(response.HasField("delta") for response in deltas)
    return [response.delta for response in deltas], finished.finished, done.done


async def test_events_come_in_order() -> None:
    """Accepted, started, deltas, finished, done."""
    generation = FakeGeneration()
    generation.stream.deliver(events.Started(0, 3, 2, events.CacheSource.LIVE))
    generation.deliver_text("a")
    generation.finish()

    responses = await collect(generation, text_turns())

    kinds = ["accepted", "started", "delta", "finished", "done"]
    assert [response.WhichOneof("event") for response in responses] == kinds
    accepted, started = responses[0].accepted, responses[1].started
    delta, finished, done = responses[2].delta, responses[3].finished, responses[4].done
    assert (accepted.request_id, accepted.queue_position, accepted.model) == ("req_1", 2, "demo")
    assert (started.cached_tokens, started.cache_source) == (2, pb.CACHE_SOURCE_LIVE)
    assert delta == service_pb.TextDelta(text="a", num_tokens=1)
    assert (finished.reason, finished.stop_token_id) == (pb.FINISH_REASON_STOP, 2)
    assert (done.usage.completion_tokens, done.usage.cached_tokens) == (3, 2)
    assert done.usage.cache_source == pb.CACHE_SOURCE_LIVE
    assert done.timings.queue.ToTimedelta().total_seconds() == 0.5


class CharacterVocabulary:
    """Tokens are the numbers of characters."""

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return "".join(map(chr, tokens))


class StuckText(PromptText):
    async def describe(
        self, divergence: events.Divergence, tokens: "array[int]"
    ) -> events.DivergenceText:
        raise TemplateFailed(problem="it is stuck")


LEFT = events.Divergence(1, 300, array("i", map(ord, "Bye")))
"""Where a prompt differs from the cached text "ABye"; also its second token begins with B."""


async def test_the_text_where_a_prompt_differs_from_the_cached_one_is_in_the_usage() -> None:
    """What is common in the first token is not shown; media have no text."""
    generation = FakeGeneration()
    text = PromptText(CharacterVocabulary())
    first = replace(generation.accepted_request.requests[0], prompt=array("i", [65, 66, -7, 67]))
    generation.accepted_request = replace(generation.accepted_request, text=text, requests=[first])
    generation.stream.deliver(events.Started(0, 3, 1, divergence=LEFT))
    generation.finish()

    usage = (await collect(generation, text_turns()))[-1].done.usage

    assert usage.divergence == pb.CacheDivergence(
        token_index=1, lost_tokens=300, field="prompt", cached_text="ye", prompt_text="C"
    )
    assert generation.stream.divergence == events.DivergenceText(1, 300, "prompt", "ye", "C")
    turn, place = generation.turn(), {"model": "demo", "place": "prompt"}
    assert turn.usage.divergence == pb.CacheDivergence(
        token_index=1, lost_tokens=300, field="prompt"
    )
    assert generation.registry.get_sample_value("corral_prefix_divergences_total", place) == 1


async def test_a_text_that_cannot_be_found_fails_nothing() -> None:
    generation = FakeGeneration()
    text = StuckText(CharacterVocabulary())
    generation.accepted_request = replace(generation.accepted_request, text=text)
    generation.stream.deliver(events.Started(0, 3, 1, divergence=LEFT))
    generation.finish()

    usage = (await collect(generation, text_turns()))[-1].done.usage

    assert (usage.cached_tokens, usage.HasField("divergence")) == (1, False)
    turn = generation.turn()
    assert turn.usage.divergence == pb.CacheDivergence(token_index=1, lost_tokens=300)


async def test_a_finished_request_is_a_turn_of_its_session() -> None:
    """With the usage and timings that its caller was told."""
    generation = FakeGeneration()
    generation.stream.deliver(events.Started(0, 3, 1, events.CacheSource.LIVE))
    generation.deliver_text("a")
    generation.finish()
    done = (await collect(generation, text_turns()))[-1].done
    turn = generation.turn()

    assert (turn.request_id, turn.label, turn.error_reason) == ("req_1", "label_1", "")
    assert (turn.usage, turn.timings) == (done.usage, done.timings)
    assert turn.finish_reason == pb.FINISH_REASON_STOP


async def test_a_request_that_ends_early_is_a_turn_with_its_reason() -> None:
    """And the tokens that it had generated; a client that leaves behind the last event has all."""
    failed, left, ended = FakeGeneration(), FakeGeneration(), FakeGeneration()
    failed.stream.deliver(events.Started(0, 3, 1))
    failed.deliver_text("a")
    failed.stream.fail(DecodeFailed(request_id="r"))
    with pytest.raises(DecodeFailed):
        await collect(failed, text_turns())
    stream = left.stream_responses(text_turns())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    ended.stream.deliver(events.Started(0, 3, 1))
    ended.finish()
    stream = ended.stream_responses(text_turns())
    while not (await anext(stream)).HasField("done"):
        pass
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
    turns = [each.turn() for each in (failed, left, ended)]

    assert [(turn.error_reason, turn.usage.completion_tokens) for turn in turns] == [
        ("DECODE_FAILED", 1),
        ("CALLER_CANCELLED", 0),
        ("", 3),
    ]
    assert not turns[0].timings.HasField("first_token")


async def test_pending_deltas_of_a_choice_become_one_message() -> None:
    """Texts and token ids are joined; each choice has its own message."""
    generation = FakeGeneration(2)
    generation.deliver_text("a")
    generation.deliver_text("x", 1)
    generation.deliver_text("b")
    generation.finish(0)
    generation.finish(1)

    responses = await collect(generation, text_turns(2, token_ids=True))

    assert [response.delta for response in responses if response.HasField("delta")] == [
        service_pb.TextDelta(index=0, text="ab", num_tokens=2, token_ids=[7, 7]),
        service_pb.TextDelta(index=1, text="x", num_tokens=1, token_ids=[7]),
    ]


async def test_usage_is_the_sum_over_the_choices() -> None:
    """The prompt is counted once."""
    generation = FakeGeneration(2)
    generation.finish(0)
    generation.finish(1)

    done = (await collect(generation, text_turns(2)))[-1].done

    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 6)


async def test_each_choice_counts_what_follows_its_own_resumed_tokens() -> None:
    generation = FakeGeneration(2)
    first, second = generation.accepted_request.requests
    requests = [first, replace(second, resumed=array("i", [7, 7]))]
    generation.accepted_request = replace(generation.accepted_request, requests=requests)
    generation.stream.deliver(events.Started(0, 3, 0))
    generation.finish(0)
    generation.finish(1)
    await collect(generation, text_turns(2))

    assert [counts.completion_tokens for _, _, counts in generation.recorded] == [3 + 1]


async def test_usage_is_recorded_when_the_request_ends() -> None:
    """By project and model, summed over the choices; the prompt is counted once."""
    generation = FakeGeneration(2)
    generation.stream.deliver(events.Started(0, 3, 2))
    generation.stream.deliver(events.Started(1, 4, 3))
    for choice in (0, 1):
        generation.deliver_text("a", choice)
        generation.finish(choice)
    await collect(generation, text_turns(2))

    assert generation.recorded == [("red", "demo", Counts(1, 3, 2, 6))]


async def test_resumed_tokens_are_not_recorded_again() -> None:
    """They were recorded for the request that generated them."""
    generation = FakeGeneration()
    resumed = replace(generation.accepted_request.requests[0], resumed=array("i", [7, 7]))
    generation.accepted_request = replace(generation.accepted_request, requests=[resumed])
    generation.stream.deliver(events.Started(0, 3, 0))
    generation.finish()
    await collect(generation, text_turns())

    assert [counts.completion_tokens for _, _, counts in generation.recorded] == [1]


@pytest.mark.parametrize(
    ("started", "recorded"), [(True, [("red", "demo", Counts(1, 3, 0, 2))]), (False, [])]
)
async def test_the_usage_of_a_failed_request_is_what_it_generated(
    started: bool, recorded: list[tuple[str, str, Counts]]
) -> None:
    """Nothing is recorded if the request never started."""
    generation = FakeGeneration()
    if started:
        generation.stream.deliver(events.Started(0, 3, 0))
        generation.deliver_text("a")
        generation.deliver_text("b")
    generation.stream.deliver(events.Failed(0, DecodeFailed(request_id="req_1")))
    with pytest.raises(DecodeFailed):
        await collect(generation, text_turns())

    assert generation.recorded == recorded


async def test_closing_a_stream_cancels_the_request() -> None:
    """Before the engine sends an event."""
    generation = FakeGeneration()
    stream = generation.stream_responses(text_turns())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator

    assert generation.num_cancelled == 1


async def test_an_error_ends_the_stream_after_its_text() -> None:
    """Text that was generated before the error is sent."""
    generation = FakeGeneration()
    generation.deliver_text("a")
    generation.stream.fail(DecodeFailed(request_id="r"))
    received: list[service_pb.GenerateResponse] = []
    with pytest.raises(DecodeFailed):
        await collect(generation, text_turns(), received)

    assert [response.WhichOneof("event") for response in received] == ["accepted", "delta"]


async def test_reasoning_and_tool_calls_are_separate_fields() -> None:
    generation = FakeGeneration()
    for piece in ("<think>hm", "</think>", CALL):
        generation.deliver_text(piece)
    generation.finish()

    (delta,), finished, _ = await collect_chat(generation)

    assert delta.reasoning == "hm"
    assert [(call.name, call.arguments_json) for call in delta.tool_calls] == [("f", '{"a": 1}')]
    assert finished.reason == pb.FINISH_REASON_TOOL_CALLS


async def test_usage_is_recorded_before_the_caller_is_told() -> None:
    """A process that is killed in between has counted it; it is counted once."""
    generation = FakeGeneration()
    generation.stream.deliver(events.Started(0, 3, 0))
    generation.deliver_text("a")
    generation.finish()
    stream = generation.stream_responses(text_turns())
    async for response in stream:
        if response.HasField("done"):
            recorded = [*generation.recorded]

    assert len(recorded) == 1
    assert generation.recorded == recorded


async def test_reasoning_is_parsed_in_joined_deltas() -> None:
    """A slow reader receives reasoning and content in one delta; the engine counts the tokens."""
    generation = FakeGeneration()
    for text in ("<think>", "one", "two", "</think>", "three"):
        generation.deliver_text(text)
    generation.finish()
    (delta,), _, done = await collect_chat(generation)
    assert (delta.reasoning, delta.content, delta.num_tokens) == ("onetwo", "three", 5)
    assert done.usage.reasoning_tokens == 2


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"Hi", b" all", b""], [(0, b"Hi"), (1, b" all")]),
        ([b"<think>", b"hm", b"</think>", b"\n\n", b" Yes", b"."], [(4, b"Yes"), (5, b".")]),
        ([b"One.\n\n", CALL.encode()], [(0, b"One.")]),
        ([b"a", b".\n", b"b"], [(0, b"a"), (1, b".\n"), (2, b"b")]),
        ([b"a <", b" b"], [(0, b"a <"), (1, b" b")]),
        ([b"a<tool", b"_call>" + CALL.encode()[11:]], [(0, b"a")]),
        ([b" \xf0\x9f", b"\x98\x80", b"!"], [(0, b" \xf0\x9f"), (1, b"\x98\x80"), (2, b"!")]),
        (
            [b"<think>x</think>", b" \xf0\x9f", b"\x98", b"\x80"],
            [(1, b"\xf0\x9f"), (2, b"\x98"), (3, b"\x80")],
        ),
    ],
)
async def test_log_probabilities_are_those_of_the_content(
    pieces: list[bytes], expected: list[tuple[int, bytes]]
) -> None:
    """Tokens of reasoning, calls and markers have none, nor has the token that ends the turn. Of a
    token that is content in part only that part is its text."""
    generation = FakeGeneration()
    generation.deliver_tokens(*pieces)
    generation.finish()

    deltas, _, _ = await collect_chat(generation)
    chosen = [entry.chosen for delta in deltas for entry in delta.logprobs]

    assert [(token.token_id, token.token) for token in chosen] == expected
    assert [token.logprob for token in chosen] == [-number for number, _ in expected]
    assert "".join(delta.content for delta in deltas).encode() == b"".join(
        token for _, token in expected
    )


async def test_pending_pieces_of_a_tool_call_are_joined() -> None:
    """The delta has one tool call with the complete arguments."""
    generation = FakeGeneration()
    for character in CALL:
        generation.deliver_text(character)
    generation.finish()

    (delta,), _, _ = await collect_chat(generation)

    assert [(call.name, call.arguments_json) for call in delta.tool_calls] == [("f", '{"a": 1}')]


@pytest.mark.parametrize("end", ["", "\nDone."])
async def test_a_call_that_the_model_closed_is_not_cut_off(end: str) -> None:
    """Even if its arguments are an object that is not closed."""
    generation = FakeGeneration()
    generation.deliver_text(CALL.replace('{"a": 1}}', "{x") + end)
    generation.finish()

    deltas, finished, _ = await collect_chat(generation)

    assert [call.arguments_json for delta in deltas for call in delta.tool_calls] == ["{x"]
    assert finished.reason == pb.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize(
    ("size", "reason", "stop_text", "arguments"),
    [
        (len(CALL), events.FinishReason.LENGTH, None, ['{"a": 1}']),
        (-15, events.FinishReason.LENGTH, None, ['{"a": ']),
        (-15, events.FinishReason.STOP, " ", ['{"a": ']),
        (-15, events.FinishReason.STOP, None, ['{"a": ']),
        (22, events.FinishReason.STOP, None, []),
    ],
)
async def test_the_finish_reason_of_a_call_that_is_cut_off_is_length(
    size: int, reason: events.FinishReason, stop_text: str | None, arguments: list[str]
) -> None:
    """Whether the limit, a stop text or the model itself cut it: it must not look complete."""
    generation = FakeGeneration()
    generation.deliver_text(CALL[:size])
    generation.finish(reason=reason, stop_text=stop_text)

    deltas, finished, _ = await collect_chat(generation)

    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert [call.arguments_json for delta in deltas for call in delta.tool_calls] == arguments
    assert "".join(delta.content for delta in deltas) == ""


async def test_tool_calls_beyond_the_maximum_are_dropped() -> None:
    """A turn without parallel calls has one call."""
    generation = FakeGeneration()
    generation.deliver_text(CALL + CALL)
    generation.finish()

    deltas, _, _ = await collect_chat(generation, max_calls=1)

    assert {call.index for delta in deltas for call in delta.tool_calls} == {0}


async def test_timings_derive_from_queue_prompt_and_decode_times() -> None:
    """The first token follows queue and prompt; the remaining time is divided among the others."""
    generation = FakeGeneration()
    generation.finish()
    timings = (await collect(generation, text_turns()))[-1].done.timings

    assert timings.first_token.ToMilliseconds() == 750
    assert timings.between_tokens.ToMilliseconds() == 1000
    assert timings.tokens_per_second == 1.0
    assert timings.completion_tokens == 3


async def test_timings_do_not_count_resumed_tokens() -> None:
    """A single new token has no time between tokens and no rate."""
    generation = FakeGeneration()
    resumed = replace(generation.accepted_request.requests[0], resumed=array("i", [7, 7]))
    generation.accepted_request = replace(generation.accepted_request, requests=[resumed])
    generation.finish()
    timings = (await collect(generation, text_turns()))[-1].done.timings

    assert timings.completion_tokens == 1
    assert not timings.HasField("between_tokens")
    assert timings.tokens_per_second == 0


async def test_draft_tokens_are_summed_over_the_choices() -> None:
    generation = FakeGeneration(2)
    timings = events.Timings(0.0, 0.0, 0.0)
    for choice, (drafted, accepted) in enumerate([(5, 3), (4, 4)]):
        finished = events.Finished(
            choice, events.FinishReason.STOP, None, 2, 9, timings, drafted, accepted
        )._replace(by_draft_model=events.DraftTokens(2, 1 + choice))
        generation.stream.deliver(finished)
    usage = (await collect(generation, text_turns(2)))[-1].done.usage

    assert (usage.draft_tokens, usage.accepted_draft_tokens) == (9, 7)
    assert (usage.draft_model_tokens, usage.accepted_draft_model_tokens) == (4, 3)
