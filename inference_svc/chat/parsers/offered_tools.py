"""Names and argument types of the tools that a request offers."""

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from inference_svc.chat.json_values import json_or_none, json_text
from inference_svc.structured_output.schemas import alternatives, kind_of, member_schemas


class OfferedTools:
    """Tools by name, each with the JSON Schema of its arguments (an empty text for none)."""

    def __init__(self, schemas: Mapping[str, str]) -> None:
        self._schemas = schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def has_name_with(self, beginning: str) -> bool:
        return any(name.startswith(beginning) for name in self._schemas)

    def takes_text(self, name: str, key: str, *, is_text: bool = False) -> bool:
        """Whether an argument is read as text, not as JSON: the schema allows strings only, or the
        model marks it as a string (`is_text`) and the schema allows one."""
        kinds = self._kinds(name, (key,))
        return kinds == {"string"} or (is_text and (not kinds or "string" in kinds))

    def as_json(self, name: str, path: Sequence[str], written: str) -> str:
        """Convert an argument without quotes to JSON. Text that is valid JSON has its JSON type
        unless the schema excludes it; everything else is a string. A whole number is an integer
        where the schema has no other number. `path` has the argument's name, then those of members
        inside it, or "item" for those of a list."""
        text = {"True": "true", "False": "false", "None": "null"}.get(written.strip(), written)
        value = json_or_none(text)
        kinds = self._kinds(name, path)
        is_integer = kinds & {"integer", "number"} == {"integer"}
        if is_integer and isinstance(value, float) and (whole := _whole_number(text)) is not None:
            value, text = whole, str(whole)
        is_null = value is None and text.strip() == "null"
        if (value is None and not is_null) or (kinds and not kinds & _kinds_of(value)):
            return json_text(written)
        return text.strip()

    def _kinds(self, name: str, path: Sequence[str]) -> frozenset[str]:
        root = _parse_schema(self._schemas.get(name, ""))
        found = alternatives(root, root)
        for key in path:
            schemas = [*member_schemas(found, key)] or [None]
            found = [option for schema in schemas for option in alternatives(schema, root)]
        kinds = frozenset(option.kind for option in found)
        return frozenset() if "" in kinds else kinds


def _whole_number(text: str) -> int | None:
    """The value of a JSON number that is whole, with all digits; None for others, and for those
    that no float has."""
    try:
        number = Decimal(text.strip())
        is_whole = number == number.to_integral_value()
    except ArithmeticError:
        return None
    if not number:
        return 0
    is_whole = is_whole and number.adjusted() <= sys.float_info.max_10_exp
    return int(number) if is_whole else None


@lru_cache(maxsize=256)
def _parse_schema(schema: str) -> dict[str, Any]:
    value = json_or_none(schema) if schema else None
    return value if isinstance(value, dict) else {}


def _kinds_of(value: Any) -> frozenset[str]:
    kind = kind_of(value)
    return frozenset({kind, "number"}) if kind == "integer" else frozenset({kind})
