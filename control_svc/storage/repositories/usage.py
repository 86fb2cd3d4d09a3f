"""Queries about usage."""

from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, insert, select, tuple_, update

from control_svc.domain.usage import (
    Counts,
    Period,
    UsagePlace,
    UsageQuery,
    UsageReport,
    UsageSum,
    day_of,
)
from control_svc.storage.models import UsageReportRow, UsageRow
from control_svc.storage.unit_of_work import Transaction

_COLUMNS = [getattr(UsageRow, name) for name in Counts._fields]


class SqlUsage:
    """Usage in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, report: UsageReport, now: datetime) -> None:
        """Add a report to the sums, unless that was done before.

        Two copies at the same moment meet in the report's id, and two services in a sum's first
        row: one of the transactions is run again, and finds the other.
        """
        if await self._session.get(UsageReportRow, report.id) is not None:
            return
        await self._session.execute(insert(UsageReportRow).values(id=report.id, added_at=now))
        # In one order, so that two reports never wait for each other.
        for delta in sorted(report.deltas, key=lambda each: each.place):
            await self._add(delta)

    async def page(self, query: UsageQuery, after: str, limit: int) -> list[UsageSum]:
        """Sums by time, project and model, beyond the cursor `after`; empty: from the first."""
        start = UsageRow.hour if query.period is Period.HOUR else UsageRow.day
        place = (start, UsageRow.project, UsageRow.model)
        statement = _filtered(
            select(*place, *map(func.sum, _COLUMNS)).group_by(*place).order_by(*place), query
        )
        if after:
            beyond = UsageSum.place_of(after)
            statement = statement.where(
                tuple_(*place) > tuple_(beyond.start, beyond.project, beyond.model)
            )
        rows = await self._session.execute(statement.limit(limit))
        # PostgreSQL adds integers up to decimals.
        return [
            UsageSum(UsagePlace(*row[: len(place)]), Counts(*map(int, row[len(place) :])))
            for row in rows
        ]

    async def _add(self, delta: UsageSum) -> None:
        place, counts = delta.place, delta.counts._asdict()
        key = {"project": place.project, "model": place.model, "hour": place.start}
        added: Any = await self._session.execute(
            update(UsageRow)
            .filter_by(**key)
            .values({name: getattr(UsageRow, name) + count for name, count in counts.items()})
        )
        if not added.rowcount:
            await self._session.execute(
                insert(UsageRow).values(**key, day=day_of(place.start), **counts)
            )


def _filtered(statement: Select[Any], query: UsageQuery) -> Select[Any]:
    if query.project:
        statement = statement.where(UsageRow.project == query.project)
    if query.model:
        statement = statement.where(UsageRow.model == query.model)
    if query.start is not None:
        statement = statement.where(UsageRow.hour >= query.start)
    if query.end is not None:
        statement = statement.where(UsageRow.hour < query.end)
    return statement
