"""Conditions on the attributes of files: what a search looks at, and what it leaves aside."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

AttributeValue = str | float | bool
"""What callers attach to a file of a store; whole numbers are floats, as in JSON."""


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


def _kind(value: object) -> type:
    """A number is a number, whole or not; a truth value is none."""
    return float if type(value) is int else type(value)
