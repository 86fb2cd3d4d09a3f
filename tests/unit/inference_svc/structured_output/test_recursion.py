"""Schemas whose values would have to contain themselves."""

import json
from typing import Any

import pytest

from inference_svc.structured_output.recursion import is_endless

LOOP: dict[str, Any] = {"$ref": "#/$defs/a"}
ITSELF: dict[str, Any] = {"$ref": "#/properties/a"}


def nested(schema: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **others}


ENDLESS = [
    {"$ref": "#"},
    nested(ITSELF),
    nested({"$ref": "#"}),
    nested(LOOP, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": LOOP}}),
    nested(LOOP, **{"$defs": {"a": nested(LOOP)}}),
    nested(LOOP, **{"$defs": {"a": {"anyOf": [nested(LOOP), LOOP]}}}),
    nested({"allOf": [{"type": "string"}, ITSELF]}),
    nested({"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
]
FINITE = [
    nested({"type": "string"}),
    nested({"type": "array", "items": {"$ref": "#"}}),
    nested(LOOP, **{"$defs": {"a": {"anyOf": [{"type": "null"}, nested(LOOP)]}}}),
    nested(LOOP, **{"$defs": {"a": {"type": "object", "properties": {"a": LOOP}}}}),
    nested({"$ref": "#/nowhere"}),
    nested(LOOP, **{"$defs": {"a": {"properties": {"a": LOOP}, "required": ["a"]}}}),
]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [*((each, True) for each in ENDLESS), *((each, False) for each in FINITE)],
)
def test_endless_schemas_are_found(schema: dict[str, Any], expected: bool) -> None:
    """Those in which each alternative needs another value; a reference alone is none of them."""
    assert is_endless(schema, json.dumps(schema)) is expected


def test_the_search_is_bounded() -> None:
    """Of schemas with exponentially many ways through their references."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    schema = nested({"$ref": "#/$defs/d0"}, **{"$defs": {**twice, "d60": {"type": "string"}}})

    assert not is_endless(schema, json.dumps(schema))
