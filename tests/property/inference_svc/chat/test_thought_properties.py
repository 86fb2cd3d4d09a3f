"""Markers of calls in thoughts: a thought ends at its own marker, or where a whole call follows."""

import itertools
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.formats import (
    FAMILIES,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
)
from inference_svc.chat.parsers.output import MAX_NOISE_CHARACTERS
from inference_svc.chat.parsers.reasoning import MAX_CALL_CHARACTERS
from tests.support.examples import examples
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, Parsed, feed

THINKING = {
    family: turn_format._replace(starts_in_reasoning=False)
    for family, goldens in GOLDEN.items()
    if (turn_format := next(each.turn_format for each in goldens)).reasoning_markers
}
"""The formats of families whose models reason."""
FORMATS = THINKING | {
    f"{name} after <think>": TurnFormat(ReasoningFormat.THINK, name)
    for name in FAMILIES
    if name not in THINKING
}
WORDS = st.sampled_from(["a tag", " ", "\n", ".", "`", '"', "{", "}", "name", "city", ">", "…"])


def markers_of(turn_format: TurnFormat) -> list[str]:
    """The texts of a format that may be mentioned: all but those that end its thoughts."""
    family = turn_format.family
    texts = {*turn_format.marker_texts, *family.triggers, *family.interrupts, *family.excludes}
    ends = turn_format.reasoning_ends
    return sorted(text for text in texts if text and not any(end in text for end in ends))


def is_whole(turn_format: TurnFormat, text: str) -> bool:
    """Whether a text has a call that is not cut off."""
    calls = Golden("", turn_format, text, Parsed()).parse([text]).calls
    return any(json_or_none(arguments) is not None for _, arguments in calls)


def splits(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]


@st.composite
def mentions(draw: st.DrawFn, family: str) -> str:
    """A thought with markers and beginnings of calls, but without a whole call."""
    turn_format = FORMATS[family]
    name = turn_format.tool_calls.value
    texts = [golden.text for golden in GOLDEN[name] if golden.expected.calls]
    calls = st.builds(lambda text, size: text[:size], st.sampled_from(texts), st.integers(1, 200))
    markers = st.sampled_from(markers_of(turn_format) or ["<"])
    thought = "x" + "".join(draw(st.lists(WORDS | markers | calls, max_size=5))) + "y"
    frames = {*turn_format.family.frames} - {*turn_format.interrupts}
    at = places(thought, turn_format.interrupts)
    answer = thought[at[0] :] if at else ""
    has_answer = len(answer) > MAX_NOISE_CHARACTERS or any(frame in answer for frame in frames)
    return (
        "xy" if has_answer or any(end in thought for end in turn_format.reasoning_ends) else thought
    )


@pytest.mark.parametrize("family", FORMATS)
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_marker_that_a_thought_mentions_does_not_end_it(family: str, data: st.DataObject) -> None:
    """In every family and every split: the answer behind the thought is the same."""
    turn_format, thought = FORMATS[family], data.draw(mentions(family))
    markers = turn_format.reasoning_markers
    assert markers is not None
    after = turn_format.family.after_reasoning + turn_format.family.opening
    text = f"{markers.begin}{thought}{markers.end}{after}Yes."
    turn = Golden("", turn_format, text, Parsed())

    calls = turn_format.calls_in_thoughts
    if not any(is_whole(turn_format, thought[at:]) for at in places(thought, calls)):
        assert turn.parse(splits(data, text)) == Parsed("Yes.", thought)


def places(text: str, markers: tuple[str, ...]) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(markers, at)]


def whole_calls(turn_format: TurnFormat) -> Iterator[Golden]:
    """The golden turns of a format from the first call on, if that is whole and of a known tool.
    A section that text follows ends no thought, since no call follows it directly."""
    for golden in GOLDEN[turn_format.tool_calls.value]:
        if "text between" in golden.label:
            continue
        at = places(golden.text, turn_format.calls_in_thoughts)
        if at and golden.expected.calls:
            text = golden.text[at[0] :]
            turn = Golden(golden.label, turn_format, text, Parsed())
            name, arguments = (turn.parse([text]).calls or [("", "")])[0]
            if name in ("get_weather", "get_time") and json_or_none(arguments) is not None:
                yield turn


WHOLE = [
    (family, golden)
    for family, turn_format in FORMATS.items()
    for golden in whole_calls(turn_format)
]


@pytest.mark.parametrize(("family", "golden"), WHOLE)
@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_a_whole_call_ends_a_thought_that_is_open(
    family: str, golden: Golden, data: st.DataObject
) -> None:
    """Also after mentions of markers: the rest of the turn is what it is without the thought."""
    thought, markers = data.draw(mentions(family)), FORMATS[family].reasoning_markers
    assert markers is not None
    text = f"{markers.begin}{thought}. {golden.text}"
    calls = FORMATS[family].calls_in_thoughts
    if places(thought, (*calls, *FORMATS[family].interrupts)):
        return  # what follows may belong to the call that has begun there
    expected = golden.parse([golden.text])._replace(reasoning=f"{thought}.")

    assert golden._replace(text=text).parse(splits(data, text)) == expected


def test_the_families_whose_calls_may_be_in_thoughts_are_tried() -> None:
    """At least one golden turn of each."""
    assert {family for family, _ in WHOLE} == {
        family for family, turn_format in FORMATS.items() if turn_format.calls_in_thoughts
    }


CALLING = {family: each for family, each in FORMATS.items() if each.calls_in_thoughts}
"""The formats whose calls end thoughts."""
REPEATED = {
    ToolCallFormat.GLM: "<tool_call>get_weather<arg_key>city</arg_key><arg_value>x ",
    ToolCallFormat.QWEN_CODER: "<tool_call>\n<function=get_weather>\n<parameter=city>\nx ",
    ToolCallFormat.KIMI: "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{\\"',
}
"""Beginnings of calls in which a next one belongs to the arguments."""


def num_steps(turn: Golden, pieces: list[str]) -> int:
    count, before = 0, sys.getprofile()

    def add(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(add)
    try:
        turn.parse(pieces)
    finally:
        sys.setprofile(before)
    return count


def check_is_linear(turn_format: TurnFormat, thought: str, end: str, *, pieces: bool) -> None:
    """Twice and four times a long thought is about as much more work."""
    markers = turn_format.reasoning_markers
    assert markers is not None
    counts = []
    for times in (1, 2, 4):
        texts = [markers.begin, "so ", *[thought] * (50 * times), end, markers.end, "Yes."]
        turn = Golden("", turn_format, "", Parsed())
        counts.append(num_steps(turn, texts if pieces else ["".join(texts)]))
    assert counts[2] - counts[1] <= 3 * (counts[1] - counts[0]) + 2000


@pytest.mark.parametrize("end", ["", "\n", '"<'])
@pytest.mark.parametrize("pieces", [True, False])
@pytest.mark.parametrize("family", REPEATED)
def test_repeated_beginnings_of_calls_are_read_once(
    family: ToolCallFormat, pieces: bool, end: str
) -> None:
    """Whatever ends the last of them: the work is linear in the length of the thought."""
    check_is_linear(CALLING[family], REPEATED[family], end, pieces=pieces)


@pytest.mark.parametrize("family", CALLING)
@settings(max_examples=examples(5), deadline=None)
@given(st.data())
def test_the_work_is_linear_in_the_length_of_a_thought(family: str, data: st.DataObject) -> None:
    """With anything repeated in it: mentions, beginnings of calls, and whole calls."""
    thought, pieces = data.draw(mentions(family)), data.draw(st.booleans())
    check_is_linear(CALLING[family], thought, data.draw(WORDS), pieces=pieces)


@pytest.mark.parametrize("family", CALLING)
def test_what_may_be_a_call_is_held_back_up_to_a_limit(family: str) -> None:
    """The rest of a longer thought is sent before it ends."""
    turn_format = CALLING[family]
    golden = next(golden for name, golden in WHOLE if name == family)
    call = golden.text[: golden.text.index("Paris")]
    markers = turn_format.reasoning_markers
    assert markers is not None
    parser = golden.parser()
    sent = feed(parser, f"{markers.begin}so {call}").reasoning
    for _ in range(4 * MAX_CALL_CHARACTERS // 16):
        sent += feed(parser, "and nothing else ").reasoning

    assert len(sent) > 3 * MAX_CALL_CHARACTERS
    assert feed(parser, f"{markers.end}Yes.").content == "Yes."


ANSWERING = {family: each for family, each in FORMATS.items() if each.interrupts}
"""The formats whose answers end thoughts."""


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("family", ANSWERING)
def test_an_answer_that_ends_a_thought_is_sent_while_it_is_written(family: str, size: int) -> None:
    """And is decided, so that stop texts in it are found: all but its first few hundred
    characters."""
    markers = ANSWERING[family].reasoning_markers
    assert markers is not None
    answer = "an answer " * 200
    for begin in ANSWERING[family].interrupts:
        parser = Golden("", ANSWERING[family], "", Parsed()).parser()
        text, sent = f"{markers.begin}so{begin}{answer}", ""
        for at in range(0, len(text), size):
            sent += feed(parser, text[at : at + size]).content
            num_written = at + size - len(text) + len(answer)
            assert parser.num_decided <= at + size
            if num_written > MAX_NOISE_CHARACTERS:
                assert len(sent) >= min(num_written, len(answer)) - 1
                assert parser.num_decided >= min(at + size, len(text)) - 1
        assert sent.strip() == answer.strip()


@pytest.mark.parametrize("family", CALLING)
@settings(max_examples=examples(5), deadline=None)
@given(st.data())
def test_limits_in_long_thoughts_do_not_depend_on_how_the_text_is_split(
    family: str, data: st.DataObject
) -> None:
    """With many calls that begin, and a whole one behind them or none."""
    turn_format = CALLING[family]
    texts = [golden.text for name, golden in WHOLE if name == family]
    begins = st.builds(lambda text, size: text[:size], st.sampled_from(texts), st.integers(40, 90))
    unit = data.draw(begins) + data.draw(WORDS) + data.draw(mentions(family))
    thought = unit * data.draw(st.integers(1, 1 + 2 * MAX_CALL_CHARACTERS // len(unit)))
    thought += data.draw(WORDS) + data.draw(st.sampled_from(["", *texts]))
    markers = turn_format.reasoning_markers
    assert markers is not None
    end = data.draw(st.sampled_from(["", f"{markers.end}Yes."]))
    text = f"{markers.begin}so {thought}{end}"
    turn = Golden("", turn_format, text, Parsed())
    expected = turn.parse([text])

    assert turn.parse(list(text)) == expected
    assert turn.parse(splits(data, text)) == expected
