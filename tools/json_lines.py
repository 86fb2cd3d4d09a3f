"""A layout of JSON files that are read by people: one line for each part that they compare."""

import json
from collections.abc import Mapping
from typing import Any


def layout(content: Mapping[str, Any]) -> str:
    """An object as JSON text: one line a member, or one line an item of a member that is a list or
    an object itself."""
    members = [f" {json.dumps(name)}: {_items(value)}" for name, value in content.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _items(value: Any) -> str:
    if value and isinstance(value, dict):
        lines = [f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n }"
    if value and isinstance(value, list | tuple):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
    return json.dumps(value)
