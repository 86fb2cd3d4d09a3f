"""Lets each name of a member be written in one way, so that no schema of a member is evaded.

llguidance compares texts: where an object has known names or patterns of names, it lets other
members be named with any escapes, and takes the name \\u0061 for another one than a. A name that
a pattern allows has an escape only for a character that needs one.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from inference_svc.structured_output.schemas import properties, required

_VALUES = frozenset(("const", "enum"))
_EXAMPLES = frozenset(("default", "examples"))
_BY_NAME = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_NAMING = frozenset(("properties", "required", "patternProperties"))
_ANY_NAME = {"patternProperties": {"^(?s:.*)$": {}}, "additionalProperties": False}
"""Allows any members. With another pattern of any text llguidance computes masks slowly."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHORT_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}


def with_plain_names(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema whose other members are named by a pattern, and options of llguidance for it.

    The pattern does not help where objects also have patterns of their own or known names with
    control characters, nor in a value (`const`, `enum`) that a `$ref` uses as a schema. Such a
    schema is returned as it was, and its texts may have no \\u escapes at all.
    """
    writer = _Writer()
    written = writer.write(schema)
    if writer.refers_to_value or writer.has_open + writer.has_patterns + writer.has_control > 1:
        return schema, _SHORT_ESCAPES
    return written, {}


def counts_repeated_names(schema: Any) -> bool:
    """Whether a `minProperties` of a schema counts members that may have the same name."""
    return any(map(_counts_repeated, _parts(schema)))


class _Writer:
    def __init__(self) -> None:
        self.has_open = self.has_patterns = self.has_control = self.refers_to_value = False

    def write(self, value: Any) -> Any:
        """Write a part of a schema, also those under unknown keywords: a `$ref` may name them."""
        if isinstance(value, list):
            return [self.write(each) for each in value]
        if not isinstance(value, dict):
            return value
        written = {
            keyword: self._inner(keyword, each) if isinstance(each, dict | list) else each
            for keyword, each in value.items()
        }
        reference = value.get("$ref")
        if isinstance(reference, str):
            self.refers_to_value |= not _VALUES.isdisjoint(unquote(reference).split("/"))
        return self._with_any_name(written)

    def _inner(self, keyword: str, value: Any) -> Any:
        if keyword in _VALUES:
            return value
        if keyword in _BY_NAME and isinstance(value, dict):
            return {name: self.write(each) for name, each in value.items()}
        return self.write(value)

    def _with_any_name(self, schema: dict[str, Any]) -> dict[str, Any]:
        if _NAMING.isdisjoint(schema):
            return schema
        names = {*properties(schema), *required(schema)}
        has_patterns = bool(schema.get("patternProperties"))
        self.has_patterns |= has_patterns
        self.has_control |= any(map(_CONTROL.search, names))
        if schema.get("additionalProperties") is False or not (names or has_patterns):
            return schema
        self.has_open = True
        if "additionalProperties" not in schema:
            return schema | _ANY_NAME
        kind = {"type": schema["type"]} if "type" in schema else {}
        others = schema.get("allOf", [])
        if not isinstance(others, list):
            return schema
        return {**schema, "allOf": [*others, {**kind, **_ANY_NAME}]}


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            yield value
            for keyword, each in value.items():
                if isinstance(each, dict) and keyword in _BY_NAME:
                    pending += each.values()
                elif keyword not in _VALUES | _EXAMPLES:
                    pending.append(each)


def _counts_repeated(schema: dict[str, Any]) -> bool:
    least = schema.get("minProperties")
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        return False
    return isinstance(least, int | float) and least > len(required(schema)) + 1
