"""Content, reasoning and tool calls out of what a model writes."""

import pytest

from inference_svc.chat.parsers import (
    ReasoningFormat,
    ToolCallFormat,
    ToolCallPiece,
    TurnDelta,
    TurnFormat,
    TurnParser,
    new_call_id,
)
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed, add_up

QWEN = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
PLAIN = TurnFormat()
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def a_parser(
    turn_format: TurnFormat = QWEN, *, tools: bool = True, opens: bool = False, inline: bool = False
) -> TurnParser:
    offered = TOOLS if tools else NO_TOOLS
    return Golden("", turn_format, "", Parsed(), offered, opens, inline).parser()


def parse(text: str, parser: TurnParser) -> Parsed:
    return add_up([parser.feed(text), parser.finish()])


def test_plain_text_passes_through_at_once() -> None:
    """Without markers nothing is held back or trimmed."""
    parser = a_parser(PLAIN)

    assert parser.feed(" <think>a\n") == TurnDelta(" <think>a\n")
    assert parser.finish() == TurnDelta()
    assert not parser.has_tool_calls


def test_ids_of_calls_have_openais_form() -> None:
    """Unique, and recognisable in logs."""
    assert new_call_id().startswith("call_")
    assert new_call_id() != new_call_id()


# ---- reasoning


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\nIt is\n two. \n</think>\n\nTwo.\n", "Two.\n", "It is\n two."),
        ("\n <think>a</think>b", "b", "a"),
        ("<think>\n\n</think>\n\nHi", "Hi", ""),
        ("<think>never ends", "", "never ends"),
        ("Hi <think>a</think>", "Hi <think>a</think>", ""),
        ("<thin", "<thin", ""),
        ("  \n", "  \n", ""),
        ("<think>a</think>b</think>", "b</think>", "a"),
        ("<think>a</th", "", "a</th"),
    ],
)
def test_reasoning_is_what_stands_in_front(text: str, content: str, reasoning: str) -> None:
    """White space around it is left out; markers elsewhere are text."""
    assert parse(text, a_parser(tools=False)) == (content, reasoning, ())


def test_reasoning_that_the_prompt_opened_needs_no_begin_marker() -> None:
    """The first text is already thinking."""
    parser = a_parser(opens=True)

    assert parser.is_thinking
    assert parse("So.\n</think>\n\nYes.", parser) == ("Yes.", "So.", ())
    assert not parser.is_thinking


def test_reasoning_streams_before_it_ends() -> None:
    """A reader sees thoughts as they come."""
    parser = a_parser()

    deltas = [parser.feed(text) for text in ("<think>", "One ", "two", "</think>", "Three")]

    assert [delta.reasoning for delta in deltas] == ["", "One", " two", "", ""]
    assert deltas[-1].content == "Three"


def test_inline_reasoning_stays_as_it_was_written() -> None:
    """Markers, white space and all; calls inside the thinking are not made."""
    text = f" <think>\n{WEATHER}</think>\n\nHi"

    assert parse(text, a_parser(inline=True)) == (text, "", ())
    assert parse("a</think>\nb", a_parser(inline=True, opens=True)) == ("a</think>\nb", "", ())


# ---- tool calls


def test_a_call_is_read() -> None:
    """Arguments are as the model wrote them; white space around the call is left out."""
    parser = a_parser()

    assert parse(f"Let me see.\n{WEATHER}\n", parser) == (
        "Let me see.",
        "",
        (("get_weather", '{"city": "Paris"}'),),
    )
    assert parser.has_tool_calls


def test_several_calls_are_numbered() -> None:
    """Each has an id of its own; text between them is content."""
    parser = a_parser()

    deltas = [parser.feed(f"{WEATHER}\n{WEATHER} and\n{WEATHER}"), parser.finish()]

    assert add_up(deltas).content == "and"
    assert [piece.id for piece in deltas[0].tool_calls] == ["id1", "id2", "id3"]


def test_arguments_stream_once_the_name_is_known() -> None:
    """Id and name come first and alone, then every piece of the arguments as it comes."""
    parser = a_parser()
    texts = ["<tool_call>", '{"name": "f",', ' "arguments": {"a', '": "x', '"}', "}</tool_call>"]

    deltas = [parser.feed(text) for text in texts]

    assert [delta.tool_calls for delta in deltas] == [
        (),
        (),
        (ToolCallPiece(0, "id1", "f", '{"a'),),
        (ToolCallPiece(0, "", "", '": "x'),),
        (ToolCallPiece(0, "", "", '"}'),),
        (),
    ]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "{}"),
        ('<tool_call>{"name": "f"}</tool_call>', "{}"),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', '{"a": 1}'),
        ('<tool_call>[{"name": "f", "arguments": {"a": "é"}}]</tool_call>', '{"a": "é"}'),
        ('<tool_call>{"name": "f", "arguments": {"a": {"b": ["}", "]"]}}}',
         '{"a": {"b": ["}", "]"]}}'),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
         '{"a": "</tool_call>"}'),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\"}"}}</tool_call>', '{"a": "\\"}"}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "id": 7}\n</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
    ],
)  # fmt: skip
def test_the_ways_models_write_a_call(text: str, arguments: str) -> None:
    """Other key orders and names, arguments as a text, lists, missing ends."""
    assert parse(text, a_parser()) == ("", "", (("f", arguments),))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>hello</tool_call>",
        "a\n<tool_call>\n{broken}\n</tool_call>\nb",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"name": "f", "arguments": "not json"}</tool_call>',
        '<tool_call>[{"name": "f"}, 5]</tool_call>',
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "f"',
        "text <tool_ca",
        "1 < 2 <tool_response>",
    ],
)
def test_what_is_no_call_comes_out_as_content(text: str) -> None:
    """Nothing is lost, not even the markers."""
    assert parse(text, a_parser()) == (text, "", ())


def test_a_call_after_a_broken_one_is_still_read() -> None:
    """One mistake does not spoil the rest of the turn."""
    content, _, calls = parse(f"<tool_call>oops</tool_call>\n{WEATHER}", a_parser())

    assert content == "<tool_call>oops</tool_call>"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": nonsense\'}}</tool_call>', '{"a": nonsense\'}}'),
        ('{"a": "line\nbreak"}}</tool_call>', '{"a": "line\nbreak"}}'),
        ('{"a": [1}}</tool_call>', '{"a": [1}}'),
        ('{"a": "cut', '{"a": "cut'),
    ],
)
def test_arguments_that_break_are_passed_on_as_written(written: str, arguments: str) -> None:
    """They were being sent already; the agent can show the model its mistake."""
    text = '<tool_call>{"name": "f", "arguments": ' + written

    assert parse(text, a_parser()) == ("", "", (("f", arguments),))


def test_without_tools_in_the_request_calls_are_text() -> None:
    """Nobody asked for calls, so nobody could handle them."""
    assert parse(WEATHER, a_parser(tools=False)) == (WEATHER, "", ())


def test_calls_after_thinking_are_read_and_those_inside_are_not() -> None:
    """A model may think about calling."""
    content, reasoning, calls = parse(f"<think>{WEATHER}</think>\n\n{WEATHER}", a_parser())

    assert (content, reasoning, len(calls)) == ("", WEATHER, 1)


def test_content_is_not_held_back_longer_than_needed() -> None:
    """Only what may become a marker, and white space before it, waits."""
    parser = a_parser()

    deltas = [parser.feed(text) for text in ("Hello", " ", "<", "b> ", "<tool", "s>")]

    assert [delta.content for delta in deltas] == ["Hello", "", "", " <b>", "", " <tools>"]
