"""Arguments of tools whose schemas have references, patterns or malformed keywords."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from inference_svc.structured_output.argument_rules import ArgumentRules
from inference_svc.structured_output.compile_job import byte_tokenizer, compile_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.plain_schema import PlainSchema
from inference_svc.structured_output.spec import (
    ArgumentSyntax,
    CallableTool,
    OutputSpec,
    ToolCallSpec,
    ToolCallSyntax,
)

JSON = ToolCallSyntax("[", "|", "]")
TAGGED = ArgumentSyntax("<", ">", ";")
TAGS = ToolCallSyntax("[", "|", "]", arguments=TAGGED)
ASSIGNED = ArgumentSyntax("", "=", between=",", quotes=None, brackets=True)
PYTHON = ToolCallSyntax("[", "|", "]", arguments=ASSIGNED)
OTHER = CallableTool("g", '{"properties": {"n": {"type": "integer"}}}', True, "tools[1]")
TREE = {
    "properties": {"c": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["c"],
    "additionalProperties": False,
}
SIBLING = {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
DEFINED = {
    "$ref": "#/$defs/A",
    "$defs": {"A": {"properties": {"a": {"type": "integer"}}, "additionalProperties": True}},
}
EITHER = {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}, "required": ["a"]}


def compile_tool(schema: Any, way: ToolCallSyntax, *, strict: bool = True) -> dict[str, Any]:
    tool = CallableTool("f", json.dumps(schema), strict, "tools[0]")
    spec = OutputSpec(None, ToolCallSpec((way,), (tool, OTHER), True, False), None)
    asked = json.loads(json.dumps(asdict(spec)))  # as in the sandbox
    vocabulary = {"size": 300, "control": {}, "ends": [299]}
    return compile_grammar({"asked": asked, "vocabulary": vocabulary})


def matches(compiled: dict[str, Any], text: str) -> bool:
    matcher = build_matcher(byte_tokenizer(300, {}, [299]), compiled["grammar"])
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("way", "schema", "valid", "invalid"),
    [
        (JSON, TREE, '{"c": [{"c": []}]}', '{"c": [{}]}'),
        (TAGS, TREE, '<c>[{"c": []}];', "<c>[{}];"),
        (JSON, SIBLING, '{"b": 1}', '{"b": "x"}'),
        (TAGS, SIBLING, "<b>1;", "<b>x;"),
        (PYTHON, SIBLING, "b=1", 'b="x"'),
        (JSON, DEFINED, '{"a": 1, "z": 2}', '{"a": "x"}'),
        (TAGS, DEFINED, "<a>1;<z>2;", "<a>x;"),
        (TAGS, EITHER, "<a>axx;", "<a>xax;"),
        (TAGS, EITHER, "<a>xb;", "<a>xbx;"),
    ],
)
def test_references_and_patterns_keep_their_meaning(
    way: ToolCallSyntax, schema: Any, valid: str, invalid: str
) -> None:
    """Of the whole schema, in every syntax of arguments."""
    compiled = compile_tool(schema, way)

    assert matches(compiled, f"[f|{valid}]")
    assert not matches(compiled, f"[f|{invalid}]")


NESTED: dict[str, Any] = {}
for _ in range(300):
    NESTED = {"properties": {"a": NESTED}}
MALFORMED: list[Any] = [
    {"properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": "1"}}},
    {"properties": {"a": {"type": "string", "format": []}}},
    {"properties": {"a": {"$ref": "#/properties/b"}}},
    {"properties": {"a": {}}, "required": [["a"]]},
    NESTED,
    {"properties": {"a": {"type": "string", "format": 1}, "b": {"items": {"not": {}}}}},
]


@pytest.mark.parametrize(
    "schema", MALFORMED, ids=["number", "format", "reference", "key", "deep", "keyword"]
)
@pytest.mark.parametrize(
    ("way", "valid", "invalid"),
    [(JSON, '{"n": 1}', '{"n": "x"}'), (TAGS, "<n>1;", "<n>x;"), (PYTHON, "n=1", 'n="x"')],
    ids=["JSON", "tags", "Python"],
)
def test_a_malformed_schema_costs_only_its_own_tool(
    way: ToolCallSyntax, valid: str, invalid: str, schema: Any
) -> None:
    """The arguments of the others are still enforced."""
    compiled = compile_tool(schema, way, strict=False)

    assert matches(compiled, f"[g|{valid}]")
    assert not matches(compiled, f"[g|{invalid}]")


def test_references_do_not_multiply() -> None:
    """A schema with many references to itself compiles in time."""
    keys = "abcdefgh"
    compiled = compile_tool({"properties": {key: {"$ref": "#"} for key in keys}}, PYTHON)

    assert matches(compiled, '[f|a={"b": {"c": {}}}]')
    assert not matches(compiled, '[f|a={"b": {"c": 1}}]')


def test_what_is_not_enforced_does_not_multiply_references() -> None:
    """A schema of which something is reported costs as much as one without."""
    members: dict[str, Any] = {key: {"$ref": "#"} for key in "abcd"}
    schema = {"type": "object", "properties": {**members, "n": {"not": {"type": "null"}}}}
    rules, reported = ArgumentRules({}), list[str]()
    rules.arguments(PlainSchema(schema), ASSIGNED, reported.append, strict=False)

    assert set(reported) == {"'not'"}
    assert len(reported) < 100
    assert len(list(rules.lines)) < 100


def test_every_tool_is_named_whose_shared_rule_is_not_enforced() -> None:
    """A rule that two tools share, and two members of one of them, is reported of both tools."""
    schema = {"properties": {"a": {"not": {}}, "b": {"not": {}}}, "required": ["a"]}
    rules = ArgumentRules({})
    reports = [list[str](), list[str]()]
    for reported in reports:
        rules.arguments(PlainSchema(schema), TAGGED, reported.append, strict=False)

    assert [set(reported) for reported in reports] == [{"'not'"}, {"'not'"}]


@pytest.mark.parametrize(
    ("value", "is_value"), [("\nab\n", True), ("\nx</p>ab\n", False), ("\n</p>ab\n", False)]
)
def test_a_value_between_line_breaks_ends_at_the_first_closing_text(
    value: str, is_value: bool
) -> None:
    """As the parser reads it: the limits of a string hold for what is before it."""
    syntax = ArgumentSyntax("<p=", ">", "</p>", padded=True)
    schema = {"properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"]}
    compiled = compile_tool(schema, ToolCallSyntax("[CALLS]", ":", "!", arguments=syntax))

    assert matches(compiled, f"[CALLS]f:<p=a>{value}</p>!") is is_value
