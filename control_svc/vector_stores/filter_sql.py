"""SQL conditions for filters on file attributes, with the JSON functions of each database.

`filters.py` has the semantics: values of different types are not equal and not ordered, and a
missing attribute satisfies only `ne` and `nin`.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Double,
    SQLColumnExpression,
    Text,
    and_,
    case,
    cast,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
)
from sqlalchemy.dialects.postgresql import JSONB

from control_svc.vector_stores.filters import Comparator, Comparison, Compound, Filter, Junction
from control_svc.vector_stores.model import AttributeValue

_OPERATORS: Final[Mapping[Comparator, Callable[[Any, Any], Any]]] = {
    Comparator.GT: operator.gt,
    Comparator.GTE: operator.ge,
    Comparator.LT: operator.lt,
    Comparator.LTE: operator.le,
}
_NEGATED: Final = (Comparator.NE, Comparator.NIN)
Attributes = SQLColumnExpression[bytes]
"""A column with attributes as a JSON object in UTF-8."""


def filter_condition(
    condition: Filter, attributes: Attributes, dialect: str
) -> ColumnElement[bool]:
    """Build the condition for the SQLAlchemy dialect "sqlite" or "postgresql"."""
    if isinstance(condition, Compound):
        inner = [filter_condition(each, attributes, dialect) for each in condition.filters]
        return and_(*inner) if condition.junction is Junction.AND else or_(*inner)
    compare = _compare_in_sqlite if dialect == "sqlite" else _compare_in_postgres
    is_match = compare(condition, attributes)
    return not_(is_match) if condition.comparator in _NEGATED else is_match


def _compare_in_sqlite(comparison: Comparison, attributes: Attributes) -> ColumnElement[bool]:
    """Search the members of the object: a JSON path cannot have every key."""
    member = func.json_each(cast(attributes, Text)).table_valued("key", "value", "type")

    def matches(value: AttributeValue, compare: Callable[[Any, Any], Any]) -> ColumnElement[bool]:
        if isinstance(value, bool):
            return member.c.type == ("true" if value else "false")
        if isinstance(value, str):
            return and_(member.c.type == "text", compare(member.c.value, value))
        # The parameter is parsed like the attribute, so that rounding is the same.
        number = func.json_extract(orjson.dumps(float(value)).decode(), "$")
        return and_(member.c.type.in_(["integer", "real"]), compare(member.c.value, number))

    return exists().where(member.c.key == comparison.key, _any_value(comparison, matches))


def _compare_in_postgres(comparison: Comparison, attributes: Attributes) -> ColumnElement[bool]:
    document = cast(func.convert_from(attributes, "UTF8"), JSONB)
    kind = func.jsonb_typeof(document[comparison.key])
    value_text = document[comparison.key].astext

    def matches(value: AttributeValue, compare: Callable[[Any, Any], Any]) -> ColumnElement[bool]:
        if isinstance(value, bool):
            expected, is_match = "boolean", value_text == str(value).lower()
        elif isinstance(value, str):
            expected, is_match = "string", compare(value_text.collate("C"), literal(value, Text))
        else:
            expected = "number"
            is_match = compare(cast(value_text, Double), literal(float(value), Double))
        return case((kind == expected, is_match), else_=false())

    return _any_value(comparison, matches)


def _any_value(
    comparison: Comparison,
    matches: Callable[[AttributeValue, Callable[[Any, Any], Any]], ColumnElement[bool]],
) -> ColumnElement[bool]:
    """Whether the attribute matches the value, or any value of a list."""
    compare = _OPERATORS.get(comparison.comparator, operator.eq)
    value = comparison.value
    values = value if isinstance(value, tuple) else (value,)
    if compare is not operator.eq and isinstance(value, bool):
        return false()  # booleans are not ordered
    return or_(false(), *(matches(each, compare) for each in values))
