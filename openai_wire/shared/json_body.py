"""Parses JSON text with limits on depth and size."""

from typing import Any

import orjson

from svc_kit.errors import InvalidJson

MAX_DEPTH = 128
"""Levels of arrays and objects. Deeper ones could not be written out again for the engine."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """Reads a JSON object. An empty body is an empty object: SDKs send one without arguments.

    NaN, infinities, lone surrogates and bytes that are no UTF-8 are refused.
    Raises InvalidJson.
    """
    if not raw.strip():
        return {}
    value = _parse(raw)
    if not isinstance(value, dict):
        raise InvalidJson(field=None, problem="the body is not an object")
    return value


def parse_array(raw: bytes) -> list[Any]:
    """Reads a JSON array, as `parse_object` an object. Raises InvalidJson."""
    value = _parse(raw)
    if not isinstance(value, list):
        raise InvalidJson(field=None, problem="the body is not an array")
    return value


def _parse(raw: bytes) -> Any:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(field=None, problem=str(error)) from None
    if (
        raw.count(b"[") + raw.count(b"{") > MAX_DEPTH
    ):  # else a long list of tokens is walked in vain
        check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raises InvalidJson when arrays and objects nest deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _containers_in(outer)]
        if not level:
            return
    raise InvalidJson(field=None, problem=f"nested deeper than {MAX_DEPTH} levels")


def _containers_in(value: object) -> list[object]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    if isinstance(value, list):
        return [inner for inner in value if isinstance(inner, dict | list)]
    return []
