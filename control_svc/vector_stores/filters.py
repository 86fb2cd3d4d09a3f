"""Filters over the attributes of files in a search: parsing, validation, evaluation."""

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from control_svc.base.validation import MAX_METADATA_KEY_CHARACTERS, check_text
from control_svc.vector_stores.model import AttributeValue, check_value
from svc_kit.errors import InvalidField, InvalidJson, InvalidType, MissingField, TooLong

MAX_DEPTH: Final = 8
"""Maximum depth of nested conditions."""
MAX_CONDITIONS: Final = 100
FIELD: Final = "filters"
_TOO_DEEP: Final = f"conditions stand deeper than {MAX_DEPTH}"


class Comparator(StrEnum):
    """How an attribute is compared, in OpenAI's words."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    IN = "in"
    NIN = "nin"


class Junction(StrEnum):
    """How conditions are combined, in OpenAI's words."""

    AND = "and"
    OR = "or"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one attribute.

    An attribute that a file lacks equals nothing: `ne` and `nin` hold for it, everything else does
    not. Values of different types are never equal, and have no order.
    """

    key: str
    comparator: Comparator
    value: AttributeValue | tuple[AttributeValue, ...]
    """Several for `in` and `nin` alone."""

    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a file with these attributes meets the condition."""
        found = attributes.get(self.key)
        match self.comparator:
            case Comparator.EQ | Comparator.IN:
                return self._is_among(found)
            case Comparator.NE | Comparator.NIN:
                return not self._is_among(found)
            case _:
                return self._is_ordered(found)

    def _is_among(self, found: AttributeValue | None) -> bool:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return any(_kind(found) is _kind(value) and found == value for value in values)

    def _is_ordered(self, found: AttributeValue | None) -> bool:
        kind = _kind(found)
        if kind not in (str, float) or kind is not _kind(self.value):
            return False
        return _ORDERS[self.comparator](found, self.value)


@dataclass(frozen=True, slots=True)
class Compound:
    """Several conditions, all of which or one of which must hold."""

    junction: Junction
    filters: tuple["Filter", ...]

    def matches(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a file with these attributes meets the condition."""
        each = (condition.matches(attributes) for condition in self.filters)
        return all(each) if self.junction is Junction.AND else any(each)


Filter = Comparison | Compound
_ORDERS: Final[Mapping[Comparator, Callable[[Any, Any], bool]]] = {
    Comparator.GT: operator.gt,
    Comparator.GTE: operator.ge,
    Comparator.LT: operator.lt,
    Comparator.LTE: operator.le,
}


def check_filter(condition: Filter, field: str = FIELD, depth: int = 1) -> int:
    """How many conditions there are. Raises InvalidField, MissingField, TooLong or OutOfRange."""
    if isinstance(condition, Comparison):
        _check_comparison(condition, field)
        return 1
    if not condition.filters:
        raise MissingField(field=field)
    if depth >= MAX_DEPTH:
        raise InvalidField(field=field, problem=_TOO_DEEP)
    total = sum(check_filter(each, field, depth + 1) for each in condition.filters)
    if total > MAX_CONDITIONS:
        raise TooLong(field=field, length=total, limit=MAX_CONDITIONS, unit="conditions")
    return total


def filter_from_json(text: str, field: str = FIELD) -> Filter | None:
    """A condition in OpenAI's JSON, checked; None: there is no text, and no condition.

    Raises InvalidJson, InvalidType, InvalidField, MissingField, TooLong or OutOfRange.
    """
    if not text:
        return None
    try:
        written = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(field=field, problem=str(error)) from None
    condition = _read(written, field, 1)
    check_filter(condition, field)
    return condition


def _read(written: object, field: str, depth: int) -> Filter:
    if not isinstance(written, dict):
        raise InvalidType(field=field, expected="an object")
    if depth > MAX_DEPTH:
        raise InvalidField(field=field, problem=_TOO_DEEP)
    kind = written.get("type")
    if kind in tuple(Junction):
        each = _list_of(written.get("filters"), f"{field}.filters")
        return Compound(Junction(kind), tuple(_read(one, field, depth + 1) for one in each))
    if kind not in tuple(Comparator):
        raise InvalidField(field=f"{field}.type", problem="it is none of the known comparisons")
    key, value = written.get("key"), written.get("value")
    if not isinstance(key, str):
        raise InvalidType(field=f"{field}.key", expected="a string")
    several = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(one, str | int | float) for one in several):
        raise InvalidType(field=f"{field}.value", expected="a string, a number or a boolean")
    return Comparison(key, Comparator(kind), several if isinstance(value, list) else several[0])


def _list_of(value: object, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidType(field=field, expected="an array")
    return value


def _check_comparison(comparison: Comparison, field: str) -> None:
    check_text(f"{field}.key", comparison.key, MAX_METADATA_KEY_CHARACTERS)
    several = comparison.comparator in (Comparator.IN, Comparator.NIN)
    if several is not isinstance(comparison.value, tuple):
        wanted = "a list" if several else "one value"
        raise InvalidField(
            field=f"{field}.value", problem=f"'{comparison.comparator}' compares with {wanted}"
        )
    values = comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
    if len(values) > MAX_CONDITIONS:
        raise TooLong(field=f"{field}.value", length=len(values), limit=MAX_CONDITIONS)
    for value in values:
        check_value(f"{field}.value", value)


def _kind(value: object) -> type:
    """A number is a number, whole or not; a truth value is none."""
    return float if type(value) is int else type(value)
