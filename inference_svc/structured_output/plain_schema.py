"""Removes from JSON schemas what limits no value, and writes formats with a day as patterns."""

import re
from typing import Any, NamedTuple

from inference_svc.structured_output.numbers import is_doubtful, is_narrowed, is_rounded
from inference_svc.structured_output.texts import FORMATS

_ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    )
)
_CHECKED = ("format", "$id", "$ref", "uniqueItems", "propertyNames")
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_WITH_DAY = ("date", "date-time")
_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")


_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]*")
"""Refers to what is cleaned, and thus certainly a schema."""


class PlainSchema(NamedTuple):
    """A schema without the keywords that limit no value."""

    schema: dict[str, Any]
    is_rounded: bool = False
    """Whether llguidance would round numbers of it."""
    is_narrowed: bool = False
    """Whether llguidance would refuse numbers that it allows."""
    has_other_formats: bool = False
    """Whether `format` had other values than those that are enforced: they only describe."""
    may_have_others: bool = False
    """Whether something that is neither an object nor a boolean may be in place of a schema."""


def plain_schema(schema: dict[str, Any], text: str, *, annotations: bool = True) -> PlainSchema:
    """Remove `uniqueItems` that is false, `propertyNames` that every name fits, unknown formats,
    each `$id` that is no URI, and, unless `annotations` or a `$ref` to one, the keywords that only
    describe values, so that more schemas are equal. Formats with a day become patterns. `text` is
    that of the schema."""
    cleaner = _Cleaner(annotations=annotations)
    plain = cleaner.clean(schema)
    if cleaner.needs_annotations and not annotations:
        return plain_schema(schema, text)
    has_doubt = is_doubtful(text)
    rounded, narrowed = has_doubt and is_rounded(plain), has_doubt and is_narrowed(plain)
    return PlainSchema(plain, rounded, narrowed, cleaner.has_other_formats, cleaner.has_others)


class _Cleaner:
    def __init__(self, *, annotations: bool) -> None:
        self.has_other_formats = self.has_others = self.needs_annotations = False
        self._removed = frozenset() if annotations else _ANNOTATIONS

    def clean(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            self.has_others |= not isinstance(schema, bool)
            return schema
        return _with_real_days(
            {
                key: self._inner(key, value) if isinstance(value, dict | list) else value
                for key, value in schema.items()
                if key not in self._removed and not (key in _CHECKED and self._is_void(key, value))
            }
        )

    def _is_void(self, keyword: str, value: Any) -> bool:
        if keyword == "format" and isinstance(value, str) and value not in FORMATS:
            self.has_other_formats = True
            return True
        if keyword == "$ref" and isinstance(value, str):
            self.has_others |= not _DEFINITION.fullmatch(value)
            self.needs_annotations |= not _ANNOTATIONS.isdisjoint(value.split("/"))
        is_name = keyword == "$id" and isinstance(value, str) and not _URI.fullmatch(value)
        if keyword == "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        return is_name or (keyword == "uniqueItems" and value is False)

    def _inner(self, keyword: str, value: Any) -> Any:
        if keyword in _BY_NAME and isinstance(value, dict):
            return {name: self.clean(each) for name, each in value.items()}
        if keyword in _LISTED and isinstance(value, list):
            return [self.clean(each) for each in value]
        return self.clean(value) if keyword in _SINGLE else value


def _with_real_days(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a pattern for a format with a day: llguidance allows 29 February in every
    year."""
    if schema.get("format") not in _WITH_DAY:
        return schema
    rest = {key: value for key, value in schema.items() if key != "format"}
    pattern = {"pattern": f"^({FORMATS[schema['format']]})$"}
    if "pattern" not in rest:
        return rest | pattern
    return {**rest, "allOf": [*rest.get("allOf", ()), pattern]}
