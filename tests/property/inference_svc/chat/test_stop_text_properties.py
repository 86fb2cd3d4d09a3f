"""Stop texts of requests end turns in their content only, for every family and every split."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.parser import make_finder
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.events import Delta, Finished, FinishReason, Timings
from inference_svc.rpc.chat_turn import ChatTurn
from tests.support.examples import examples
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, Parsed, feed, finish, merge_deltas


class Stopped(NamedTuple):
    """A turn with stop texts: the raw text that was sent, the one that ended it, and what of it a
    client gets."""

    text: str
    stop: str | None
    content: str
    calls: tuple[tuple[str, str], ...]
    reason: int


def content_pieces(turn: Golden) -> list[tuple[int, int]]:
    """Where the content of the whole turn is, with neighbouring parts joined."""
    parser = turn.parser()
    ranges = [*feed(parser, turn.text).ranges, *finish(parser).ranges]
    pieces: list[tuple[int, int]] = []
    for begin, end in ranges:
        if pieces and pieces[-1][1] == begin:
            begin = pieces.pop()[0]
        pieces.append((begin, end))
    return pieces


def expected_stop(turn: Golden, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop text begins that ends first in a piece of content."""
    found = [
        (at + len(stop), at, stop)
        for begin, end in content_pieces(turn)
        for stop in stops
        if (at := turn.text.find(stop, begin, end)) >= 0
    ]
    return min(found)[1:] if found else None


def run(turn: Golden, stops: Sequence[str], pieces: Sequence[bytes]) -> Stopped:
    """Send the tokens of a turn as the engine does, and parse what arrives."""
    finder = make_finder(turn.turn_format, turn.tools, turn.opens_in_reasoning)
    detokenizer = Detokenizer(stops, content=finder)
    chat = ChatTurn(0, turn.parser(), token_ids=False, stop=stops)
    deltas: list[service_pb.ChatDelta] = []
    sent = ""

    def send(text: str) -> None:
        nonlocal sent
        sent += text
        deltas.extend(each.delta for each in chat.delta(Delta(0, (text,), (0,), ())))

    for piece in pieces:
        send(detokenizer.push(piece))
        if detokenizer.stop is not None:
            break
    else:
        send(detokenizer.finish())
    end = Finished(0, FinishReason.STOP, detokenizer.stop, None, 1, Timings(0.0, 0.0, 0.0))
    deltas.extend(each.delta for each in chat.finish(end))
    calls: list[tuple[str, str]] = []
    for call in (call for delta in deltas for call in delta.tool_calls):
        if call.name:
            calls.append((call.name, ""))
        calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments_json)
    content = "".join(delta.content for delta in deltas)
    return Stopped(sent, detokenizer.stop, content, tuple(calls), chat.reason(end))


@st.composite
def stopped_turns(draw: st.DrawFn, family: str) -> tuple[Golden, list[str], list[bytes]]:
    """A turn, stop texts that are mostly parts of it, and a split into tokens."""
    turn = draw(st.sampled_from([each for each in GOLDEN[family] if not each.inline_reasoning]))
    text = turn.text[:2000]
    turn = turn._replace(text=text)
    size = max(1, len(text))
    parts = st.builds(
        lambda at, length: text[at : at + length], st.integers(0, size - 1), st.integers(1, 9)
    )
    markers = [marker for marker in turn.turn_format.marker_texts if marker]
    stops = draw(st.lists(parts | st.sampled_from(["\n", " ", *markers]), min_size=1, max_size=3))
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data))), max_size=40)))
    pieces = [data[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(data)])]
    return turn, [stop for stop in stops if stop] or ["\n"], pieces


@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_stop_text_ends_a_turn_where_it_is_content(family: str, data: st.DataObject) -> None:
    """And nowhere else: the text is cut before it, calls before it are whole, and a turn without it
    is the same as without stop texts."""
    check_stop(*data.draw(stopped_turns(family)))


@pytest.mark.parametrize(
    ("family", "label", "stop"),
    [
        ("kimi-k3", "arguments that break", "o"),
        ("cohere", "the second is none", "\n"),
        ("hermes", "a closing marker that is mentioned", "."),
        ("json", "a mention of markers after a call", "` "),
        ("qwen-coder", "something else inside", "o"),
        ("pythonic", "OLMo's, the second is malformed", "g"),
    ],
)
def test_a_stop_text_behind_a_call_or_marker_ends_a_turn(
    family: str, label: str, stop: str
) -> None:
    """A call with invalid arguments is closed, and one that the stop text ends; a comma that no
    call follows is content, and so is a marker that is mentioned."""
    (turn,) = (golden for golden in GOLDEN[family] if golden.label == label)
    assert expected_stop(turn, [stop]) is not None
    check_stop(turn, [stop], [turn.text.encode()])


def check_stop(turn: Golden, stops: Sequence[str], pieces: Sequence[bytes]) -> None:
    whole = turn.parse([turn.text])
    expected = expected_stop(turn, stops)
    stopped = run(turn, stops, pieces)

    if expected is None:
        assert (stopped.text, stopped.stop) == (turn.text, None)
        assert Parsed(stopped.content, whole.reasoning, stopped.calls) == whole
        return
    at, stop = expected
    assert (stopped.text, stopped.stop) == (turn.text[:at], stop)
    before = "".join(
        turn.text[begin : min(end, at)] for begin, end in content_pieces(turn) if begin < at
    )
    assert "".join(stopped.content.split()) == "".join(before.split())
    assert stopped.calls == whole.calls[: len(stopped.calls)]
    kinds = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_TOOL_CALLS)
    assert stopped.reason == kinds[bool(stopped.calls)]


@pytest.mark.parametrize("family", GOLDEN)
def test_a_finder_finds_the_content_of_the_parser(family: str) -> None:
    """The oracle of the other test: the pieces of content of a whole turn are its content."""
    for turn in GOLDEN[family]:
        if not turn.inline_reasoning:
            found = "".join(turn.text[begin:end] for begin, end in content_pieces(turn))
            content = turn.parse([turn.text]).content
            assert "".join(found.split()) == "".join(content.split())
            assert merge_deltas([feed(turn.parser(), "")]) == Parsed()
