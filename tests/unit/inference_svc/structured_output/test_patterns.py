"""Patterns of ECMAScript in JSON and in calls without quotes."""

import json
from collections.abc import Sequence

import pytest

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat
from inference_svc.structured_output.patterns import rust_pattern, whole_pattern, without_nul
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    ToolCallSpec,
)
from tests.support.grammar_walk import accepts, compile_spec

CALL = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"
PATTERNS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    r"^[^[\]]$": ("a", "[]"),
    r"^[[(]$": ("[(", "a])"),
    r"^[a&&b]$": ("ab&", "c"),
    r"^[a~~b]$": ("ab~", "c"),
    r"^[+--]$": ("+,-", "a."),
    r"^[\w-.]$": ("a-.", " /"),
    r"^[\p{Lu}-]$": ("A-", "a"),
    r'^[^]"]$': ("a'", ']"'),
    r'^[^]\\"]$': ("a'", ']"\\'),
    '^[\0-!#-\uffff]$': ("a!", '"'),
    r"^[\W]$": ("é-", "a_0"),
    r"^[^\W]$": ("a_0", "é-"),
    r"^[\D]$": ("a٣", "1"),
    r"^\<\>[\<]$": (["<><"], ["<>>", "<"]),
    r"(?:^a$|^b$)": ("ab", ["ab", "c"]),
    r"(^a)": (["a", "ab"], ["ba"]),
    r"(?<x>^a|b$)": (["ab", "bb", "ac"], ["ba"]),
    r"(a)|(^b)": (["ca", "bc"], ["cb"]),
    r"(a|^b)c": (["xac", "bc"], ["xbc"]),
    r"a(b$|(?:c))": (["xab", "acx"], ["abx"]),
    r"((^|x)a)(y|$)": (["a", "xay"], ["ba", "ab"]),
    r"(?i)a|^b": (["xA", "Bx"], ["xb"]),
    r"(?i)^(?:ab|c)$": (["aB", "C"], ["xab", "cd"]),
    r"^$": ([""], ["a"]),
}  # fmt: skip
"""Texts in which each pattern is found, and others."""


def compile_format(schema: str) -> str:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, schema, "format")
    return str(compile_spec(OutputSpec(form, None, None))["grammar"])


def compile_call(schema: str) -> str:
    return str(compile_spec(call_spec(schema))["grammar"])


def call_spec(schema: str) -> OutputSpec:
    syntaxes = FAMILIES[ToolCallFormat.QWEN_CODER].syntaxes
    tool = CallableTool("f", f'{{"properties": {{"x": {schema}}}}}', True, "tools[0]")
    return OutputSpec(None, ToolCallSpec(syntaxes, (tool,), required=True, several=False), None)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_in_json_and_in_tags(pattern: str) -> None:
    """Also where Rust's regular expressions read it in another way, or not at all."""
    found, others = PATTERNS[pattern]
    schema = json.dumps({"type": "string", "pattern": pattern})
    in_json, in_tags = compile_format(schema), compile_call(schema)

    for text in (*found, *others):
        written = json.dumps(text, ensure_ascii=False)
        expected = text in [*found], text
        assert (accepts(in_json, written), text) == expected
        assert (accepts(in_tags, CALL.format(text)), text) == expected


def test_the_classes_of_a_regular_expression_are_those_of_ecmascript() -> None:
    """Of an output format that is one."""
    form = OutputFormat(OutputFormatKind.REGEX, r"[^[\]]{2}", "format")
    grammar = compile_spec(OutputSpec(form, None, None))["grammar"]

    assert [accepts(grammar, text) for text in ("ab", "a[", "]b")] == [True, False, False]


@pytest.mark.parametrize(
    ("pattern", "anchor"),
    [
        ("a^b", "^"), ("(^a)?b", "^"), ("(a$)*", "$"), ("$(?:)", "$"), ("(?m)^a$", "$"),
        ("(?x)^a # b|c", "^"), (r"(?m)\Aa", r"\A"), (r"a\b", r"\b"), (r"\Ba", r"\b"),
    ],
)  # fmt: skip
def test_a_pattern_with_other_anchors_is_refused_in_tags(pattern: str, anchor: str) -> None:
    """By the anchor and the pattern alone, also where flags make something else of it."""
    compiled = compile_spec(call_spec(json.dumps({"pattern": pattern})))
    problem = f"'{anchor}' in this place of the regex /{pattern}/ cannot be enforced"

    assert (compiled["field"], compiled["problem"][: len(problem)]) == ("tools[0]", problem)
    assert "|" not in compiled["problem"].replace(pattern, "")


@pytest.mark.parametrize("pattern", [r"\Aab\z", r"\Aa|b\z", r"x|\Aab\z"])
def test_other_names_of_anchors_mean_the_same_in_tags(pattern: str) -> None:
    in_tags = compile_spec(call_spec(json.dumps({"pattern": pattern})))

    assert in_tags["ignored"] == []


@pytest.mark.parametrize("part", ["[", "[^", "[:", "[a-", "[\\]", "[]", "(a)", "()", "(a|^"])
def test_the_work_is_linear_in_the_length_of_a_pattern(part: str) -> None:
    """Classes that nothing closes are refused as they are."""
    pattern = part * 40_000
    assert whole_pattern(without_nul(rust_pattern(pattern)))


@pytest.mark.parametrize("pattern", ["[", "[^", "a[", "[a", r"[a\]", "[]", "[^]"])
def test_an_unclosed_class_is_refused(pattern: str) -> None:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps({"pattern": pattern}), "format")
    compiled = compile_spec(OutputSpec(form, None, None))

    assert (compiled["field"], "unclosed" in compiled["problem"]) == ("format", True)
