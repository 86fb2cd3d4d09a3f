"""Patterns of JSON strings, which are matched before JSON escapes characters; Python's `re` is the
oracle."""

import json
import re
import warnings
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.families import QWEN_CODER
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    ToolCallSpec,
)
from tests.support.examples import examples, timeout
from tests.support.grammar_walk import JSON_ENDINGS, Walk, accepts, compile_spec

CHARACTERS = '"\\\n\t\r\b\f\x01\x1f\x7f/abnu041é€\U0001f600 '
PARTS = (
    '[^"]', r"[^\\]", r'[^"\\]', r"[^\n]", r"[^\x00-\x1f]", r"[\x00-\x1f]", r"[\u0000-\u001f]",
    r"[^\u0000-\u001f]", ".", r"\D", r"[^\d\n]", "[^a-z]", "[^n]", "[^u]", '"', r"\\", r"\n", "a",
    '[a"]', r"[\\b]", "[^\x01]", r"[\s\S]", r"[^\/]",
)  # fmt: skip
parts = st.tuples(st.sampled_from(PARTS), st.sampled_from(("", "", "?", "{2}"))).map("".join)
patterns = st.lists(parts, min_size=1, max_size=2).map("".join)


@timeout(60)
@settings(max_examples=examples(60), deadline=None)
@given(patterns, st.lists(st.text(CHARACTERS, max_size=4), max_size=20), st.integers(0, 2**32))
@example('[^"]', ['"', "\\", "\n", "a"], 0)
@example("[^a]", ["\x7f"], 0)  # llguidance escapes it
@example(r"[\x00-\x1f]{2}", ['""', "\\\\", "\n\t"], 0)
def test_a_pattern_allows_what_it_matches(pattern: str, texts: list[str], seed: int) -> None:
    """As values, and as names of members."""
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    names = {
        "type": "object", "patternProperties": {f"^{pattern}$": {"type": "null"}},
        "additionalProperties": False,
    }  # fmt: skip
    string, members = _compile(schema), _compile(names)
    expression = re.compile(pattern, re.ASCII)

    for text in texts:
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
        is_match = expression.fullmatch(text) is not None
        assert accepts(string, written) == is_match
        assert accepts(members, f"{{{written}: null}}") == is_match
    assert expression.fullmatch(json.loads(Walk(JSON_ENDINGS, {}, seed).text(string)))


def in_json(schema: object) -> OutputSpec:
    output = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(schema), "format")
    return OutputSpec(output, None, None)


def in_tags(schema: object) -> OutputSpec:
    tool = CallableTool("f", json.dumps({"properties": {"x": schema}}), True, "tools[0]")
    syntaxes = tuple(notation.syntax for notation in QWEN_CODER)
    return OutputSpec(None, ToolCallSpec(syntaxes, (tool,), required=True, several=False), None)


CALL = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"
atoms = st.sampled_from(("^", "$", "a", "b", "[ab]", "b?", ".*"))
begins, ends = st.sampled_from(("(", "(?:", "(?i:")), st.sampled_from((")", ")?"))
branches = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(atoms | st.builds("{}{}{}".format, begins, inner, ends), max_size=3).map("".join),
        st.builds("{}|{}".format, inner, inner),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(("spec", "written"), [(in_json, json.dumps), (in_tags, CALL.format)])
@timeout(60)
@settings(max_examples=examples(60), deadline=None)
@given(
    st.builds("{}{}".format, st.sampled_from(("", "(?i)")), branches),
    st.lists(st.text("abA", max_size=4), max_size=8),
)
@example("(a|^b)c?", ["a", "b", "ab", "A"])
@example("(?i)b|^a", ["B", "ba", "A"])
def test_a_pattern_with_anchors_is_exact_or_refused(
    spec: Callable[[object], OutputSpec],
    written: Callable[[str], str],
    pattern: str,
    texts: list[str],
) -> None:
    compiled = compile_spec(spec({"type": "string", "pattern": pattern}))
    expression = re.compile(pattern)

    for text in texts if "grammar" in compiled else ():
        is_match = expression.search(text) is not None
        assert accepts(str(compiled["grammar"]), written(text)) == is_match
    assert "grammar" in compiled or "regex" in compiled["problem"]


@timeout(60)
@settings(max_examples=examples(200), deadline=None)
@given(st.text(r"\[]()^-ab", min_size=1, max_size=6))
@example("a\\")
@example("[a\\")
def test_a_text_that_is_no_regex_is_refused(pattern: str) -> None:
    """As a format of its own, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what may be a set operation some day
        try:
            re.compile(pattern)
        except re.error:
            form = OutputFormat(OutputFormatKind.REGEX, pattern, "format")
            schema = {"type": "string", "pattern": pattern}
            for spec in (OutputSpec(form, None, None), in_json(schema), in_tags(schema)):
                assert "grammar" not in compile_spec(spec)


def _compile(schema: object) -> str:
    return str(compile_spec(in_json(schema))["grammar"])
