"""A chat whose replica is lost goes on at another one as if nothing had happened: for every family,
with calls, reasoning, stop texts and log probabilities, wherever its stream is cut."""

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.parser import make_finder
from inference_svc.engine.events import ChosenLogprob, Delta, FinishReason, Logprob, Timings
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sequence import SequenceOutput
from inference_svc.rpc.chat_turn import ChatTurn
from svc_kit.rpc.generation_progress import GenerationProgress
from tests.support.examples import every_nth, examples
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.sequences import make_request
from tests.support.turns import Golden
from tests.support.wire_events import done

NO_TIME = Timings(0.0, 0.0, 0.0)
MAX_CHARACTERS = 300


class Reply(NamedTuple):
    """What a model writes: the bytes of its tokens, which are numbered, and where it is cut off at
    its limit, if it is; else the last token ends the turn, and has the text `ending` if shown."""

    turn: Golden
    pieces: Sequence[bytes]
    at_limit: bool
    stops: tuple[str, ...]
    ending: bytes

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of a token, for `SequenceOutput`."""
        return self.pieces[token] if token < len(self.pieces) else self.ending

    def is_eog(self, token: int) -> bool:
        return token == len(self.pieces)

    @property
    def tokens(self) -> range:
        return range(len(self.pieces) + (not self.at_limit))

    def request(self, resumed: Sequence[int]) -> SequenceRequest:
        turn = self.turn
        return make_request(
            resumed=array("i", resumed),
            stop=self.stops,
            content=lambda: make_finder(turn.turn_format, turn.tools, turn.opens_in_reasoning),
            top_logprobs=0,
        )


def attempt(
    reply: Reply, request: pb.ChatRequest, sizes: Iterator[int]
) -> Iterator[pb.ChatResponse]:
    """What a replica answers, with so many tokens in each delta of its engine."""
    yield pb.ChatResponse(accepted={"seed": 1, "max_tokens": 8, "input_digest": "d"})
    resume = request.options.resume[0] if request.options.resume else None
    sequence = reply.request(resume.output_token_ids if resume else ())
    turn = ChatTurn(0, reply.turn.parser(), token_ids=True, stop=reply.stops)
    if resume:
        turn.replay(sequence, reply, resume.held_logprobs)
    output = SequenceOutput(sequence)
    has_ended = any([output.add(token, reply).is_end for token in sequence.resumed])
    waiting = iter(() if has_ended else reply.tokens[len(sequence.resumed) :])
    while not has_ended and (tokens := list(itertools.islice(waiting, next(sizes)))):
        delta = Delta(0, (), (), ())
        for token in tokens:
            added = output.add(token, reply)
            chosen = Logprob(token, reply.piece(token, special=True), -float(token))
            logprob = ChosenLogprob(chosen, (), text=added.piece)
            delta = delta.join(Delta(0, (added.text,), (token,), (logprob,)))
            if has_ended := added.is_end:
                break
        yield from turn.delta(delta)
    reason = FinishReason.STOP if has_ended else FinishReason.LENGTH
    text, finished = output.finish(reason, len(reply.tokens), NO_TIME)
    if text:
        yield from turn.delta(Delta(0, (text,), (), ()))
    yield from turn.finish(finished)
    yield pb.ChatResponse(finished={"reason": turn.reason(finished)})
    yield pb.ChatResponse(done=done())


class Seen(NamedTuple):
    """What a client has of a stream: its parts in order, tokens and log probabilities."""

    parts: list[tuple[str, str]]
    tokens: list[int]
    logprobs: list[tuple[int, bytes, float]]
    end: int


def seen(messages: Sequence[pb.ChatResponse]) -> Seen:
    parts: list[tuple[str, str]] = []

    def add(kind: str, text: str) -> None:
        if parts and parts[-1][0] == kind:
            text = parts.pop()[1] + text
        if text:
            parts.append((kind, text))

    for delta in (each.delta for each in messages):
        add("reasoning", delta.reasoning)
        add("content", delta.content)
        for call in delta.tool_calls:
            if call.id:
                parts.append((f"call {call.index}", f"{call.id} {call.name} "))
            add(f"call {call.index}", call.arguments_json)
    logprobs = [
        (each.chosen.token_id, each.chosen.token, each.chosen.logprob)
        for message in messages
        for each in message.delta.logprobs
    ]
    (end,) = (each.finished.reason for each in messages if each.HasField("finished"))
    tokens = [token for message in messages for token in message.delta.token_ids]
    return Seen(parts, tokens, logprobs, end)


def deliver(
    reply: Reply, cuts: Sequence[int], sizes: Sequence[int] = (1,)
) -> list[pb.ChatResponse]:
    """What a client gets of attempts that are lost after so many messages, and of a last one."""
    output = {"top_logprobs": 0, "token_ids": True}
    progress = GenerationProgress(pb.ChatRequest(options={"output": output}))
    delivered: list[pb.ChatResponse] = []
    for cut in (*cuts, None):
        request = pb.ChatRequest.FromString(progress.next_request().SerializeToString())
        messages = attempt(reply, request, itertools.cycle(sizes))
        for message in itertools.islice(messages, cut):
            delivered += progress.advance(message)
        assert not progress.obstacle
    return delivered


@st.composite
def replies(draw: st.DrawFn, family: str) -> Reply:
    """Golden turns, and random ones, split into tokens anywhere, also inside characters."""
    goldens = st.sampled_from([each for each in GOLDEN[family] if not each.inline_reasoning])
    turn = draw(goldens | random_turns(family))
    text = turn.text[:MAX_CHARACTERS]
    turn = turn._replace(text=text, inline_reasoning=False)
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data))), max_size=30)))
    pieces = [data[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(data)])]
    parts = st.builds(
        lambda at, size: text[at : at + size] or "\n", st.integers(0, len(text)), st.integers(1, 4)
    )
    stops = draw(st.lists(parts, max_size=2))
    ending = draw(st.sampled_from([b"", b"<", b"\n"]))
    return Reply(turn, pieces, draw(st.booleans()), tuple(stops), ending)


@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(8), deadline=None)
@given(st.data())
def test_a_chat_that_is_cut_anywhere_equals_the_undisturbed_one(
    family: str, data: st.DataObject
) -> None:
    """Twice, with tokens in groups of any sizes."""
    reply = data.draw(replies(family))
    undisturbed = deliver(reply, ())
    expected = seen(undisturbed)
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    second = data.draw(st.integers(0, 12))
    for cut in range(len(undisturbed)):
        assert seen(deliver(reply, (cut,))) == expected
        assert seen(deliver(reply, (cut, second), sizes)) == expected


@pytest.mark.parametrize("family", GOLDEN)
def test_a_golden_turn_that_is_cut_behind_a_character_is_the_same(family: str) -> None:
    """With a token for each character."""
    for turn in GOLDEN[family]:
        text = turn.text[:MAX_CHARACTERS]
        reply = Reply(turn._replace(text=text), [each.encode() for each in text], False, (), b"")
        undisturbed = deliver(reply, ())
        expected = seen(undisturbed)
        for cut in every_nth(range(len(undisturbed)), 16, len(text) % 16):
            assert seen(deliver(reply, (cut,))) == expected
