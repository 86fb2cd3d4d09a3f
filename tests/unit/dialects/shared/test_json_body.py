"""JSON text whose numbers a float does not hold."""

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.shared.json_body import (
    MAX_DEPTH,
    LongNumber,
    answer_value,
    json_text,
    load_exact,
    parse_object,
    tool_input,
)
from svc_kit.errors import InvalidJson
from tests.support.json_numbers import HARD_NUMBERS, number_texts

NUMBERS = (
    "18446744073709551616", "-9223372036854775809", "1234.5678901234567", "1e-7",
    "0.12345678901234567890", "9007199254740993", "1234567890123456789", "2.5", "0",
)  # fmt: skip
_numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(-(10**6), 10**6, places=20).map(lambda number: format(number, "f")),
)


def exact(text: str) -> Any:
    """Parse JSON with all digits."""
    return json.loads(text, parse_float=Decimal)


@given(numbers=st.lists(_numbers, max_size=5))
def test_bodies_keep_all_digits(numbers: list[str]) -> None:
    """From the bytes of a request to the schema or the arguments that are sent on."""
    text = f'{{"schema": {{"enum": [{", ".join(numbers)}]}}}}'

    assert exact(json_text(parse_object(text.encode()))) == exact(text)


@pytest.mark.parametrize("convert", [answer_value, tool_input])
@given(number=_numbers)
def test_answers_keep_all_digits(convert: Callable[[str], Any], number: str) -> None:
    """Of schemas and of the arguments that a model wrote."""
    text = f'{{\n "id": {number}\r\n}}'

    written = orjson.dumps({"x": convert(text)}).decode()
    assert exact(written)["x"] == exact(text)
    assert written == "".join(written.splitlines())


@given(number=number_texts() | st.sampled_from(HARD_NUMBERS))
def test_any_number_is_kept_or_refused(number: str) -> None:
    """Also one whose exponent no decimal holds, and one that is an infinity as a float."""
    try:
        body = parse_object(f'{{"a": [{number}], "b": 18446744073709551616}}'.encode())
    except InvalidJson:
        assert abs(float(number)) > 1e308
        return
    (value,) = json.loads(json_text(body))["a"]

    assert float(value) == float(number)


def test_other_numbers_are_ordinary() -> None:
    """Only numbers that would change have a type of their own."""
    body = parse_object(b'{"a": [1234567890123456789, 0.30000000000000004, 0.100000000000000001]}')

    assert [type(each) for each in body["a"]] == [int, float, LongNumber]
    assert body["a"][2] == 0.1


def test_deep_text_with_long_numbers_is_refused() -> None:
    """As without them."""
    depth = 50 * MAX_DEPTH
    with pytest.raises(InvalidJson):
        parse_object(b'{"a": 18446744073709551616, "b": ' + b"[" * depth + b"]" * depth + b"}")


def calls_of(function: Callable[[bytes], Any], raw: bytes) -> int:
    """The calls of Python functions while it parses a text."""
    num_calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(raw)
    finally:
        sys.setprofile(before)
    return num_calls


@pytest.mark.parametrize(
    ("first", "limit"),
    [
        ('"call_1234567890123456"', 10),
        ("1234567890123456789", 10),
        ("0.30000000000000004", 10),
        ("18446744073709551616", 1_050),
        ("0.12345678901234567890", 2_050),
    ],
)
def test_short_numbers_cost_little_beside_long_ones(first: str, limit: int) -> None:
    """Digits of a string, and numbers that nothing would change, do not slow down the others."""
    raw = f"[{first}, {', '.join(['1.5', '2'] * 1_000)}]".encode()

    assert calls_of(load_exact, raw) <= limit
