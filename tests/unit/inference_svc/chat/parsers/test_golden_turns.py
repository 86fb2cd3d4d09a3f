"""What models of each family write, whole and in pieces."""

import json

import pytest

from inference_svc.chat.parsers import ToolCallFormat
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, as_the_engine_sends

CASES = [
    pytest.param(golden, id=f"{family}: {golden.label}")
    for family, goldens in GOLDEN.items()
    for golden in goldens
]


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_is_read(golden: Golden) -> None:
    """Content, reasoning and calls; what is no call is content, not a character is lost."""
    assert golden.parse([golden.text]) == golden.expected


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_split_at_any_byte_is_the_same(golden: Golden) -> None:
    """In two pieces, cut everywhere, and byte by byte, as the engine passes bytes on."""
    data = golden.text.encode()
    splits = [[data[:cut], data[cut:]] for cut in range(1, len(data))]
    splits.append([data[place : place + 1] for place in range(len(data))])

    wrong = [
        pieces for pieces in splits if golden.parse(as_the_engine_sends(pieces)) != golden.expected
    ]

    assert wrong == []


def test_every_notation_has_golden_turns() -> None:
    """A notation that is added brings its own."""
    assert set(GOLDEN) == {str(name) for name in ToolCallFormat} - {"off"}


@pytest.mark.parametrize("family", GOLDEN)
def test_arguments_of_whole_calls_are_json(family: str) -> None:
    """Whatever the notation, callers get JSON."""
    whole = [
        g for g in GOLDEN[family] if not any(word in g.label for word in ("break", "cut", "deep"))
    ]
    arguments = [arguments for golden in whole for _, arguments in golden.expected.calls]

    assert arguments
    for text in arguments:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "family",
    ["hermes", "llama", "mistral", "deepseek", "kimi", "cohere", "apertus", "qwen-coder", "gemma"],
)
def test_long_texts_in_arguments_stream(family: str) -> None:
    """A file that a model writes into an argument is not held back until its end."""
    golden = next(g for g in GOLDEN[family] if "Paris" in g.text and len(g.expected.calls) > 0)
    before, after = golden.text.split("Paris", 1)
    parser = golden.parser()
    parser.feed(before)

    deltas = [parser.feed("x" * 100) for _ in range(5)]

    assert [len(delta.tool_calls[0].arguments) for delta in deltas[1:]] == [100] * 4
    assert parser.feed(after) is not None
