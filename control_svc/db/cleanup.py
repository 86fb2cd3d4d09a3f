"""The type of the sweeper's steps, which slices define, and the deletion that they share."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql import ColumnElement

from control_svc.db.tables import Table
from control_svc.db.transaction import CrossProjectTransaction

ROWS_AT_ONCE: Final = 500
"""Maximum number of rows that one transaction of a step deletes."""


class Deleted(NamedTuple):
    """The result of one transaction of a step."""

    num_rows: int
    """Number of rows that it has deleted."""
    blob_keys: Sequence[str] = ()
    """Keys of the rows' blobs, which the sweeper deletes after the commit."""


CleanupStep = Callable[[CrossProjectTransaction, datetime], Awaitable[Deleted]]
"""Deletes some of the rows, of all projects, that have expired at a time. The sweeper
repeats a step, each time in its own transaction, until `num_rows` is 0."""


async def delete_some(
    tx: CrossProjectTransaction,
    table: type[Table],
    *conditions: ColumnElement[bool],
    returning: InstrumentedAttribute[Any] | None = None,
    limit: int = ROWS_AT_ONCE,
) -> Sequence[Any]:
    """Delete up to `limit` rows that meet all conditions, and return one value of each: that of the
    column `returning`, by default of the first column of the primary key.

    Rows that another transaction has locked are skipped.
    """
    key = sa.inspect(table).primary_key
    # A table expression, which is evaluated once: PostgreSQL may run a subquery for each row,
    # and then delete more than `limit`.
    some = sa.select(*key).where(*conditions).limit(limit).with_for_update(skip_locked=True).cte()
    deleted = await tx.session.scalars(
        sa.delete(table)
        .where(sa.tuple_(*key).in_(sa.select(some)))
        .returning(key[0] if returning is None else returning)
    )
    return deleted.all()
