"""A member has the schema of its name, however the name is written: with escapes, twice, or with
white space where a syntax of calls drops it."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    ToolCallSpec,
)
from tests.property.inference_svc.structured_output.test_keyword_table import FAMILIES_OF_SYNTAXES
from tests.support.examples import examples, timeout
from tests.support.grammar_walk import Walk, accepts, compile_spec, endings
from tests.support.turns import Golden, Parsed

_KEYS = ("a", "b", "ab", "é", "\n", "x", '"', "\\", "", "\x7f", "/", "\u2028", "\U0001f98a", "\x1b")
_LEAVES: tuple[Any, ...] = (
    {"type": "integer"}, {"type": "null"}, {"type": "string"}, {"type": "boolean"}, {}, True, False,
)  # fmt: skip
_keys = st.sampled_from(_KEYS)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """With their keywords in any order, on which llguidance depends."""
    keywords = {
        "type": st.sampled_from(["object", ["object", "null"]]),
        "properties": st.dictionaries(_keys, inner, min_size=1, max_size=2),
        "required": st.lists(_keys, min_size=1, max_size=1),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(
            st.sampled_from(["^x", "^[a-c]", "b$", "[^a-z]"]), inner, min_size=1, max_size=1
        ),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=2, max_size=2),
        "$ref": st.just("#/$defs/other"),
        "maxProperties": st.integers(1, 3),
        "minProperties": st.integers(1, 3),
    }
    words = st.lists(
        st.sampled_from(("type", "properties", "additionalProperties", *keywords)),
        min_size=1,
        max_size=5,
        unique=True,
    )
    return words.flatmap(lambda chosen: st.fixed_dictionaries({w: keywords[w] for w in chosen}))


_leaves = st.sampled_from(_LEAVES)
_schemas = _objects(_objects(_leaves) | _leaves)
_definitions = _objects(_leaves).filter(lambda schema: "$ref" not in schema)


@st.composite
def _spellings(draw: st.DrawFn, key: str) -> str:
    written = ""
    for character in key:
        units = character.encode("utf-16-be").hex()
        escaped = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        ways = [plain, escaped, escaped.upper().replace("U", "u"), f"\\{character}"]
        written += draw(st.sampled_from(ways if character == "/" else ways[:3]))
    return f'"{written}"'


_texts = st.recursive(
    st.sampled_from(["1", "null", '"s"', "true"]),
    lambda inner: st.lists(
        st.tuples(_keys.flatmap(_spellings), inner).map(": ".join), max_size=3
    ).map(lambda members: f"{{{', '.join(members)}}}"),
    max_leaves=4,
).filter(lambda text: text.startswith("{"))


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _compile(schema: Any, family: ToolCallFormat = ToolCallFormat.HERMES) -> dict[str, Any]:
    tool = CallableTool("f", json.dumps(schema), True, "tools[0]")
    syntaxes = FAMILIES[family].syntaxes
    return compile_spec(OutputSpec(None, ToolCallSpec(syntaxes, (tool,), True, False), None))


def _format(schema: Any) -> dict[str, Any]:
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(schema), "schema")
    return compile_spec(OutputSpec(form, None, None))


@timeout(60)
@settings(max_examples=examples(160), deadline=None)
@given(schema=_schemas, other=_definitions, texts=st.lists(_texts, min_size=8, max_size=8))
def test_what_is_accepted_is_valid_however_its_names_are_written(
    schema: dict[str, Any], other: dict[str, Any], texts: list[str]
) -> None:
    """Of two members with one name, readers of JSON take the first or the last."""
    schema = {**schema, "$defs": {"other": other}}
    compiled = _format(schema)
    validator = jsonschema.Draft202012Validator(schema)
    readers: tuple[Callable[[str], Any], ...] = (
        json.loads,
        lambda text: json.loads(text, object_pairs_hook=_first),
    )
    for text in texts if "grammar" in compiled else ():
        if accepts(compiled["grammar"], text):
            assert [validator.is_valid(read(text)) for read in readers] == [True, True], text


_SAME_NAMES = (
    r"\u006b", r"k\u006b", r"\u006B\u006B", "\tkk", "kk\t", "\x1ckk", "kk\xa0", "kk\u3000", "kk\r",
    "kk ", " kk", "kk\n", "kk\x85", "&#107;k",
    "'kk'", '"kk"', "\N{FULLWIDTH LATIN SMALL LETTER K}k",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES_OF_SYNTAXES, ids=lambda each: each.value)
def test_a_known_argument_cannot_be_written_as_another_one(family: ToolCallFormat) -> None:
    """In each syntax of calls, at the top and in an argument that is an object."""
    others = {"type": "object", "additionalProperties": {"type": "integer"}}
    schema = {**others, "properties": {"kk": {"type": "null"}}}
    members = {"properties": {"kk": {"type": "integer"}}, "required": ["kk"]}
    for whole, known in (
        (schema, {**members, "type": "object"}),
        (_inside(schema), _inside({**members, "type": "object", "additionalProperties": False})),
    ):
        walk = Walk(endings(FAMILIES[family], ("kk",)), {}, 0)
        call = walk.text(_compile(known, family)["grammar"])
        grammar = _compile(whole, family)["grammar"]
        assert "kk" in call
        assert accepts(grammar, call.replace("kk", "zz")) or family is ToolCallFormat.MINIMAX_M3
        for name in ("kk", *_SAME_NAMES):
            text = call.replace("kk", name)
            if accepts(grammar, text):
                assert jsonschema.Draft202012Validator(whole).is_valid(_read(family, whole, text))


def _inside(schema: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": {"x": schema}, "required": ["x"],
        "additionalProperties": False,
    }  # fmt: skip


def _read(family: ToolCallFormat, schema: Any, text: str) -> Any:
    offered = OfferedTools({"f": json.dumps(schema)})
    turn = Golden("", TurnFormat(tool_calls=family), text, Parsed(), offered).parse([text])
    assert [name for name, _ in turn.calls] == ["f"], text
    return json.loads(turn.calls[0][1])


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {"type": "null"}}},
        {"required": ["a"], "patternProperties": {"^q": {"type": "null"}}},
        {"properties": {"a": {"type": "null"}}, "patternProperties": {"^x": {"type": "integer"}}},
        {"properties": {"a": {"type": "null"}, "\n": {}}, "patternProperties": {"\\s": {}}},
        {"allOf": [{"properties": {"a": {"type": "null"}}}, {"additionalProperties": True}]},
    ],
)
def test_other_members_have_any_names(schema: dict[str, Any]) -> None:
    """Also those with characters that need an escape."""
    grammar = _format({"type": "object", **schema})["grammar"]
    names = ("a", "b", "A", "é", "\U0001f98a", '"', "\\", "/", "a\\", "a\t", "")

    for name in names:
        text = json.dumps({"a": None, name: None if name == "a" else 1}, ensure_ascii=False)
        assert accepts(grammar, text), text
    assert not accepts(grammar, '{"a": null, "\\u0061": 1}')
    assert not accepts(grammar, '{"a": null, "a": 1}')


@pytest.mark.parametrize(
    "pointer", ["#/examples/0", "#/x-kinds/const", "#/x-kinds/%63onst", "#here"]
)
def test_a_schema_has_its_names_wherever_a_reference_finds_it(pointer: str) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "null"}}}
    schema = {
        "type": "object", "properties": {"x": {"$ref": pointer}}, "examples": [inner],
        "x-kinds": {"const": inner}, "$defs": {"y": {**inner, "$anchor": "here"}},
    }  # fmt: skip
    grammar = _format(schema)["grammar"]

    assert accepts(grammar, '{"x": {"a": null, "b": 1}}')
    assert not accepts(grammar, '{"x": {"\\u0061": 1}}')


def test_strings_beside_known_names_have_control_characters() -> None:
    """A terminal's text has \\u001b; beside patterns of names it has none."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    texts = ['{"a": "\\u001b[0m"}', '{"b": "\\u001b"}', '{"\\u001b": 1}']
    open_patterns = {**schema, "patternProperties": {"^x": {"type": "integer"}}}

    assert [accepts(_format(schema)["grammar"], text) for text in texts] == [True] * 3
    assert [accepts(_format(open_patterns)["grammar"], text) for text in texts] == [False] * 3


@pytest.mark.parametrize(
    ("schema", "is_refused"),
    [
        ({"minProperties": 2}, True),
        ({"minProperties": 1}, False),
        ({"minProperties": 2, "required": ["a"]}, False),
        (
            {"minProperties": 2, "patternProperties": {"^x": {}}, "additionalProperties": False},
            True,
        ),
        ({"maxProperties": 2}, False),
    ],
)
def test_members_are_counted_by_their_names(schema: dict[str, Any], is_refused: bool) -> None:
    """A name that comes twice would count twice."""
    compiled = _format({"type": "object", "properties": {"x": {"type": "object", **schema}}})

    assert ("problem" in compiled) is is_refused, compiled
    if is_refused:
        assert "'minProperties'" in compiled["problem"]
        assert compiled["pointer"] == "#/properties/x"
