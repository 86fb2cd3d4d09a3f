"""Calls that the grammars of all families allow are read by the families' parsers, and their
arguments match the schemas of their tools."""

import json
from dataclasses import asdict
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.structured_output.compile_job import compile_grammar
from inference_svc.structured_output.spec import CallableTool, OutputSpec, ToolCallSpec
from tests.support.examples import examples
from tests.support.grammar_walk import END, FIRST_CONTROL, SIZE, Walk, endings
from tests.support.turns import Golden, Parsed

ENFORCED = [name for name, family in FAMILIES.items() if family.syntaxes]
KEYS = ("city", "a", "b_1", "when", "Z", "k", "key_2", "zz")
COLOR = {"$ref": "#/$defs/color"}

_leaves = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string"},
        {"type": "string", "minLength": 1, "maxLength": 3},
        {"type": "string", "pattern": "^a/[b-d]{2}$"},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"enum": ["red", "dark red", "é<"]},
        {"const": 7},
        {"enum": ["1", 1, 9007199254740993, None, "\nx", ""]},
        {"anyOf": [{"type": "string", "pattern": "^[a-f0-9]{1,2}$"}, {"type": "integer"}]},
        {"allOf": [{"type": ["string", "null"], "minLength": 2}, {"maxLength": 3}]},
        {"type": ["boolean", "string"], "anyOf": [{"enum": ["no", True]}, {"format": "date"}]},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "array", "items": COLOR}]},
        COLOR,
    ]
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1}, inner),
        st.dictionaries(st.sampled_from(KEYS[5:]), inner, max_size=2).map(
            lambda members: _object(members, list(members)[:1])
        ),
    ),
    max_leaves=3,
)


def _object(members: dict[str, Any], needed: list[str], **more: Any) -> dict[str, Any]:
    closed = {"additionalProperties": False}
    return {"type": "object", "properties": members, "required": needed, **closed, **more}


_schemas = st.dictionaries(st.sampled_from(KEYS[:5]), _values, max_size=4).flatmap(
    lambda members: st.builds(
        lambda needed: json.dumps(
            _object(members, sorted(needed), **{"$defs": {"color": {"enum": ["red", "blue"]}}})
        ),
        st.sets(st.sampled_from(sorted(members))) if members else st.just(set()),
    )
)


@pytest.mark.parametrize("has_control", [False, True], ids=["markers as text", "control tokens"])
@pytest.mark.parametrize("call_format", ENFORCED, ids=lambda each: each.value)
@settings(max_examples=examples(20), deadline=None)
@given(schema=_schemas, seed=st.integers(0, 2**32 - 1))
def test_required_calls_are_read_with_arguments_of_their_schemas(
    call_format: ToolCallFormat, has_control: bool, schema: str, seed: int
) -> None:
    """Any text that the grammar of required calls allows is nothing but calls."""
    family = FAMILIES[call_format]
    markers = [text for text in family.markers if text] if has_control else []
    control = {text: FIRST_CONTROL + number for number, text in enumerate(dict.fromkeys(markers))}
    tools = (CallableTool("find", schema, True, "t"), CallableTool("find_all", "", True, "t"))
    calls = ToolCallSpec(family.syntaxes, tools, required=True, several=True)
    asked = json.loads(json.dumps(asdict(OutputSpec(None, calls, None))))  # as in the sandbox
    vocabulary = {"size": SIZE, "control": control, "ends": [END]}
    compiled = compile_grammar({"asked": asked, "vocabulary": vocabulary})
    text = Walk(endings(family, KEYS), control, seed).text(compiled["grammar"])
    offered = OfferedTools({tool.name: tool.schema for tool in tools})
    parsed = Golden("", TurnFormat(tool_calls=call_format), text, Parsed(), offered).parse([text])

    assert (parsed.content.strip(), parsed.reasoning) == ("", ""), text
    assert parsed.calls, text
    for name, arguments in parsed.calls:
        value = json.loads(arguments)
        if name == "find":
            jsonschema.validate(value, json.loads(schema))
        else:
            assert (name, value) == ("find_all", {}), text
