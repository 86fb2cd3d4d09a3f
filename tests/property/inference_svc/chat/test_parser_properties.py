"""Turn parsers: cutting a text anywhere changes nothing, and no text breaks them."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers import ReasoningFormat, TurnFormat, TurnParser
from tests.support.examples import examples
from tests.support.golden_turns import GOLDEN
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed

SCRAPS = st.sampled_from(
    [
        "<think>", "</think>", "<", "</", "[", "{", "}", "]", "(", ")", '"', "'", "\\", ",", ":",
        "=", ";", " ", "\n", "\n\n", "{}", '{"name": "get_time"}', '{"name": "f", "arguments": {',
        '"a": 1', "\\ud800", "é🙂", "```", "to=functions.f", "f(a=1", "x",
    ]
)  # fmt: skip


def without_frames(turn: Golden) -> str:
    """The text, less what stands around its answers."""
    frames = turn.turn_format.frame_texts
    return re.sub("|".join(map(re.escape, frames)), "", turn.text) if frames else turn.text


def as_written(turn: Golden) -> Golden:
    """The turn with its thought left in place: with none where answers are framed, as what looks
    like a frame stays in a thought."""
    told = turn.turn_format
    if told.frame_texts:
        told = told._replace(reasoning=ReasoningFormat.OFF)
    return turn._replace(turn_format=told, inline_reasoning=True)


def turns_of(family: str) -> st.SearchStrategy[Golden]:
    """Turns put together from pieces of what the family writes.

    Chance alone would hardly put a call together, so golden texts are cut and joined.
    """
    goldens = GOLDEN[family]
    texts = st.sampled_from([golden.text[:400] for golden in goldens])
    cut = st.builds(
        lambda text, a, b: text[min(a, b) : max(a, b)],
        texts,
        st.integers(0, 400),
        st.integers(0, 400),
    )
    markers = st.sampled_from([text for text in goldens[0].turn_format.marker_texts if text])
    parts = st.lists(texts | cut | cut | markers | SCRAPS | st.text(max_size=3), max_size=6)
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
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_text_may_be_cut_anywhere(family: str, data: st.DataObject) -> None:
    """Whole, in single characters, or cut at random: the sum is the same, and UTF-8 can hold it."""
    turn = data.draw(turns_of(family))
    text = turn.text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]

    whole = turn.parse([text])

    assert turn.parse(list(text)) == whole
    assert turn.parse(pieces) == whole
    assert str(whole).encode()


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - {"harmony"}))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_without_tools_and_with_reasoning_inline_nothing_is_lost(
    family: str, data: st.DataObject
) -> None:
    """There is nothing to look for, so the text is the content, less what frames it."""
    turn = as_written(data.draw(turns_of(family)))._replace(tools=NO_TOOLS)

    assert turn.parse([turn.text]) == Parsed(without_frames(turn))


@pytest.mark.parametrize("family", sorted(set(GOLDEN) - {"harmony"}))
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_text_without_calls_is_content_as_it_stands(family: str, data: st.DataObject) -> None:
    """Whatever was held back on the way comes out again."""
    turn = as_written(data.draw(turns_of(family)))
    parsed = turn.parse([turn.text])

    if not parsed.calls:
        assert parsed.content == without_frames(turn)


@settings(max_examples=examples(100), deadline=None)
@given(st.text())
def test_a_plain_format_passes_everything_on_at_once(text: str) -> None:
    """A model that marks nothing has nothing held back."""
    parser = TurnParser(TurnFormat(), tools=TOOLS)

    assert parser.feed(text).content == text
    assert parser.finish().content == ""
