"""A window of a list, as a query."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.domain.listing import Window

RowT = TypeVar("RowT")
QueryT = TypeVar("QueryT", bound=Select[*tuple[Any, ...]])


def windowed(query: QueryT, column: InstrumentedAttribute[str], window: Window) -> QueryT:
    """The rows of a window of a list that is ordered by id; see `in_order`."""
    return bounded(query, column, window, window.after or None, window.before or None)


def bounded(
    query: QueryT, column: InstrumentedAttribute[Any], window: Window, after: Any, before: Any
) -> QueryT:
    """As `windowed`, by any column that orders the list; the cursors are values of it, or None.

    Before a cursor the rows come in the reverse of the list's order: those next to it first.
    """
    is_descending = window.newest_first
    if after is not None:
        query = query.where(column < after if is_descending else column > after)
    if before is not None:
        query = query.where(column > before if is_descending else column < before)
        is_descending = not is_descending
    return query.order_by(column.desc() if is_descending else column).limit(window.limit)


def in_order(rows: Sequence[RowT], window: Window) -> list[RowT]:
    """The rows of a window in the list's order."""
    return list(reversed(rows)) if window.before else list(rows)
