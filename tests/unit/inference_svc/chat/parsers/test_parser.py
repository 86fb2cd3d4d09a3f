"""Parsing of model output into content, reasoning and tool calls."""

import pytest

from inference_svc.chat.parsers.formats import ReasoningFormat, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.parser import TurnParser, new_call_id
from inference_svc.chat.parsers.turn import ToolCallPiece, TurnDelta
from tests.support import turns

QWEN = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
PLAIN = TurnFormat()
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def make_parser(
    turn_format: TurnFormat = QWEN, *, tools: bool = True, opens: bool = False, inline: bool = False
) -> TurnParser:
    offered = turns.TOOLS if tools else turns.NO_TOOLS
    return turns.Golden("", turn_format, "", turns.Parsed(), offered, opens, inline).parser()


def parse(text: str, parser: TurnParser) -> turns.Parsed:
    return turns.merge_deltas([turns.feed(parser, text), turns.finish(parser)])


def test_text_of_a_format_without_markers_is_not_buffered() -> None:
    parser = make_parser(PLAIN)

    assert turns.feed(parser, " <think>a\n") == TurnDelta(" <think>a\n", ranges=[(0, 10)])
    assert turns.finish(parser) == TurnDelta()
    assert not parser.has_tool_calls


def test_ids_of_calls_have_openais_form() -> None:
    assert new_call_id().startswith("call_")
    assert new_call_id() != new_call_id()


# --- reasoning ------------------------------------------------------------------------------------


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
def test_reasoning_is_parsed_before_content_only(text: str, content: str, reasoning: str) -> None:
    """Surrounding white space is removed; later markers are text."""
    assert parse(text, make_parser(tools=False)) == (content, reasoning, ())


def test_reasoning_that_the_prompt_opened_needs_no_begin_marker() -> None:
    assert parse("So.\n</think>\n\nYes.", make_parser(opens=True)) == ("Yes.", "So.", ())


def test_reasoning_streams_before_it_ends() -> None:
    """Its deltas are not buffered."""
    parser = make_parser()

    deltas = [turns.feed(parser, text) for text in ("<think>", "One ", "two", "</think>", "Three")]

    assert [delta.reasoning for delta in deltas] == ["", "One", " two", "", ""]
    assert deltas[-1].content == "Three"


def test_inline_reasoning_is_unchanged_content() -> None:
    """With markers and white space; calls inside the reasoning are not parsed."""
    text = f" <think>\n{WEATHER}</think>\n\nHi"

    assert parse(text, make_parser(inline=True)) == (text, "", ())
    assert parse("a</think>\nb", make_parser(inline=True, opens=True)) == ("a</think>\nb", "", ())


# --- tool calls -----------------------------------------------------------------------------------


def test_a_call_is_parsed() -> None:
    """Arguments are unchanged; white space around the call is removed."""
    parser = make_parser()

    assert parse(f"Let me see.\n{WEATHER}\n", parser) == (
        "Let me see.",
        "",
        (("get_weather", '{"city": "Paris"}'),),
    )
    assert parser.has_tool_calls


def test_several_calls_are_numbered() -> None:
    """Each has its own id; text between them is content."""
    parser = make_parser()

    deltas = [turns.feed(parser, f"{WEATHER}\n{WEATHER} and\n{WEATHER}"), turns.finish(parser)]

    assert turns.merge_deltas(deltas).content == "and"
    assert [piece.id for piece in deltas[0].tool_calls] == ["id1", "id2", "id3"]


def test_arguments_stream_once_the_name_is_known() -> None:
    """The first piece has id and name, later ones only arguments."""
    parser = make_parser()
    texts = ["<tool_call>", '{"name": "f",', ' "arguments": {"a', '": "x', '"}', "}</tool_call>"]

    deltas = [turns.feed(parser, text) for text in texts]

    assert [delta.tool_calls for delta in deltas] == [
        [],
        [],
        [ToolCallPiece(0, "id1", "f", '{"a')],
        [ToolCallPiece(0, "", "", '": "x')],
        [ToolCallPiece(0, "", "", '"}')],
        [],
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
def test_variants_of_a_call_are_accepted(text: str, arguments: str) -> None:
    """Other key orders and names, arguments as a string, lists, and missing end markers."""
    assert parse(text, make_parser()) == ("", "", (("f", arguments),))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>hello</tool_call>",
        "a\n<tool_call>\n{broken}\n</tool_call>\nb",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>{'name': 'f'}</tool_call>",
        '<tool_call>{"name": "f", "arguments": "not json"}</tool_call>',
        '<tool_call>[{"name": "f"}, 5]</tool_call>',
        "<tool_call>[]</tool_call>",
        "text <tool_ca",
        "1 < 2 <tool_response>",
    ],
)
def test_an_invalid_call_is_content(text: str) -> None:
    """Including its markers."""
    assert parse(text, make_parser()) == (text, "", ())


@pytest.mark.parametrize(
    ("text", "cut_before", "content"),
    [
        ("Hm. <tool_call>", None, "Hm. "),
        ('Hm. <tool_call>\n{"name": "f"', None, "Hm. "),
        ('Hm. <tool_call>\n{"name": "f"', "\n", "Hm. "),
        ("Hm. <tool_ca", "", "Hm. "),
        ("Hm. <", "\n", "Hm. <"),
        ("<thi", "", ""),
    ],
)
def test_a_call_that_ends_before_its_arguments_is_not_content(
    text: str, cut_before: str | None, content: str
) -> None:
    """Whether the model, a stop text or the limit ended it. At the limit, half a marker is not
    content either."""
    parser = make_parser()
    parser.feed(text)
    parser.finish(cut_before)

    assert turns.pop_joined(parser).content == content
    assert parser.ends_in_call == ("<tool_call>" in text)


@pytest.mark.parametrize(
    ("text", "cut_before", "is_call"),
    [
        ('{"name": "get_wea', None, True),
        ('[{"name": "get_time", "argu', None, True),
        ('{"function": {"na', None, True),
        ("[get_wea", None, True),
        ("[get_wea", "", True),
        ("[", None, False),
        ("[", "", True),
        ('{"name": "Bob", "age": 5', "", False),
        ('{"id": 1, "age": 5', "", False),
        ("Use\n```", "", False),
        (" functools", None, False),
    ],
)
def test_a_call_without_a_marker_is_known_by_its_keys_or_the_name_of_a_tool(
    text: str, cut_before: str | None, is_call: bool
) -> None:
    """Other text is content. At the limit, what may become a call is none."""
    parser = TurnParser(TurnFormat(tool_calls=ToolCallFormat.JSON), tools=turns.TOOLS)
    parser.feed(text)
    parser.finish(cut_before)

    assert (parser.ends_in_call, turns.pop_joined(parser).content) == (
        is_call,
        "" if is_call else text,
    )


def test_a_call_after_an_invalid_one_is_parsed() -> None:
    content, _, calls = parse(f"<tool_call>oops</tool_call>\n{WEATHER}", make_parser())

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
def test_invalid_arguments_are_emitted_unchanged(written: str, arguments: str) -> None:
    """Their beginning has been streamed; an agent can report the error to the model."""
    text = '<tool_call>{"name": "f", "arguments": ' + written

    assert parse(text, make_parser()) == ("", "", (("f", arguments),))


def test_calls_are_content_if_the_request_has_no_tools() -> None:
    """The client does not expect calls."""
    assert parse(WEATHER, make_parser(tools=False)) == (WEATHER, "", ())


def test_calls_inside_reasoning_are_not_parsed() -> None:
    """A call after it is."""
    content, reasoning, calls = parse(f"<think>{WEATHER}</think>\n\n{WEATHER}", make_parser())

    assert (content, reasoning, len(calls)) == ("", WEATHER, 1)


def test_only_text_that_may_begin_a_marker_is_buffered() -> None:
    """With the white space before it."""
    parser = make_parser()

    deltas = [turns.feed(parser, text) for text in ("Hello", " ", "<", "b> ", "<tool", "s>")]

    assert [delta.content for delta in deltas] == ["Hello", "", "", " <b>", "", " <tools>"]
