"""Grammars of JSON schemas, with numbers of any digits: what they allow is valid, and what is valid
they allow. `jsonschema` with decimals is the oracle."""

import json
from decimal import Decimal, localcontext
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    ToolCallSpec,
    ToolCallSyntax,
)
from tests.support.examples import examples, timeout
from tests.support.grammar_walk import JSON_ENDINGS, Walk, accepts, compile_spec
from tests.support.json_numbers import HARD_NUMBERS, number_texts

_NUMBERS = (
    "0", "-1", "0.5", "0.1", "7", "100", "9007199254740993", "-9223372036854775808", "12.25",
    "1234567890123456789", "18446744073709551616", "1234.5678901234567", "0.30000000000000004",
    "340282346638528860000000000000000000000", "-0.00001", "0.12345678901234567890123",
)  # fmt: skip
_numbers = st.one_of(
    st.sampled_from(_NUMBERS).map(Decimal),
    st.decimals(-2000, 2000, places=2),
    st.integers(-(10**20), 10**20).map(Decimal),
)
_KEYS = ("a", "b", "id", "a b", "é")


def _plain(number: Decimal) -> Decimal | int:
    return int(number) if number == number.to_integral_value() else number.normalize()


@st.composite
def _ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted(map(_plain, (draw(_numbers), draw(_numbers))))
    minimum = draw(st.sampled_from(["minimum", "exclusiveMinimum", ""]))
    maximum = draw(st.sampled_from(["maximum", "exclusiveMaximum", ""]))
    bounds = {minimum: low, maximum: high + 1}
    # A number without bounds may have an exponent of more digits than decimals have.
    kind = draw(st.sampled_from(["number", "integer"])) if minimum or maximum else "integer"
    schema = {"type": kind, **{word: bound for word, bound in bounds.items() if word}}
    if draw(st.booleans()):
        return schema
    keywords = [{word: bound} for word, bound in schema.items()]
    return {"allOf": keywords}


_values = st.one_of(
    _numbers.map(_plain),
    st.sampled_from(["", "a", "1", 'é"\\', True, None]),
    st.lists(_numbers.map(_plain), max_size=2),
    st.dictionaries(st.sampled_from(_KEYS), _numbers.map(_plain), max_size=2),
)
_leaves = st.one_of(
    _ranges(),
    st.builds(lambda value: {"const": value}, _values),
    st.builds(lambda values: {"enum": values}, st.lists(_values, min_size=1, max_size=3)),
    st.sampled_from(
        [
            {"type": "string", "minLength": 1, "maxLength": 3},
            {"type": ["boolean", "null"]},
            {"$ref": "#/$defs/id"},
            {"type": "number", "multipleOf": Decimal("0.01"), "minimum": -3, "maximum": 10**20},
        ]
    ),
)


def _object(members: dict[str, Any], needed: set[str]) -> dict[str, Any]:
    return {
        "type": "object", "properties": members, "required": sorted(needed & set(members)),
        "additionalProperties": False,
    }  # fmt: skip


_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 2}, inner),
        st.builds(
            _object,
            st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
            st.sets(st.sampled_from(_KEYS)),
        ),
        st.builds(lambda *each: {"anyOf": [*each]}, inner, inner),
    ),
    max_leaves=5,
)
_DEFINITIONS = {"$defs": {"id": {"type": "integer", "exclusiveMinimum": 9007199254740993}}}


def write(value: Any) -> str:
    """JSON text with all digits, in the style of grammars."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        members = ", ".join(f"{write(key)}: {write(each)}" for key, each in value.items())
        return f"{{{members}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(write, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _instance(draw: st.DataObject, schema: dict[str, Any]) -> Any:
    """A value that a schema probably allows."""
    if "$ref" in schema:
        return 9007199254740993 + draw.draw(st.integers(1, 99))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema or "anyOf" in schema:
        chosen = draw.draw(st.sampled_from(schema.get("enum") or schema["anyOf"]))
        return chosen if "enum" in schema else _instance(draw, chosen)
    if "allOf" in schema:
        return _instance(draw, {word: each[word] for each in schema["allOf"] for word in each})
    match schema["type"]:
        case "object":
            keys = [
                k
                for k in schema["properties"]
                if k in schema["required"] or draw.draw(st.booleans())
            ]
            return {key: _instance(draw, schema["properties"][key]) for key in keys}
        case "array":
            least = schema.get("minItems", 0)
            size = draw.draw(st.integers(least, schema.get("maxItems", least + 2)))
            return [_instance(draw, schema["items"]) for _ in range(size)]
        case "string":
            return draw.draw(st.text("aé\U0001f98a ", min_size=1, max_size=3))
        case "number" | "integer":
            return _near(draw, schema)
        case kinds:
            return draw.draw(st.sampled_from([True, False, None]) if kinds else st.none())


def _near(draw: st.DataObject, schema: dict[str, Any]) -> Any:
    bounds = [Decimal(each) for each in schema.values() if isinstance(each, int | Decimal)]
    steps = ["0", "1", "-1"] + ["0.01", "-0.01", "0.1"] * (schema["type"] == "number")
    step = draw.draw(st.sampled_from(steps))
    return _plain(draw.draw(st.sampled_from(bounds or [Decimal(5)])) + Decimal(step))


def compile_format(schema: Any) -> dict[str, Any]:
    return compile_text(write(schema))


def compile_text(schema: str) -> dict[str, Any]:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, schema, "constraint.json_schema")
    return compile_spec(OutputSpec(form, None, None))


def compile_tool(schema: str, *, strict: bool) -> dict[str, Any]:
    tool = CallableTool("f", schema, strict, "tools[0]")
    calls = ToolCallSpec((ToolCallSyntax("[", "|", "]"),), (tool,), True, False)
    return compile_spec(OutputSpec(None, calls, None))


def is_valid(value: Any, schema: Any) -> bool:
    """Whether a value matches a schema, computed with decimals."""
    with localcontext(prec=500):
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (340282346638528860000000000000000000000, 340282346638528860000000000000000000001),
        (192837465519283746551928374655192837465, 192837465519283746551928374655192837466),
        (-192837465519283746551928374655192837466, -192837465519283746551928374655192837465),
        (10**299 + 1, 1797 * 10**305),
    ],
    ids=["close and round", "close", "close and negative", "like those of doubles"],
)
def test_bounds_with_many_digits_are_followed_to_the_end(low: int, high: int) -> None:
    """The lexer must not run out of expressions on the way; an alternative takes more of them."""
    limits = {"type": "number", "minimum": low, "maximum": high}
    grammar = compile_format({"anyOf": [{"const": 0}, limits]})["grammar"]
    texts = {Walk(JSON_ENDINGS, {}, seed).text(grammar) for seed in range(8)}

    assert len(texts) > 1
    assert all(text == "0" or low <= Decimal(text) <= high for text in texts), texts


@timeout(60)
@settings(max_examples=examples(150), deadline=None)
@given(schema=_schemas, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_a_grammar_allows_what_is_valid_with_every_digit(
    schema: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    """A random text that it allows, and a random instance of the schema."""
    schema = {**schema, **_DEFINITIONS}
    with localcontext(prec=500):
        value = _instance(data, schema)
    compiled = compile_format(schema)
    if "nothing" in compiled.get("problem", "") or "nsatisfiable" in compiled.get("problem", ""):
        return
    assert "grammar" in compiled, compiled
    text = Walk(JSON_ENDINGS, {}, seed).text(compiled["grammar"])
    assert is_valid(json.loads(text, parse_float=Decimal), schema), text
    assert accepts(compiled["grammar"], write(value)) == is_valid(value, schema), write(value)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ('{"const": 1234567890123456789}', "1234567890123456789", "1234567890123456768"),
        ('{"const": 9007199254740993}', "9007199254740993", "9007199254740992"),
        ('{"enum": [1234.5678901234567, 1]}', "1234.5678901234567", "1234.5678901234568"),
        (
            '{"const": {"id": [18446744073709551616]}}',
            '{"id": [18446744073709551616]}',
            '{"id": [1]}',
        ),
        ('{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}', "0.5", "0"),
        (
            '{"type": "integer", "minimum": -9223372036854775808}',
            "-9223372036854775808",
            "-9223372036854775809",
        ),
        (
            '{"type": "number", "minimum": -3e38, "maximum": 3.4028234663852886e38}',
            "1.5",
            "340282346638528860000000000000000000001",
        ),
        ('{"type": "number", "minimum": -1.797e308, "maximum": 1.797e308}', "-7", '"7"'),
        (
            '{"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}',
            "9007199254740991",
            "9007199254740992",
        ),
        (
            '{"type": "array", "uniqueItems": false, "items": {"type": "null"}}',
            "[null, null]",
            "[1]",
        ),
        ('{"$id": "no URI", "type": "boolean"}', "true", "1"),
        ('{"$id": "http://[no", "type": "boolean"}', "true", "1"),
        (
            '{"$id": "#root", "properties": {"a": {"$id": "#root/a", "type": "null"}}}',
            '{"a": null}',
            '{"a": 1}',
        ),
        ('{"$id": "https://example.com/a#b", "type": "boolean"}', "true", "1"),
        (
            '{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#a",'
            ' "definitions": {"x": {"$id": "#a", "type": "boolean"}}}',
            "true",
            "1",
        ),
        (
            '{"$schema": "https://json-schema.org/draft-07/schema#", "type": "boolean"}',
            "true",
            "1",
        ),
        ('{"$schema": "https://example.com/dialect", "type": "boolean"}', "true", "1"),
        (
            '{"type": "object", "dependentRequired": {}, "dependentSchemas": {},'
            ' "unevaluatedProperties": true, "properties": {"a": {"unevaluatedItems": {}}}}',
            '{"a": [1]}',
            "[]",
        ),
        ('{"type": "string", "format": "date"}', '"2024-02-29"', '"0898-02-29"'),
        (
            '{"format": "date-time", "pattern": "Z$"}',
            '"2024-02-29T10:00:00Z"',
            '"2023-02-29T10:00:00Z"',
        ),
        ('{"properties": {"a": {"format": "date"}}}', '{"a": 1}', '{"a": "2023-02-29"}'),
    ],
)
def test_named_numbers_and_keywords_are_enforced(schema: str, valid: str, invalid: str) -> None:
    """Those of clients and of zod, which were rounded or refused, and days that do not exist."""
    compiled = compile_text(schema)

    assert compiled["ignored"] == []
    assert accepts(compiled["grammar"], valid)
    assert not accepts(compiled["grammar"], invalid)


_PLACES = (
    '{"const": %s}', '{"enum": [[%s]]}', '{"type": "number", "minimum": %s}',
    '{"type": "integer", "exclusiveMaximum": %s}', '{"type": "number", "multipleOf": %s}',
    '{"type": "string", "minLength": %s}', '{"type": "array", "maxItems": %s}',
    '{"type": "null", "default": %s}', '{"type": %s}', '{"properties": {"a": %s}}', "%s",
)  # fmt: skip


@timeout(60)
@settings(max_examples=examples(60), deadline=None)
@given(place=st.sampled_from(_PLACES), number=number_texts() | st.sampled_from(HARD_NUMBERS))
def test_any_number_compiles_or_is_refused_with_its_field(place: str, number: str) -> None:
    """Also one whose exponent no decimal holds; of an output format and of tools."""
    schema = place % number
    compiled = compile_text(schema)
    assert "grammar" in compiled or compiled["field"] == "constraint.json_schema"

    arguments = f'{{"properties": {{"a": {schema}}}}}'
    strict = compile_tool(arguments, strict=True)
    assert "grammar" in strict or strict["field"] == "tools[0]"
    loose = compile_tool(arguments, strict=False)
    assert "grammar" in loose or loose["field"] == "tools[0]"


_SMALL = {"type": "number", "maximum": Decimal("0.95")}


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (_SMALL, ["0.9", "0.950", "0.95", "-1"]),
        ({"type": "number", "minimum": Decimal("-37.41")}, ["-37.4", "-37.410", "5"]),
        ({"anyOf": [{"const": [0]}, {"type": "array", "items": _SMALL}]}, ["[0]", "[0.1, 0]"]),
        (
            {
                "anyOf": [
                    {"const": {"a": Decimal("0.1234567890123456789")}},
                    {"type": "object", "properties": {"a": _SMALL}, "additionalProperties": False},
                ]
            },
            ['{"a": 0.1234567890123456789}', '{"a": 0.12}', "{}"],
        ),
        ({"type": "object", "patternProperties": {"^x": _SMALL}}, ['{"x": 0.95}']),
    ],
    ids=["maximum", "minimum", "array", "object", "what exact rules lack"],
)
def test_each_number_within_a_bound_is_allowed(schema: dict[str, Any], texts: list[str]) -> None:
    """Also with fewer digits than the bound, and beside fixed values that begin alike."""
    grammar = compile_format(schema)["grammar"]

    assert [accepts(grammar, text) for text in texts] == [True] * len(texts)


def test_a_narrow_range_of_long_numbers_can_be_written() -> None:
    """Many of its digits follow from each other, and are found in one step."""
    low = 340282346638528860000000000000000000000
    number = {"type": "number", "minimum": low, "maximum": low + 1}
    grammar = compile_format({"anyOf": [{"type": "string", "maxLength": 3}, number]})["grammar"]
    texts = {Walk(JSON_ENDINGS, {}, seed).text(grammar) for seed in range(20)}

    assert any(text.startswith(str(low)[:-1]) for text in texts)
