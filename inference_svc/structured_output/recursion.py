"""Finds schemas that no value satisfies because each value would have to contain another one."""

from collections.abc import Mapping
from typing import Any, Final

from inference_svc.structured_output.schemas import find_reference

_MAX_STEPS: Final = 10_000
"""Schemas that would need more count as satisfiable; the grammar then fails where it ends."""


def is_endless(schema: Mapping[str, Any], text: str) -> bool:
    """Whether only infinite values would satisfy a schema, as they do `{"$ref": "#"}`. `text` is
    that of the schema."""
    return '"$ref"' in text and not _Finder(schema).is_finite(schema, ())


class _Finder:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._num_left = _MAX_STEPS

    def is_finite(self, schema: Any, targets: tuple[int, ...]) -> bool:
        """Whether a finite value may satisfy a schema inside of these targets of references."""
        self._num_left -= 1
        if not isinstance(schema, dict) or self._num_left < 0:
            return True
        for name in ("anyOf", "oneOf"):
            listed = schema.get(name)
            alternatives = listed if isinstance(listed, list) else []
            if alternatives and not any(self.is_finite(each, targets) for each in alternatives):
                return False
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = find_reference(reference, self._root)
            if id(target) in targets or not self.is_finite(target, (*targets, id(target))):
                return False
        return all(self.is_finite(each, targets) for each in _needed(schema))


def _needed(schema: Mapping[str, Any]) -> list[Any]:
    """The subschemas whose values every value of a schema contains, or has to satisfy itself."""
    listed = schema.get("allOf")
    needed = list(listed) if isinstance(listed, list) else []
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" and isinstance(properties, dict):
        names = required if isinstance(required, list) else []
        needed += [properties.get(name) for name in names if isinstance(name, str)]
    least = schema.get("minItems")
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        needed.append(schema.get("items"))
    return needed
