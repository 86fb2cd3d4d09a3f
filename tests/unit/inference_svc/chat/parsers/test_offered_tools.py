"""Types of arguments in schemas that are circular or malformed."""

import json
from typing import Any

import pytest

from inference_svc.chat.parsers.offered_tools import OfferedTools

J = {"$ref": "#/$defs/J"}


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"$defs": {"J": {"anyOf": [dict(J) for _ in range(9)]}}, "properties": {"a": J}}, True),
        ({"anyOf": [{"$ref": "#"}]}, True),
        ({"anyOf": [{"$ref": "#"}, {"properties": {"a": {"type": "string"}}}]}, False),
        ({"properties": {"a": {"anyOf": [{"type": "string"}] * 9999}}}, True),
        ({"properties": {"a": {"type": {"x": 1}}}}, True),
        ({"properties": {"a": {"type": ["string", ["x"]]}}}, True),
    ],
    ids=["itself", "root only", "root", "many", "an object", "a list"],
)
def test_circular_and_malformed_schemas_have_types(schema: dict[str, Any], kept: bool) -> None:
    """In time; where the types are unclear, a number in an argument without quotes stays one."""
    tools = OfferedTools({"f": json.dumps(schema)})

    assert tools.as_json("f", ["a"], "1") == ("1" if kept else '"1"')
    assert tools.takes_text("f", "a") is not kept
