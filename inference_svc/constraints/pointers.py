"""Finds the place in a JSON Schema that makes it unusable: llguidance's errors do not name it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAX_CHECKS = 2000
_BY_NAME = ("$defs", "definitions", "properties", "patternProperties")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def faulty_pointer(schema: Mapping[str, Any], find_problem: Callable[[Any], str | None]) -> str:
    """A JSON Pointer, in its URI form ("#/properties/a"), to the deepest subschema that has by
    itself the problem of the whole.

    `find_problem` tells what is wrong with a schema. Definitions of the root go along with each
    subschema, so that its references still resolve.
    """
    problem = find_problem(schema)
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    pointer, place, checks = "#", schema, 0
    while True:
        for step, child in _children(place):
            checks += 1
            if checks > _MAX_CHECKS:
                return pointer
            # A definition is looked at alone, else each place would seem to have its problem.
            alone = "/$defs/" in pointer + step or "/definitions/" in pointer + step
            if find_problem(child if alone else {**shared, **child}) == problem:
                pointer, place = pointer + step, child
                break
        else:
            return pointer


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Subschemas directly below, with the steps that lead there."""
    for keyword in _BY_NAME:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from _objects(keyword, named.items())
    for keyword in _LISTED:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from _objects(keyword, enumerate(listed))
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict):
            yield f"/{keyword}", schema[keyword]


def _objects(keyword: str, items: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in items:
        if isinstance(child, dict):
            escaped = str(name).replace("~", "~0").replace("/", "~1")
            yield f"/{keyword}/{escaped}", child
