"""Parsing of the outputs of each model family, whole, in pieces and cut off."""

import json
import re
from typing import Any

import pytest

from inference_svc.chat.parsers.formats import ToolCallFormat
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, decode_pieces, feed, merge_deltas, pop_joined

CASES = [
    pytest.param(golden, id=f"{family}: {golden.label}")
    for family, goldens in GOLDEN.items()
    for golden in goldens
]


def _is_broken(case: Any) -> bool:
    """Whether its calls are invalid, too deep or none, or follow text that is content without
    them."""
    words = "break", "deep", "malformed", "text between"
    return not case.values[0].expected.calls or any(word in case.id for word in words)


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_is_parsed(golden: Golden) -> None:
    """Into content, reasoning and calls; invalid calls are content."""
    assert golden.parse([golden.text]) == golden.expected


@pytest.mark.parametrize("golden", CASES)
def test_a_turn_may_be_split_at_any_byte(golden: Golden) -> None:
    data = golden.text.encode()
    splits = [[data[:cut], data[cut:]] for cut in range(1, len(data))]
    splits.append([data[place : place + 1] for place in range(len(data))])

    assert [s for s in splits if golden.parse(decode_pieces(s)) != golden.expected] == []


@pytest.mark.parametrize("golden", [golden for golden in CASES if not _is_broken(golden)])
def test_a_call_that_is_cut_off_is_neither_content_nor_complete(golden: Golden) -> None:
    """At the limit, after any character: markers are never content, arguments are as far as they
    came, and the turn tells that it ended in a call. A Markdown fence alone is no call."""
    for end in range(len(golden.text)):
        parser = golden.parser()
        deltas = [feed(parser, golden.text[:end])]
        parser.finish(cut_before="")
        content, _, calls = merge_deltas([*deltas, pop_joined(parser)])
        whole = golden.expected.calls[: len(calls)]

        assert golden.expected.content.startswith(re.sub(r"\s*(```\w*)?$", "", content)), end
        assert [name for name, _ in calls] == [name for name, _ in whole]
        assert calls[:-1] == whole[:-1]
        if calls != whole:
            assert whole[-1][1].startswith(calls[-1][1])
            assert parser.ends_in_call


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
    ["hermes", "llama", "mistral", "deepseek", "kimi", "cohere", "apertus", "qwen-coder", "gemma",
     "pythonic"],
)  # fmt: skip
def test_long_texts_in_arguments_stream(family: str) -> None:
    """They are not buffered until their end."""
    golden = next(g for g in GOLDEN[family] if "Paris" in g.text and len(g.expected.calls) > 0)
    before, after = golden.text.split("Paris", 1)
    parser = golden.parser()
    parser.feed(before)

    deltas = [feed(parser, "x" * 100) for _ in range(5)]

    assert [len(delta.tool_calls[0].arguments) for delta in deltas[1:]] == [100] * 4
    parser.feed(after)
