"""Watches the SQL of the control service: a statement of a project's transaction that names a table
with a project must have the condition, or insert the value, of exactly this project. No text may be
longer than its column, which SQLite does not check.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.util import concurrency

from control_svc.db.transaction import (
    CrossProjectQueries,
    CrossProjectTransaction,
    InstallationQueries,
    Queries,
    Transaction,
)
from control_svc.slices import METADATA

OWNED = {table.name for table in METADATA.sorted_tables if "project" in table.columns}
Rows = Sequence[Mapping[str, Any]]


@contextmanager
def watch_statements() -> Iterator[list[str]]:
    """Yield the list of the statements that break a rule, to which the watch adds."""
    found: list[str] = []

    def check(_: object, statement: Any, many: Rows, one: Mapping[str, Any], __: object) -> None:
        rows = [*many, one] if one else many
        found.extend(_too_long(statement, rows))
        projects = _projects_of_caller()
        if projects is None or not (_tables(statement) & OWNED):
            return
        named = _projects(statement, rows)
        if named != projects or not named:
            found.append(f"of {sorted(projects)}, names {sorted(named)}: {statement}")

    sa.event.listen(sa.Engine, "before_execute", check)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_execute", check)


def _projects_of_caller() -> set[str] | None:
    """The project of the transaction of the innermost queries, or of the innermost function with a
    transaction; empty for queries that may read no rows of projects, and None across projects.

    SQLAlchemy runs statements in a greenlet, whose parent is where they are awaited.
    """
    parent = vars(concurrency)["getcurrent"]().parent
    frame: FrameType | None = None if parent is None else parent.gr_frame
    while frame is not None:
        for each in (frame.f_locals.get("self"), frame.f_locals.get("tx")):
            match each:
                case Queries(_project=project) | Transaction(project=project):
                    return {project}
                case InstallationQueries():
                    return set()
                case CrossProjectQueries() | CrossProjectTransaction():
                    return None
        frame = frame.f_back
    return None


def _too_long(statement: Any, rows: Rows) -> Iterator[str]:
    if not isinstance(statement, Insert | Update):
        return
    for row in rows or [statement.compile().params]:
        for name, value in row.items():
            column = statement.table.columns.get(name)
            limit = getattr(column.type, "length", None) if column is not None else None
            if limit is not None and isinstance(value, str) and len(value) > limit:
                yield f"{column} has {limit} characters, not {len(value)}: {value}"


def _tables(statement: Any) -> set[str]:
    if isinstance(statement, sa.TextClause):
        return set(re.findall(r"\w+", statement.text))
    parts = [each for each in visitors.iterate(statement)]
    columns = [each.table for each in parts if isinstance(each, sa.Column)]
    return {each.name for each in [*parts, *columns] if isinstance(each, sa.Table)}


def _projects(statement: Any, rows: Rows) -> set[Any]:
    if isinstance(statement, Insert | sa.TextClause):
        written = statement.compile().params if not rows else {}
        return {row["project"] for row in [*rows, written] if "project" in row}
    named = set()
    for each in visitors.iterate(statement):
        if isinstance(each, BinaryExpression):
            named |= _compared(each, rows)
    return named


def _compared(condition: BinaryExpression[Any], rows: Rows) -> set[Any]:
    left, right = condition.left, condition.right
    if not isinstance(right, sa.BindParameter):
        return set()
    values = [right.value] if right.value is not None else [row.get(right.key) for row in rows]
    if condition.operator is operators.eq and _is_project(left):
        return set(values)
    parts = [*getattr(left, "clauses", ())]  # (project, id) IN ((…), …)
    if condition.operator is operators.in_op and parts and _is_project(parts[0]):
        return {key[0] for value in values for key in value or ()}
    return set()


def _is_project(element: Any) -> bool:
    return isinstance(element, sa.Column) and element.name == "project"
