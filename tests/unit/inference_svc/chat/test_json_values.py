"""JSON Schemas of tools as models read them."""

import json
from typing import Any

import pytest

from inference_svc.chat.json_values import schema_for_model
from svc_kit.errors import InvalidJson

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "type": "object"},
            {"type": "object"},
        ),
        (
            {"title": "Args", "properties": {"a": {"title": "A", **TEXT}}, "required": ["a"]},
            {"properties": {"a": TEXT}, "required": ["a"]},
        ),
        ({"properties": {"title": TEXT}}, {"properties": {"title": TEXT}}),
        ({"$defs": {"title": {"$comment": "c", **TEXT}}}, {"$defs": {"title": TEXT}}),
        ({"anyOf": [{"readOnly": True, **TEXT}, {}]}, {"anyOf": [TEXT, {}]}),
        ({"default": {"title": "t"}}, {"default": {"title": "t"}}),
        ({"description": "d", "not": {"title": 1}}, {"description": "d", "not": {}}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
    ],
)
def test_keywords_that_describe_nothing_are_left_out(
    schema: dict[str, Any], shown: dict[str, Any]
) -> None:
    """But not properties with their names, nor what is in values."""
    assert schema_for_model(json.dumps(schema), "tools") == shown


@pytest.mark.parametrize("depth", [600, 100_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    """Also if it could be parsed."""
    with pytest.raises(InvalidJson, match="nested too deeply"):
        schema_for_model('{"not":' * depth + "{}" + "}" * depth, "tools")
