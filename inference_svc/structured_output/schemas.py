"""Reads the parts of JSON schemas that calls without JSON need: types, members, alternatives."""

from collections.abc import Iterator
from typing import Any, NamedTuple

_KINDS = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip
_KEYWORDS = {"object": ("properties", "additionalProperties"), "array": ("items", "prefixItems")}
_NAMES = frozenset(_KINDS.values())
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
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties")
_SINGLE = ("items", "additionalProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_COMBINING = (
    "anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "dependentRequired", "dependentSchemas",
)  # fmt: skip
_MAX_REFERENCES = 16
_MAX_OPTIONS = 256


class Alternative(NamedTuple):
    """One type that a value may have; empty: any. `values` are the only ones that it may be."""

    kind: str
    schema: dict[str, Any]
    values: tuple[Any, ...] | None = None


def kind_of(value: Any) -> str:
    """The JSON type of a value; that of whole numbers is "integer"."""
    return _KINDS[type(value)]


def resolve(schema: Any, root: Any) -> Any:
    """Follow references inside a document, and `allOf` with one schema."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict):
            break
        every = schema.get("allOf")
        if isinstance(schema.get("$ref"), str):
            target = _find(schema["$ref"], root)
        elif isinstance(every, list) and len(every) == 1:
            target = every[0]
        else:
            break
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        schema = {**target, **rest} if isinstance(target, dict) else rest
    return schema


def _find(reference: str, root: Any) -> Any:
    found = root if reference.startswith("#") else None
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    return found


def alternatives(schema: Any, root: Any) -> list[Alternative]:
    """The types that a schema allows."""
    plain = (option for option in options(schema, root) if not _choices(option))
    return [each for option in plain for each in _alternatives(option)] or [Alternative("", {})]


def options(schema: Any, root: Any) -> Iterator[Any]:
    """A schema and all that it combines by `anyOf` and `oneOf`, resolved. Each is yielded once,
    since they may refer to each other; after the first 256, `None` stands for all others."""
    pending, found = [schema], {id(schema)}
    while pending:
        if len(found) > _MAX_OPTIONS:
            yield None
            return
        schema = resolve(pending.pop(), root)
        yield schema
        new = {id(each): each for each in _choices(schema) if id(each) not in found}
        found |= set(new)
        pending += reversed(new.values())


def _choices(schema: Any) -> list[Any]:
    if not isinstance(schema, dict) or "const" in schema or isinstance(schema.get("enum"), list):
        return []
    listed = schema.get("anyOf") or schema.get("oneOf")
    return listed if isinstance(listed, list) else []


def _alternatives(schema: Any) -> Iterator[Alternative]:
    if not isinstance(schema, dict):
        yield Alternative("", {})
    elif "const" in schema or isinstance(schema.get("enum"), list):
        yield from _listed([schema["const"]] if "const" in schema else schema["enum"])
    else:
        kinds = schema.get("type") or _implied(schema)
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            # Some write "float" or "text".
            known = kind if isinstance(kind, str) and kind in _NAMES else ""
            yield Alternative(known, {**schema, "type": kind} if known else {})


def _listed(values: list[Any]) -> Iterator[Alternative]:
    for kind in dict.fromkeys(map(kind_of, values)):
        same = tuple(value for value in values if kind_of(value) == kind)
        yield Alternative(kind, {"enum": list(same)}, same)


def _implied(schema: dict[str, Any]) -> str:
    kinds = (kind for kind, words in _KEYWORDS.items() if any(word in schema for word in words))
    return next(kinds, "")


def without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the keywords that only describe values, so that more are equal."""
    return {
        key: _map_schemas(key, value) for key, value in schema.items() if key not in _ANNOTATIONS
    }


def _map_schemas(keyword: str, value: Any) -> Any:
    if keyword in _BY_NAME and isinstance(value, dict):
        return {
            name: without_annotations(inner) if isinstance(inner, dict) else inner
            for name, inner in value.items()
        }
    if keyword in _SINGLE and isinstance(value, dict):
        return without_annotations(value)
    if keyword in _LISTED and isinstance(value, list):
        return [without_annotations(each) if isinstance(each, dict) else each for each in value]
    return value


def combined_by(schema: dict[str, Any]) -> str:
    """The keyword of an object's schema, if any, that more than single members decide; or ""."""
    return next((word for word in _COMBINING if word in resolve(schema, schema)), "")


def members(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    """The schemas of the members of an object."""
    properties = resolve(schema, root).get("properties")
    known = properties if isinstance(properties, dict) else {}
    return known | {key: {} for key in sorted(required(schema, root) - set(known))}


def required(schema: dict[str, Any], root: Any) -> frozenset[str]:
    """The keys that an object must have."""
    keys = resolve(schema, root).get("required")
    return (
        frozenset(key for key in keys if isinstance(key, str))
        if isinstance(keys, list)
        else frozenset()
    )
