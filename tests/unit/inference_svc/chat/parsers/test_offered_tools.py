"""Types and values of arguments without quotes, also for malformed schemas."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


INTEGER = OfferedTools({"f": '{"properties": {"a": {"type": "integer"}}}'})


@given(st.integers(), st.integers(0, 30), st.integers(0, 3))
def test_a_whole_number_has_all_digits(number: int, exponent: int, num_zeros: int) -> None:
    """As an integer, however it is written."""
    scaled = f"{Decimal(f'{number}e-{exponent}'):f}"
    text = f"{scaled}{'' if exponent else '.0'}{'0' * num_zeros}"

    assert INTEGER.as_json("f", ["a"], f"{text}e{exponent}") == str(number)


@pytest.mark.parametrize(
    "text",
    [
        "1234567890123456789.5",
        "1.00000000000000000001",
        "1e-400",
        "1e400",
        "1e999999999999999999",
        "-1e-99999999999999999999",
        "1e1000000000",
    ],
)
def test_a_number_that_is_not_whole_or_too_large_stays_text(text: str) -> None:
    """Where the schema has integers only."""
    assert INTEGER.as_json("f", ["a"], text) == json.dumps(text)


@pytest.mark.parametrize("text", ["0.0", "-0.0", "0e999999999", "0.0e-5"])
def test_zero_is_whole_with_any_exponent(text: str) -> None:
    assert INTEGER.as_json("f", ["a"], text) == "0"
