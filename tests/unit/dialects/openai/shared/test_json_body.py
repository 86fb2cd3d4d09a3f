"""JSON text to a bounded object."""

import pytest

from dialects.shared.json_body import MAX_DEPTH, parse_object
from svc_kit.errors import InvalidJson


@pytest.mark.parametrize("raw", [b"", b"  \n"])
def test_an_empty_body_is_an_empty_object(raw: bytes) -> None:
    """Clients send no body if they have no arguments."""
    assert parse_object(raw) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"a":1,}',
        b"[]",
        b'"text"',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b"\x00",
        b'{"a":' * 2000,
    ],
)
def test_invalid_json_objects_are_rejected(raw: bytes) -> None:
    """Malformed JSON, invalid numbers and text, and other types."""
    with pytest.raises(InvalidJson) as caught:
        parse_object(raw)

    assert caught.value.field is None


def test_nesting_is_limited() -> None:
    """MAX_DEPTH levels are accepted, one more is not."""

    def nested(levels: int) -> bytes:
        return b'{"a":' * levels + b"1" + b"}" * levels

    assert parse_object(nested(MAX_DEPTH))
    with pytest.raises(InvalidJson, match="nested deeper"):
        parse_object(nested(MAX_DEPTH + 1))


def test_arrays_count_as_levels() -> None:
    """Like objects."""
    raw = b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"

    with pytest.raises(InvalidJson, match="nested deeper"):
        parse_object(raw)
