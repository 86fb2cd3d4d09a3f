"""Parsing of the outputs of each model family, whole and in pieces."""

import json

import pytest

from inference_svc.chat.parsers.formats import ToolCallFormat
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, decode_pieces, feed

CASES = [
    pytest.param(golden, id=f"{family}: {golden.label}")
    for family, goldens in GOLDEN.items()
    for golden in goldens
]


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_is_parsed(golden: Golden) -> None:
    """Into content, reasoning and calls; invalid calls are content."""
    assert golden.parse([golden.text]) == golden.expected


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_may_be_split_at_any_byte(golden: Golden) -> None:
    """In two pieces and byte by byte."""
    data = golden.text.encode()
    splits = [[data[:cut], data[cut:]] for cut in range(1, len(data))]
    splits.append([data[place : place + 1] for place in range(len(data))])

    assert [s for s in splits if golden.parse(decode_pieces(s)) != golden.expected] == []


def test_every_format_has_golden_turns() -> None:
    """In `tests/data/turns`."""
    assert set(GOLDEN) == {str(name) for name in ToolCallFormat} - {"off"}


@pytest.mark.parametrize("family", GOLDEN)
def test_arguments_of_complete_calls_are_json(family: str) -> None:
    """In every format."""
    complete = [
        g for g in GOLDEN[family] if not any(word in g.label for word in ("break", "cut", "deep"))
    ]
    arguments = [arguments for golden in complete for _, arguments in golden.expected.calls]

    assert arguments
    for text in arguments:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "family",
    ["hermes", "llama", "mistral", "deepseek", "kimi", "cohere", "apertus", "qwen-coder", "gemma"],
)
def test_long_texts_in_arguments_stream(family: str) -> None:
    """They are not buffered until their end."""
    golden = next(g for g in GOLDEN[family] if "Paris" in g.text and len(g.expected.calls) > 0)
    before, after = golden.text.split("Paris", 1)
    parser = golden.parser()
    parser.feed(before)

    deltas = [feed(parser, "x" * 100) for _ in range(5)]

    assert [len(delta.tool_calls[0].arguments) for delta in deltas[1:]] == [100] * 4
    parser.feed(after)
