"""Turn parsers on random texts, split at random positions."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.formats import ReasoningFormat, TurnFormat
from inference_svc.chat.parsers.parser import TurnParser
from tests.support.examples import examples
from tests.support.golden_turns import GOLDEN
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed, feed, finish

FRAGMENTS = st.sampled_from(
    [
        "<think>", "</think>", "<", "</", "[", "{", "}", "]", "(", ")", '"', "'", "\\", ",", ":",
        "=", ";", " ", "\n", "\n\n", "{}", '{"name": "get_time"}', '{"name": "f", "arguments": {',
        '"a": 1', "\\ud800", "é🙂", "```", "to=functions.f", "f(a=1", "x",
    ]
)  # fmt: skip


def without_frames(turn: Golden) -> str:
    """Remove the frame texts of the format from the text."""
    frames = turn.turn_format.frame_texts
    return re.sub("|".join(map(re.escape, frames)), "", turn.text) if frames else turn.text


def with_inline_reasoning(turn: Golden) -> Golden:
    """Return the turn with reasoning left in its content. Formats with frame texts parse no
    reasoning, since frame texts inside reasoning are not removed."""
    turn_format = turn.turn_format
    if turn_format.frame_texts:
        turn_format = turn_format._replace(reasoning=ReasoningFormat.OFF)
    return turn._replace(turn_format=turn_format, inline_reasoning=True)


def random_turns(family: str) -> st.SearchStrategy[Golden]:
    """Turns joined from pieces of the family's golden texts, since random text rarely has calls."""
    goldens = GOLDEN[family]
    texts = st.sampled_from([golden.text[:400] for golden in goldens])
    cut = st.builds(
        lambda text, a, b: text[min(a, b) : max(a, b)],
        texts,
        st.integers(0, 400),
        st.integers(0, 400),
    )
    markers = st.sampled_from([text for text in goldens[0].turn_format.marker_texts if text])
    parts = st.lists(texts | cut | cut | markers | FRAGMENTS | st.text(max_size=3), max_size=6)
    return st.builds(
        lambda golden, parts, tools, opens, inline: Golden(
            family, golden.turn_format, "".join(parts), Parsed(), tools, opens, inline
        ),
        st.sampled_from(goldens),
        parts,
        st.sampled_from([TOOLS, TOOLS, TOOLS, NO_TOOLS]),
        st.booleans(),
        st.booleans(),
    )


@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_result_does_not_depend_on_how_the_text_is_split(
    family: str, data: st.DataObject
) -> None:
    """The result is also valid UTF-8."""
    turn = data.draw(random_turns(family))
    text = turn.text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]

    expected = turn.parse([text])

    assert turn.parse(list(text)) == expected
    assert turn.parse(pieces) == expected
    assert str(expected).encode()


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - {"harmony"}))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_text_without_tools_and_reasoning_is_content(family: str, data: st.DataObject) -> None:
    """Only the frame texts of the format are removed."""
    turn = with_inline_reasoning(data.draw(random_turns(family)))._replace(tools=NO_TOOLS)

    assert turn.parse([turn.text]) == Parsed(without_frames(turn))


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - {"harmony"}))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_text_without_calls_is_unchanged_content(family: str, data: st.DataObject) -> None:
    """Text that was held back while parsing is returned."""
    turn = with_inline_reasoning(data.draw(random_turns(family)))
    parsed = turn.parse([turn.text])

    if not parsed.calls:
        assert parsed.content == without_frames(turn)


@settings(max_examples=examples(100), deadline=None)
@given(st.text())
def test_a_plain_format_holds_nothing_back(text: str) -> None:
    """A format without markers passes all text on at once."""
    parser = TurnParser(TurnFormat(), tools=TOOLS)

    assert feed(parser, text).content == text
    assert finish(parser).content == ""
