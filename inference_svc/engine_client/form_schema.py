"""Which JSON Schemas engines of others enforce wholly without our grammars.

llama.cpp's json-schema-to-grammar, xgrammar and outlines ignore keywords that they do not know, and
some beside others, in silence. What is allowed here is what all of them enforce.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ANNOTATIONS: Final = frozenset(
    {
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly"),
    }
)
_STRUCTURE: Final = frozenset({"type", "properties", "required", "items", "additionalProperties"})
_VALUES: Final = ("const", "enum")
_REFERENCE: Final = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]+)")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_MAX_DIGITS: Final = 18
"""Of an integer: llama-server reads more than 64 bits as a float."""


class _UnsafeNumber(Exception):
    """A number that an engine may round."""


def unenforced_part(text: str) -> str:
    """Name what of a JSON Schema, which our compiler accepts, an engine may ignore in its own form;
    empty if nothing."""
    try:
        root = json.loads(text, parse_int=_integer, parse_float=_float)
    except _UnsafeNumber as error:
        return f"the number {error}"
    pending = [root]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict):
            return f"the schema {json.dumps(schema)[:20]}"
        if part := next(_unenforced(schema, root), ""):
            return part
        pending += _children(schema)
    return ""


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise _UnsafeNumber(text[:40])
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _UnsafeNumber(text[:40])
    return value


def _unenforced(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    """The keywords of one schema that may be ignored, without those of the schemas inside."""
    names = schema.keys() - _ANNOTATIONS
    main = next((name for name in ("$ref", "anyOf", *_VALUES) if name in names), None)
    allowed = _STRUCTURE if main is None else {main, "type"} if main in _VALUES else {main}
    yield from (f"'{name}'" for name in sorted(names - allowed))
    if main == "$ref":
        found = _REFERENCE.fullmatch(str(schema["$ref"]))
        if found is None or found[2] not in root.get(found[1], {}):
            yield "'$ref'"
    elif main in _VALUES:
        values = [schema["const"]] if main == "const" else schema["enum"]
        if "type" in names and not all(_has_type(each, schema["type"]) for each in values):
            yield f"'type' beside '{main}'"
    elif main is None:
        properties = schema.get("properties", {})
        if not set(schema.get("required", ())) <= properties.keys():
            yield "'required' of what is not in 'properties'"
        if properties and schema.get("additionalProperties", False) is not False:
            yield "'additionalProperties' beside 'properties'"


def _has_type(value: Any, names: str | list[str]) -> bool:
    types = [
        each for name in ([names] if isinstance(names, str) else names) for each in _TYPES[name]
    ]
    return type(value) in types


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for name in ("properties", "$defs", "definitions"):
        yield from schema.get(name, {}).values()
    yield from schema.get("anyOf", ())
    if "items" in schema:
        yield schema["items"]
    if not isinstance(additional := schema.get("additionalProperties", False), bool):
        yield additional
