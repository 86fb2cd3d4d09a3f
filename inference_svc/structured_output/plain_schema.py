"""Removes from JSON schemas what limits no value, and writes formats with a day as patterns."""

import re
from typing import Any, NamedTuple

from inference_svc.structured_output.member_names import counts_repeated_names
from inference_svc.structured_output.numbers import is_doubtful, is_narrowed, is_rounded
from inference_svc.structured_output.patterns import rust_pattern, without_nul
from inference_svc.structured_output.schemas import find_reference, properties, required
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
_VOID: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
}
"""Values of keywords that limit nothing. llguidance refuses the keywords whatever they say."""
_CHECKED = ("format", "$id", "$ref", "$schema", *_VOID)
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
_SINGLE = (
    "items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains",
    "propertyNames", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_WITH_DAY = ("date", "date-time")
_URI = re.compile(r"([A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
_DRAFT = re.compile(
    r"http://json-schema\.org/draft-0[3467]/schema#?"
    r"|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)
"""The values of `$schema` that llguidance knows."""
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
    counts_repeated: bool = False
    """Whether a `minProperties` counts members that may have the same name."""


def plain_schema(schema: dict[str, Any], text: str, *, annotations: bool = True) -> PlainSchema:
    """Remove keywords whose values limit nothing (`_VOID`), unknown formats and drafts, each `$id`
    that is no URI or has a fragment that nothing refers to, and, unless `annotations` or a `$ref`
    to one, the keywords that only describe values, so that more schemas are equal. Formats with a
    day become patterns, patterns become those of Rust, and the member that a `discriminator` names
    is required. `text` is that of the schema."""
    cleaner = _Cleaner(schema, text, annotations=annotations)
    plain = cleaner.clean(schema)
    if cleaner.needs_annotations and not annotations:
        return plain_schema(schema, text)
    has_doubt = is_doubtful(text)
    rounded, narrowed = has_doubt and is_rounded(plain), has_doubt and is_narrowed(plain)
    repeated = '"minProperties"' in text and counts_repeated_names(plain)
    return PlainSchema(
        plain, rounded, narrowed, cleaner.has_other_formats, cleaner.has_others, repeated
    )


class _Cleaner:
    def __init__(self, root: dict[str, Any], text: str, *, annotations: bool) -> None:
        self._root = root
        self._text = text
        self.has_other_formats = self.has_others = self.needs_annotations = False
        self._removed = frozenset() if annotations else _ANNOTATIONS

    def clean(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            self.has_others |= not isinstance(schema, bool)
            return schema
        plain = {
            key: self._inner(key, value)
            for key, value in schema.items()
            if key not in self._removed and not (key in _CHECKED and self._is_void(key, value))
        }
        return _with_real_days(self._with_tags(plain) if "discriminator" in plain else plain)

    def _with_tags(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Require the member by which a `discriminator` tells alternatives apart: Pydantic leaves
        it out of `required` where it has a default."""
        given, branches = schema["discriminator"], schema.get("oneOf")
        name = given.get("propertyName") if isinstance(given, dict) else None
        if not isinstance(branches, list) or not isinstance(name, str):
            return schema
        return {**schema, "oneOf": [self._tagged(branch, name) for branch in branches]}

    def _tagged(self, branch: Any, name: str) -> Any:
        if not isinstance(branch, dict):
            return branch
        reference = branch.get("$ref")
        target = find_reference(reference, self._root) if isinstance(reference, str) else branch
        if not isinstance(target, dict) or name not in properties(target).keys() - required(target):
            return branch
        return {**branch, "required": [*required(branch), name]}

    def _is_void(self, keyword: str, value: Any) -> bool:
        if keyword == "format" and isinstance(value, str) and value not in FORMATS:
            self.has_other_formats = True
            return True
        if keyword == "$ref" and isinstance(value, str):
            self.has_others |= not _DEFINITION.fullmatch(value)
            self.needs_annotations |= not _ANNOTATIONS.isdisjoint(value.split("/"))
        if keyword == "$id" and isinstance(value, str):
            is_referred = "#" not in value[:-1] or self._text.count(f'"{value}"') > 1
            return not (_URI.fullmatch(value) and is_referred)
        if keyword == "$schema":
            return not (isinstance(value, str) and _DRAFT.fullmatch(value))
        return any(value == void and type(value) is type(void) for void in _VOID.get(keyword, ()))

    def _inner(self, keyword: str, value: Any) -> Any:
        if keyword == "pattern" and isinstance(value, str):
            return without_nul(rust_pattern(value))
        if not isinstance(value, dict | list):
            return value
        if keyword == "patternProperties" and isinstance(value, dict):
            return {self._inner("pattern", name): self.clean(each) for name, each in value.items()}
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
