"""Turn parsers: cutting a text anywhere changes nothing, and no text breaks them."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers import Markers, TurnDelta, TurnFormat, TurnParser

FORMAT = TurnFormat(Markers("<think>", "</think>"), Markers("<tool_call>", "</tool_call>"))

scraps = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</", "<tool", "<thi", "_call>",
        '{"name": "f", "arguments": {', '{"name": "f", "arguments": ', '{"arguments": {}, ',
        '"name": "f"', '"a": 1', '"a": "x</tool_call>"', "{", "}", "}}", "[", "]", '"', "\\", "'",
        ",", ":", " ", "\n", "\n\n", "text", "é🙂", "{}", '{"name": "g"}',
    ]
)  # fmt: skip
# Calls that are whole, or nearly: chance alone would hardly put one together.
call_texts = st.tuples(
    st.sampled_from(["<tool_call>", "<tool_call>\n", " \n<tool_call>"]),
    st.sampled_from(
        ['{"name": "f", "arguments": ', '{"name":"f","parameters":', '[{"name": "f", "arguments": ']
    ),
    st.sampled_from(
        [
            "{}",
            '{"a": {"b": "}"}}',
            '{"a": "</tool_call>"}',
            '{"a": "\\""}',
            '{"a": \'}',
            '"{}"',
            "5",
        ]
    ),
    st.sampled_from(["}", "}\n", "}}", "", ', "id": 1}', "}]", " x"]),
    st.sampled_from(["</tool_call>", "</tool_call>\n", "", "</tool_c"]),
).map("".join)
thoughts = st.sampled_from(["<think>\nSo \n</think>\n\n", "<think>", "a </think> "])
texts = st.lists(call_texts | thoughts | scraps | st.text(max_size=4), max_size=12).map("".join)
options = st.fixed_dictionaries(
    {
        "offers_tools": st.booleans(),
        "opens_in_reasoning": st.booleans(),
        "inline_reasoning": st.booleans(),
    }
)


def added(pieces: list[str], options: dict[str, bool]) -> tuple[str, str, list[list[str]]]:
    """Feed a text in pieces; add the deltas up."""
    numbers = itertools.count()
    parser = TurnParser(FORMAT, new_call_id=lambda: f"id{next(numbers)}", **options)
    deltas: list[TurnDelta] = [parser.feed(piece) for piece in pieces]
    deltas.append(parser.finish())
    calls: list[list[str]] = []
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        if piece.id:
            assert piece.index == len(calls)
            assert piece.name
            calls.append([piece.id, piece.name, ""])
        assert piece.index == len(calls) - 1
        calls[-1][2] += piece.arguments
    assert len(calls) == parser.num_tool_calls
    content = "".join(delta.content for delta in deltas)
    return content, "".join(delta.reasoning for delta in deltas), calls


@settings(max_examples=400, deadline=None)
@given(texts, options, st.data())
def test_a_text_may_be_cut_anywhere(
    text: str, options: dict[str, bool], data: st.DataObject
) -> None:
    """Whole, in single characters, or cut at random: the sum is the same."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]

    whole = added([text], options)

    assert added(list(text), options) == whole
    assert added(pieces, options) == whole


@settings(max_examples=200, deadline=None)
@given(texts, st.booleans())
def test_without_markers_to_look_for_the_text_is_the_content(text: str, inline: bool) -> None:
    """A plain format, or no tools and reasoning inline, loses nothing."""
    if inline:
        options = {"offers_tools": False, "opens_in_reasoning": False, "inline_reasoning": True}
        assert added([text], options) == (text, "", [])
    else:
        parser = TurnParser(TurnFormat(), offers_tools=True)
        assert parser.feed(text).content + parser.finish().content == text
