"""Names and argument types of the tools that a request offers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from inference_svc.chat.json_values import json_or_none, json_text

_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class OfferedTools:
    """Tools by name, each with the JSON Schema of its arguments (an empty text for none)."""

    def __init__(self, schemas: Mapping[str, str]) -> None:
        self._schemas = schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def takes_text(self, name: str, key: str) -> bool:
        """Whether an argument is always a string."""
        return self._kinds(name, key) == {"string"}

    def as_json(self, name: str, key: str, written: str) -> str:
        """Convert an argument without quotes to JSON. Text that is valid JSON has its JSON type
        unless the schema excludes it; everything else is a string."""
        text = {"True": "true", "False": "false", "None": "null"}.get(written.strip(), written)
        value = json_or_none(text)
        kinds = self._kinds(name, key)
        is_null = value is None and text.strip() == "null"
        if (value is None and not is_null) or (kinds and not kinds & _kinds_of(value)):
            return json_text(written)
        return text.strip()

    def _kinds(self, name: str, key: str) -> frozenset[str]:
        schema = _parse_schema(self._schemas.get(name, ""))
        properties = schema.get("properties")
        return _schema_kinds(properties.get(key) if isinstance(properties, dict) else None)


@lru_cache(maxsize=256)
def _parse_schema(schema: str) -> dict[str, Any]:
    value = json_or_none(schema) if schema else None
    return value if isinstance(value, dict) else {}


def _schema_kinds(schema: Any) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it does not use `type`."""
    if not isinstance(schema, dict):
        return frozenset()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(schema.get("enum"), list):
        return frozenset().union(*map(_kinds_of, schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            each = [_schema_kinds(option) for option in options]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()


def _kinds_of(value: Any) -> frozenset[str]:
    kind = _KINDS[type(value)]
    return frozenset({kind, "number"}) if kind == "integer" else frozenset({kind})
