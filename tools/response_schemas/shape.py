"""Infers a JSON Schema from values that a program wrote."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dialects.shared.json_body import INVALID_INPUT
from tools.response_schemas.examples import TEXT

Schema = dict[str, Any]
TAGS: Final = ("$ref", "event", "object", "type")
"""Fields whose constant tells alternatives apart, the first that an object has. An object with
`$ref` stands for another schema."""
_CONSTANT: Final = re.compile(r"[a-z]+([._-][a-z]+)*|\[DONE\]|#/.*")
_UNKNOWN: Final = "unspecified"
"""The word of an enum that was not set, which is never sent."""


def infer_schema(values: Sequence[Any]) -> Schema:
    """The schema of values. Words are constants, and objects with different tags alternatives."""
    nullable = any(value is None for value in values)
    kinds = [
        schema
        for schema in (
            _infer_texts([value for value in values if isinstance(value, str)]),
            *_infer_scalars(values),
            _infer_array([value for value in values if isinstance(value, list)]),
            *_infer_objects([_without_input(value) for value in values if isinstance(value, dict)]),
        )
        if schema is not None
    ]
    if nullable:
        kinds.append({"type": "null"})
    if len(kinds) == 1:
        return kinds[0]
    if len(kinds) == 2 and nullable and kinds[0].keys() == {"type"}:
        return {"type": [kinds[0]["type"], "null"]}
    return {"anyOf": kinds} if kinds else {}


def _without_input(value: dict[str, Any]) -> dict[str, Any]:
    """An input of a tool has any members; the examples of damaged ones have one."""
    return {} if value.keys() == {INVALID_INPUT} else value


def reference(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def tag_of(value: dict[str, Any]) -> str | None:
    """The constant that tells an object from its alternatives."""
    for name in TAGS:
        if isinstance(value.get(name), str) and _CONSTANT.fullmatch(value[name]):
            return str(value[name])
    return None


def _infer_texts(texts: Sequence[str]) -> Schema | None:
    words = sorted({text for text in texts if text != _UNKNOWN})
    if not words:
        return None
    if not all(_CONSTANT.fullmatch(word) for word in words):
        return {"type": "string"}
    return {"type": "string", "enum": words} if len(words) > 1 else {"const": words[0]}


def _infer_scalars(values: Iterable[Any]) -> list[Schema]:
    types = {type(value) for value in values}
    found: list[Schema] = [{"type": "boolean"}] if bool in types else []
    if types & {int, float}:
        found.append({"type": "number" if float in types else "integer"})
    return found


def _infer_array(arrays: Sequence[list[Any]]) -> Schema | None:
    if not arrays:
        return None
    items = [item for array in arrays for item in array]
    return {"type": "array", "items": infer_schema(items)}


def _infer_objects(objects: Sequence[dict[str, Any]]) -> list[Schema]:
    groups: dict[str | None, list[dict[str, Any]]] = {}
    for each in objects:
        if (tag := tag_of(each)) != _UNKNOWN:
            groups.setdefault(tag, []).append(each)
    return [
        _infer_object(group) for _, group in sorted(groups.items(), key=lambda each: str(each[0]))
    ]


def _infer_object(objects: Sequence[dict[str, Any]]) -> Schema:
    if "$ref" in objects[0]:
        return {"$ref": objects[0]["$ref"]}
    schema: Schema = {"type": "object"}
    names = dict.fromkeys(name for each in objects for name in each)
    if any(not name or TEXT in name or name.isdigit() for name in names):
        values = [value for each in objects for value in each.values()]
        return schema | {"additionalProperties": infer_schema(values)}
    if not names:
        return schema
    schema["properties"] = {
        name: infer_schema([each[name] for each in objects if name in each]) for name in names
    }
    required = [name for name in names if all(name in each for each in objects)]
    return schema | ({"required": required} if required else {})
