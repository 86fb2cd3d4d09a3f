"""Filters on file attributes: parsing and validation. `filter_sql.py` evaluates them."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from control_svc.base.validation import MAX_METADATA_KEY_CHARACTERS, check_length, check_text
from control_svc.vector_stores.model import AttributeValue, check_value
from svc_kit.errors import InvalidField, InvalidJson, InvalidType, MissingField, TooLong

MAX_DEPTH: Final = 8
"""Maximum depth of nested conditions."""
MAX_CONDITIONS: Final = 100
FIELD: Final = "filters"
_TOO_DEEP: Final = f"conditions can be nested at most {MAX_DEPTH} levels deep"


class Comparator(StrEnum):
    """Comparison operators, as in the OpenAI API."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    IN = "in"
    NIN = "nin"


class Junction(StrEnum):
    """Logical operators, as in the OpenAI API."""

    AND = "and"
    OR = "or"


_TYPES: Final = ", ".join((*Comparator, *Junction))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one attribute.

    For a missing attribute, only `ne` and `nin` are true. Values of different types are not equal
    and not ordered.
    """

    key: str
    comparator: Comparator
    value: AttributeValue | tuple[AttributeValue, ...]
    """A tuple for `in` and `nin` only."""


@dataclass(frozen=True, slots=True)
class Compound:
    """A conjunction or disjunction of conditions."""

    junction: Junction
    filters: tuple["Filter", ...]


Filter = Comparison | Compound


def check_filter(condition: Filter, field: str = FIELD, depth: int = 1) -> int:
    """Validate a filter and return its number of comparisons.

    Raises InvalidField, MissingField, TooLong or OutOfRange.
    """
    if isinstance(condition, Comparison):
        _check_comparison(condition, field)
        return 1
    if not condition.filters:
        raise MissingField(field=field)
    if depth >= MAX_DEPTH:
        raise InvalidField(field=field, problem=_TOO_DEEP)
    total = sum(check_filter(inner, field, depth + 1) for inner in condition.filters)
    if total > MAX_CONDITIONS:
        raise TooLong(field=field, length=total, limit=MAX_CONDITIONS, unit="conditions")
    return total


def filter_from_json(text: str, field: str = FIELD) -> Filter | None:
    """Parse and validate a filter in the JSON of the OpenAI API. Returns None for an empty text.

    Raises InvalidJson, InvalidType, InvalidField, MissingField, TooLong or OutOfRange.
    """
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(field=field, problem=str(error)) from None
    condition = _read(value, field, 1)
    check_filter(condition, field)
    return condition


def _read(fields: object, field: str, depth: int) -> Filter:
    if not isinstance(fields, dict):
        raise InvalidType(field=field, expected="an object")
    if depth > MAX_DEPTH:
        raise InvalidField(field=field, problem=_TOO_DEEP)
    kind = fields.get("type")
    if kind in tuple(Junction):
        filters = fields.get("filters")
        if not isinstance(filters, list):
            raise InvalidType(field=f"{field}.filters", expected="an array")
        return Compound(Junction(kind), tuple(_read(inner, field, depth + 1) for inner in filters))
    if kind not in tuple(Comparator):
        raise InvalidField(field=f"{field}.type", problem=f"supported values are {_TYPES}")
    key, value = fields.get("key"), fields.get("value")
    if not isinstance(key, str):
        raise InvalidType(field=f"{field}.key", expected="a string")
    values = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(each, str | int | float) for each in values):
        raise InvalidType(field=f"{field}.value", expected="a string, a number or a boolean")
    return Comparison(key, Comparator(kind), values if isinstance(value, list) else values[0])


def _check_comparison(comparison: Comparison, field: str) -> None:
    check_text(f"{field}.key", comparison.key, MAX_METADATA_KEY_CHARACTERS)
    needs_list = comparison.comparator in (Comparator.IN, Comparator.NIN)
    if needs_list is not isinstance(comparison.value, tuple):
        expected = "a list" if needs_list else "one value"
        problem = f"'{comparison.comparator}' compares with {expected}"
        raise InvalidField(field=f"{field}.value", problem=problem)
    values = comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
    check_length(f"{field}.value", values, MAX_CONDITIONS)
    for value in values:
        check_value(f"{field}.value", value)
