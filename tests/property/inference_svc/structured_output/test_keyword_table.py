"""Each keyword of JSON Schema in each syntax of calls: enforced, or refused by its name."""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.structured_output.compile_job import compile_grammar
from inference_svc.structured_output.spec import CallableTool, OutputSpec, ToolCallSpec
from tests.support.examples import examples
from tests.support.grammar_walk import END, SIZE, Walk, endings
from tests.support.turns import Golden, Parsed

FAMILIES_OF_SYNTAXES = (
    ToolCallFormat.HERMES,
    ToolCallFormat.PYTHONIC,
    ToolCallFormat.GEMMA,
    ToolCallFormat.QWEN_CODER,
    ToolCallFormat.GLM,
    ToolCallFormat.DEEPSEEK_V32,
    ToolCallFormat.KIMI_K3,
    ToolCallFormat.MINIMAX,
    ToolCallFormat.MINIMAX_M3,
    ToolCallFormat.MINICPM,
    ToolCallFormat.HUNYUAN,
)
"""One family for each way to write arguments."""
_OBJECT = {"type": "object", "properties": {"p": {"type": "integer"}, "q": {"type": "boolean"}}}
_KIND = {"properties": {"k": {"const": "a"}}, "required": ["k"], "type": "object"}
_BOTH = {"type": "object", "required": ["k", "v"], "additionalProperties": False}
_TEXT = {**_BOTH, "properties": {"k": {"const": "t"}, "v": {"type": "string"}}}
_NUMBER = {**_BOTH, "properties": {"k": {"const": "n"}, "v": {"type": "number"}}}
VALUES: dict[str, Any] = {
    "type": {"type": ["integer", "null"]},
    "type of text": {"type": ["string", "integer", "null"]},
    "const": {"const": 1234567890123456789},
    "const of text": {"const": "12"},
    "enum": {"enum": ["a", "null", None, 9007199254740993, 0.1, "a b"]},
    "enum of lists": {"enum": [[1, "a"], {"a": 1.5}]},
    "enum + pattern": {"type": "string", "enum": ["ab", "cd"], "pattern": "^a"},
    "enum + type": {"type": "integer", "enum": [1, 2.5, "a"]},
    "minLength": {"type": "string", "minLength": 2, "maxLength": 3},
    "pattern": {"type": "string", "pattern": r"^\d{2}-\w$"},
    "pattern or null": {"anyOf": [{"type": "string", "pattern": "^[a-z]{2}$"}, {"type": "null"}]},
    "format": {"type": "string", "format": "date"},
    "minimum": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    "minimum + text": {"type": ["integer", "string"], "minimum": 5, "maximum": 20, "minLength": 2},
    "multipleOf": {"type": "number", "multipleOf": 0.01},
    "multipleOf + text": {"type": ["number", "string"], "multipleOf": 3, "minLength": 3},
    "allOf": {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 3}, {"pattern": "^a"}]},
    "allOf of objects": {
        "allOf": [_OBJECT, {"required": ["p"], "properties": {"p": {"minimum": 5}}}],
    },
    "allOf of closed objects": {
        "allOf": [
            {**_OBJECT, "additionalProperties": False},
            {"properties": {"p": {"maximum": 5}}, "additionalProperties": {"const": True}},
        ],
    },
    "anyOf": {"anyOf": [{"type": "boolean"}, {"type": "integer", "maximum": 3}]},
    "anyOf beside type": {"type": "string", "anyOf": [{"enum": ["ab"]}, {"minLength": 3}]},
    "anyOf of objects": {**_OBJECT, "anyOf": [{"required": ["p"]}, {"required": ["q"]}]},
    "oneOf": {"oneOf": [{"type": "boolean"}, {"enum": [1, "x"]}]},
    "oneOf, overlapping": {
        "oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]
    },
    "oneOf of numbers": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "oneOf of kinds": {
        "oneOf": [_KIND, {**_KIND, "properties": {"k": {"const": "b"}, "v": {"const": 1}}}]
    },
    "oneOf of kinds by default": {
        "discriminator": {"propertyName": "k"},
        "oneOf": [
            {"$ref": "#/$defs/kind"},
            {"type": "object", "properties": {"k": {"const": "b"}, "v": {"const": 1}}},
            {"type": "null"},
        ],
    },
    "anyOf of types": {"type": "object", "anyOf": [_TEXT, _NUMBER]},
    "anyOf of lists": {
        "anyOf": [
            {"type": "array", "items": items, "minItems": 1, "maxItems": 3}
            for items in ({"type": "string"}, {"type": "integer"}, {"type": "array"})
        ],
    },
    "anyOf in lists": {
        "type": "array", "items": {"anyOf": [_TEXT, _NUMBER]}, "minItems": 1, "maxItems": 3,
    },
    "not": {"type": "string", "not": {"const": "a"}},
    "if": {"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 2}},
    "items": {"type": "array", "items": {"type": "integer", "minimum": 3}, "maxItems": 2},
    "minItems": {"type": "array", "items": {"enum": ["x", 1]}, "minItems": 2, "maxItems": 3},
    "prefixItems": {
        "type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 1,
    },
    "uniqueItems": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    "uniqueItems or a number": {
        "anyOf": [{"type": "array", "uniqueItems": True}, {"type": "number", "minimum": 0.5}],
    },
    "contains": {"type": "array", "items": {"type": "boolean"}, "contains": {"const": True}},
    "properties": {**_OBJECT, "required": ["p"], "additionalProperties": False},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
    "properties + additionalProperties": {**_OBJECT, "additionalProperties": {"type": "boolean"}},
    "name of the argument": {
        "type": "object", "properties": {"x": _OBJECT}, "required": ["x"],
        "additionalProperties": False,
    },
    "patternProperties": {
        "type": "object", "patternProperties": {"^a": {"type": "integer"}},
        "additionalProperties": False,
    },
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "minProperties": {**_OBJECT, "minProperties": 1, "additionalProperties": False},
    "maxProperties": {**_OBJECT, "maxProperties": 1},
    "dependentRequired": {**_OBJECT, "dependentRequired": {"p": ["q"]}},
    "dependentSchemas": {**_OBJECT, "dependentSchemas": {"p": {"required": ["q"]}}},
    "unevaluatedProperties": {**_OBJECT, "unevaluatedProperties": False},
    "$ref": {"$ref": "#/$defs/x"},
    "$ref to itself": {"$ref": "#/$defs/tree"},
    "false": {"type": "object", "properties": {"p": False, "q": {"type": "boolean"}}},
}  # fmt: skip
DEFINITIONS = {
    "kind": {**_KIND, "required": []},
    "x": {"type": "integer", "minimum": -9223372036854775808, "maximum": -5},
    "tree": {
        "type": "object",
        "properties": {"n": {"enum": [9007199254740993]}, "c": {"$ref": "#/$defs/tree"}},
        "additionalProperties": False,
    },
}
_CLOSED = {"type": "object", "additionalProperties": False, "$defs": DEFINITIONS}
SCHEMAS: dict[str, Any] = {
    **{
        name: {**_CLOSED, "properties": {"x": value}, "required": ["x"]}
        for name, value in VALUES.items()
    },
    **{
        f"{name} of all": {**VALUES[name], "$defs": DEFINITIONS}
        for name in (
            "allOf of objects", "allOf of closed objects", "anyOf of objects", "anyOf of types",
            "oneOf of kinds", "oneOf of kinds by default", "additionalProperties",
            "patternProperties", "propertyNames", "minProperties", "dependentRequired",
            "dependentSchemas", "unevaluatedProperties", "false",
        )
    },
    **{
        f"name {key!r}": {**_CLOSED, "properties": {key: {"const": "v"}}, "required": [key]}
        for key in (
            "$filter", "a b", "a:b", "a-b", "é", "ชื่อ", "item", "/x", "a,b", 'a"b', "a<b", "",
        )
    },
    **{
        f"$ref to {pointer}": {
            **_CLOSED, **elsewhere, "properties": {"x": {"$ref": pointer}}, "required": ["x"],
        }
        for pointer, elsewhere in (
            ("#/examples/0", {"examples": [{"type": "integer", "minimum": 7}]}),
            ("#/default", {"default": {"type": "string", "enum": ["a b"]}}),
            ("#/readOnly", {"readOnly": True}),
            ("#/x-kinds/a~1b", {"x-kinds": {"a/b": {"type": "array", "items": {"const": 3}}}}),
            ("#/x-kinds/a%20b/1", {"x-kinds": {"a b": [0, {"$ref": "#/$defs/x"}]}}),
            ("#here", {"$defs": {"a": {"$anchor": "here", "type": "boolean"}}}),
        )
    },
    "names inside": {
        **_CLOSED,
        "properties": {"x": {**_OBJECT, "properties": {"item": {"const": 1}, "a b": {"const": 2}}}},
        "required": ["x"],
    },
}  # fmt: skip
_TAGS = (
    ToolCallFormat.QWEN_CODER, ToolCallFormat.GLM, ToolCallFormat.MINIMAX,
    ToolCallFormat.MINIMAX_M3, ToolCallFormat.MINICPM, ToolCallFormat.HUNYUAN,
)  # fmt: skip
_WITHOUT_JSON = FAMILIES_OF_SYNTAXES[2:]
REFUSED: dict[str, Collection[ToolCallFormat]] = {
    **dict.fromkeys(
        (
            "oneOf, overlapping", "oneOf of numbers", "not", "if", "uniqueItems",
            "uniqueItems or a number", "contains",
            "propertyNames", "maxProperties", "dependentRequired", "dependentSchemas",
            "unevaluatedProperties", "propertyNames of all", "dependentRequired of all",
            "dependentSchemas of all", "unevaluatedProperties of all",
        ),
        FAMILIES_OF_SYNTAXES,
    ),
    "multipleOf + text": _TAGS,
    "anyOf of types of all": _TAGS,
    **dict.fromkeys(
        ("patternProperties of all", "minProperties of all", "$ref to #here"), _WITHOUT_JSON
    ),
    **dict.fromkeys(("name 'a\"b'", "name 'a<b'", "name ''"), _WITHOUT_JSON[1:]),
}  # fmt: skip
"""The families that refuse a strict tool with a schema; all others enforce it."""


NO_SCHEMAS = (
    "#/examples/0", "#/default", "#/title", "#/x-kinds/a", "#/properties/x/$ref",
    "#/$defs/x/minimum", "#/$defs/none", "#odd", "https://example.com/x",
)  # fmt: skip
"""References to what is there and no schema, or to nothing."""


def exact_json(text: str) -> Any:
    """Parse JSON with all digits of numbers."""
    return json.loads(text, parse_float=_exact_number)


def _exact_number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # JSON limits no exponent, as "-22E5966603139202163301491322"
        return float(text)


def calls(family: ToolCallFormat, schema: Any, *, strict: bool = True) -> dict[str, Any]:
    tool = CallableTool("f", json.dumps(schema), strict, "tools[0]")
    syntaxes = FAMILIES[family].syntaxes
    spec = OutputSpec(None, ToolCallSpec(syntaxes, (tool,), required=True, several=False), None)
    asked = json.loads(json.dumps(asdict(spec)))  # as in the sandbox
    return compile_grammar(
        {"asked": asked, "vocabulary": {"size": SIZE, "control": {}, "ends": [END]}}
    )


def written(family: ToolCallFormat, schema: Any, grammar: str) -> Iterator[tuple[str, Any]]:
    """Texts that the grammar allows, and the arguments that are read from them."""
    keys = ("x", *schema.get("properties", ()))
    offered = OfferedTools({"f": json.dumps(schema)})
    for seed in range(examples(6)):
        text = Walk(endings(FAMILIES[family], keys), {}, seed).text(grammar)
        turn = Golden("", TurnFormat(tool_calls=family), text, Parsed(), offered).parse([text])
        assert [name for name, _ in turn.calls] == ["f"], text
        yield text, exact_json(turn.calls[0][1])


@pytest.mark.parametrize("family", FAMILIES_OF_SYNTAXES, ids=lambda each: each.value)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_keyword_is_enforced_or_refused_by_name(name: str, family: ToolCallFormat) -> None:
    """With `strict`, all arguments that a grammar allows match the schema; what a syntax cannot
    express is an error that names it. Without, it is named as ignored."""
    schema = SCHEMAS[name]
    compiled = calls(family, schema)
    assert ("problem" in compiled) == (family in REFUSED.get(name, ())), compiled
    if "problem" in compiled:
        assert "option" not in compiled["problem"]
        assert compiled["field"] == "tools[0]"
        keyword = "member name" if name.startswith("name ") else name.split()[0].strip(",")
        assert keyword in compiled["problem"]
        assert calls(family, schema, strict=False)["ignored"] == ["tools[0]"]
        return

    validator = jsonschema.Draft202012Validator(
        exact_json(json.dumps(schema)), format_checker=jsonschema.FormatChecker()
    )
    for text, arguments in written(family, schema, compiled["grammar"]):
        assert not list(validator.iter_errors(arguments)), text


@pytest.mark.parametrize("family", FAMILIES_OF_SYNTAXES, ids=lambda each: each.value)
@pytest.mark.parametrize("pointer", NO_SCHEMAS)
def test_a_reference_to_no_schema_is_refused(pointer: str, family: ToolCallFormat) -> None:
    """With `strict`, in each syntax; without, it is named as ignored."""
    about = {"title": "a", "examples": [5], "default": "b", "x-kinds": {"a": [{}]}}
    schema = {**_CLOSED, **about, "properties": {"x": {"$ref": pointer}}}
    compiled = calls(family, schema)

    assert compiled["field"] == "tools[0]"
    [ignored] = calls(family, schema, strict=False)["ignored"]
    assert ignored.startswith("tools[0]")
