"""Parse and write JSON text, with a limit on depth."""

from typing import Any, Final

import orjson

from svc_kit.errors import InvalidJson

INVALID_INPUT: Final = "INVALID_JSON"
"""The key of a tool's input whose JSON cannot be parsed; its value is the text. Anthropic's
documents give such an input back to the model in this way."""
MAX_DEPTH = 128
"""Nesting levels of arrays and objects. Deeper values cannot be encoded again for the engine."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. An empty body is an empty object, since SDKs send one if they have no
    arguments.

    Raises InvalidJson, also for NaN, infinities, lone surrogates and invalid UTF-8.
    """
    if not raw.strip():
        return {}
    value = _parse(raw)
    if not isinstance(value, dict):
        raise InvalidJson(field=None, problem="the body is not an object")
    return value


def parse_array(raw: bytes) -> list[Any]:
    """Parse a JSON array. Raises InvalidJson, as `parse_object` does."""
    value = _parse(raw)
    if not isinstance(value, list):
        raise InvalidJson(field=None, problem="the body is not an array")
    return value


def _parse(raw: bytes) -> Any:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(field=None, problem=str(error)) from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:  # skips the walk over long lists of tokens
        check_depth(value)
    return value


def tool_input(text: str) -> dict[str, Any]:
    """The arguments of a call as an object; those that are none are the value of INVALID_INPUT."""
    try:
        value = orjson.loads(text or b"{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {INVALID_INPUT: text}


def json_text(value: object) -> str:
    """Encode a value as JSON text; None becomes ""."""
    return "" if value is None else orjson.dumps(value).decode()


def check_depth(value: object) -> None:
    """Raise InvalidJson if arrays and objects nest deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _child_containers(outer)]
        if not level:
            return
    raise InvalidJson(field=None, problem=f"nested deeper than {MAX_DEPTH} levels")


def _child_containers(value: object) -> list[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    return [child for child in value if isinstance(child, dict | list)]
