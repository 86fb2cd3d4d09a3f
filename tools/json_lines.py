"""A layout of JSON files that are read by people: one line for each part that they compare."""

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any


def layout(content: Mapping[str, Any], together: str = "") -> str:
    """An object as JSON text: one line a member, or one line an item of a member that is a list or
    an object itself. Items of a list in a row that have the same value of the member `together`
    share a line."""
    members = [f" {json.dumps(name)}: {_items(value, together)}" for name, value in content.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _items(value: Any, together: str) -> str:
    if value and isinstance(value, dict):
        lines = [f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n }"
    if value and isinstance(value, list | tuple):
        groups = groupby(enumerate(value), lambda each: _group(each[0], each[1], together))
        shared = (", ".join(json.dumps(item) for _, item in group) for _, group in groups)
        return "[\n" + ",\n".join(f"  {line}" for line in shared) + "\n ]"
    return json.dumps(value)


def _group(index: int, item: Any, together: str) -> Any:
    return (item[together],) if isinstance(item, dict) and together in item else index
