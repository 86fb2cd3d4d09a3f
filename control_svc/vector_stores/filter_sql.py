"""SQL conditions for filters on file attributes, with the JSON functions of each database.

`filters.py` has the semantics: values of different types are not equal and not ordered, and a
missing attribute satisfies only `ne` and `nin`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from control_svc.vector_stores.filters import Comparator, Comparison, Compound, Filter, Junction

_ORDERINGS: Final[Mapping[Comparator, Callable[[Any, Any], sa.ColumnElement[bool]]]] = {
    Comparator.GT: operator.gt,
    Comparator.GTE: operator.ge,
    Comparator.LT: operator.lt,
    Comparator.LTE: operator.le,
}
_NEGATED: Final = (Comparator.NE, Comparator.NIN)
Attributes = sa.SQLColumnExpression[Any]
"""Attributes as a JSON object: TEXT or JSONB."""


class _Values(NamedTuple):
    """The values of a comparison by type. Each is one parameter of the statement."""

    texts: list[str]
    numbers: list[float]
    booleans: list[str]
    """"true" and "false"; empty for an ordering, since booleans are not ordered."""


def filter_condition(
    condition: Filter, attributes: Attributes, dialect: str
) -> sa.ColumnElement[bool]:
    """Build the condition for the SQLAlchemy dialect "sqlite" or "postgresql"."""
    if isinstance(condition, Compound):
        inner = [filter_condition(each, attributes, dialect) for each in condition.filters]
        return sa.and_(*inner) if condition.junction is Junction.AND else sa.or_(*inner)
    compare = _compare_in_sqlite if dialect == "sqlite" else _compare_in_postgres
    is_match = compare(condition, _group(condition), attributes)
    return sa.not_(is_match) if condition.comparator in _NEGATED else is_match


def _group(comparison: Comparison) -> _Values:
    value = comparison.value
    values = value if isinstance(value, tuple) else (value,)
    is_ordering = comparison.comparator in _ORDERINGS
    return _Values(
        [each for each in values if isinstance(each, str)],
        [float(each) for each in values if not isinstance(each, str | bool)],
        [str(each).lower() for each in values if isinstance(each, bool) and not is_ordering],
    )


def _compare_in_sqlite(
    comparison: Comparison, values: _Values, attributes: Attributes
) -> sa.ColumnElement[bool]:
    """Search the members of the object: a JSON path cannot have every key."""
    member = sa.func.json_each(attributes).table_valued("key", "value", "type")
    # Numbers are parsed by SQLite like the attributes, so that rounding is the same.
    parsed = sa.func.json_each(orjson.dumps(values.numbers).decode()).table_valued("value")
    numbers = sa.select(parsed.c.value).scalar_subquery()
    is_match = sa.or_(
        (member.c.type == sa.literal_column("'text'"))
        & _matches_any(comparison, member.c.value, values.texts),
        member.c.type.in_([sa.literal_column("'integer'"), sa.literal_column("'real'")])
        & _matches_any(comparison, member.c.value, numbers),
        member.c.type.in_(values.booleans),
    )
    return sa.exists().where(member.c.key == comparison.key, is_match)


def _compare_in_postgres(
    comparison: Comparison, values: _Values, attributes: Attributes
) -> sa.ColumnElement[bool]:
    value = sa.cast(attributes, JSONB)[comparison.key]
    number, text = sa.cast(value.astext, sa.Double), value.astext.collate("C")
    return sa.case(
        {
            "string": _matches_any(comparison, text, values.texts),
            "number": _matches_any(comparison, number, values.numbers),
            "boolean": value.astext.in_(values.booleans),
        },
        value=sa.func.jsonb_typeof(value),
        else_=sa.false(),
    )


def _matches_any(
    comparison: Comparison,
    attribute: sa.ColumnElement[Any],
    values: Sequence[Any] | sa.ScalarSelect[Any],
) -> sa.ColumnElement[bool]:
    """Compare an attribute with values of its type; false if there are none."""
    ordering = _ORDERINGS.get(comparison.comparator)
    if ordering is not None and isinstance(values, sa.ScalarSelect):
        return ordering(attribute, values)
    if ordering is not None and values:
        return ordering(attribute, values[0])
    return attribute.in_(values)
