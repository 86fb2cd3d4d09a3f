"""Usage: reports of the services, summed by project, key, model and hour, with its cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, unquote

import sqlalchemy as sa
from corral.control.v1 import usage_service_pb2 as pb
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.pagination import Page
from control_svc.base.resource import OperatorMethods
from control_svc.db.cleanup import Deleted, delete_some
from control_svc.db.tables import Instant, Key, OwnedRow, Project, Table
from control_svc.db.transaction import (
    Clock,
    CrossProjectQueries,
    CrossProjectTransaction,
    cross_project_read,
)
from control_svc.projects.prices import Prices
from svc_kit.errors import InvalidField
from svc_kit.rpc.message_mapper import MessageMapper

HOUR: Final = timedelta(hours=1)
RETENTION: Final = timedelta(days=7)
"""How long the id of a report is known. One that was added and whose answer was lost is added again
if it comes later."""


class Counts(NamedTuple):
    """Counters of requests and tokens."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, order=True)
class UsageKey:
    """Key of a sum, in list order: by time, project and model."""

    start: datetime
    project: str
    model: str


class UsageTotal(NamedTuple):
    """Counters, and the cost of the tokens in billionths of the currency."""

    counts: Counts
    cost_nanos: int


@dataclass(frozen=True)
class UsageSum:
    key: UsageKey
    counts: Counts
    cost_nanos: int = 0

    @property
    def id(self) -> str:
        """The key as a cursor, with percent-encoded names."""
        key = self.key
        project, model = (quote(name, safe="") for name in (key.project, key.model))
        return f"{int(key.start.timestamp())}/{project}/{model}"

    @staticmethod
    def parse_cursor(cursor: str) -> UsageKey:
        """Decode a cursor."""
        seconds, project, model = cursor.split("/")
        start = datetime.fromtimestamp(int(seconds), tz=UTC)
        return UsageKey(start, unquote(project), unquote(model))


@dataclass(frozen=True, order=True)
class UsageDelta:
    """What a key of a project used of a model within an hour."""

    hour: datetime
    project: str
    key: str
    model: str
    counts: Counts


@dataclass(frozen=True)
class UsageReport:
    """What a service counted since its last report."""

    id: str
    deltas: Sequence[UsageDelta]

    def until(self, now: datetime) -> Self:
        """The report with the usage of the future in the current hour: a clock was wrong. The past
        is not refused, since a clock or a network may have been wrong for days."""
        hour = hour_of(now)
        deltas = [
            replace(each, hour=hour) if each.hour > now + HOUR else each for each in self.deltas
        ]
        return replace(self, deltas=deltas)


def hour_of(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(time: datetime) -> datetime:
    """The start of the day of a time, in UTC."""
    return hour_of(time).replace(hour=0)


class Period(StrEnum):
    """The length of the intervals of sums."""

    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Filters of sums; empty and None do not filter."""

    project: str = ""
    key: str = ""
    model: str = ""
    start: datetime | None = None
    end: datetime | None = None
    period: Period = Period.DAY

    def check(self) -> None:
        """Validate the query. Raises InvalidField."""
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise InvalidField(field="end_time", problem="it is not after start_time")


class UsageRow(OwnedRow):
    """Usage of a model by a key of a project within an hour."""

    __tablename__ = "usage"
    __table_args__ = (sa.Index(None, "hour"),)

    key: Mapped[str] = mapped_column(Project, primary_key=True, server_default=sa.text("''"))
    model: Mapped[str] = mapped_column(Project, primary_key=True)
    hour: Mapped[datetime] = mapped_column(Instant, primary_key=True)
    day: Mapped[datetime] = mapped_column(Instant)
    # sums
    requests: Mapped[int] = mapped_column(sa.BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    cached_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    completion_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    cost_nanos: Mapped[int] = mapped_column(sa.BigInteger, server_default=sa.text("0"))


class UsageReportRow(Table):
    """The id of a report that was added, so that it is added once."""

    __tablename__ = "usage_reports"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    added_at: Mapped[datetime] = mapped_column(Instant, index=True)


_COUNTERS = [*Counts._fields, "cost_nanos"]
_SUMS: list[Any] = [sa.func.coalesce(sa.func.sum(getattr(UsageRow, name)), 0) for name in _COUNTERS]


class UsageQueries(CrossProjectQueries):
    async def add(self, report: UsageReport, now: datetime, prices: Prices) -> None:
        """Add a report to the sums, unless it has been added before.

        Of two concurrent copies of a report, or inserts of a sum, one violates the primary key; its
        transaction is retried.
        """
        if await self._session.get(UsageReportRow, report.id) is not None:
            return
        await self._session.execute(sa.insert(UsageReportRow).values(id=report.id, added_at=now))
        # In key order, to avoid deadlocks.
        for delta in sorted(report.deltas):
            cost = prices.cost(delta.model, *delta.counts[1:])
            await self._add(delta, {**delta.counts._asdict(), "cost_nanos": cost})

    async def page(self, query: UsageQuery, after: str, limit: int) -> list[UsageSum]:
        """List sums by time, project and model, after the cursor `after` unless it is empty."""
        start = UsageRow.hour if query.period is Period.HOUR else UsageRow.day
        key = (start, UsageRow.project, UsageRow.model)
        statement = _filtered(sa.select(*key, *_SUMS).group_by(*key).order_by(*key), query)
        if after:
            last = UsageSum.parse_cursor(after)
            statement = statement.where(
                sa.tuple_(*key) > sa.tuple_(last.start, last.project, last.model)
            )
        rows = await self._session.execute(statement.limit(limit))
        return [UsageSum(UsageKey(*row[: len(key)]), *_total(row[len(key) :])) for row in rows]

    async def total(self, start: datetime, *, project: str, key: str, model: str) -> UsageTotal:
        """The usage since the start of an hour; empty names do not filter."""
        query = UsageQuery(project=project, key=key, model=model, start=start)
        rows = await self._session.execute(_filtered(sa.select(*_SUMS), query))
        return _total(rows.one())

    async def _add(self, delta: UsageDelta, counts: dict[str, int]) -> None:
        start = delta.hour
        key = {"project": delta.project, "key": delta.key, "model": delta.model, "hour": start}
        updated: Any = await self._session.execute(
            sa.update(UsageRow)
            .filter_by(**key)
            .values({name: getattr(UsageRow, name) + count for name, count in counts.items()})
        )
        if not updated.rowcount:
            await self._session.execute(
                sa.insert(UsageRow).values(**key, day=day_of(start), **counts)
            )


def _total(sums: Sequence[Any]) -> UsageTotal:
    *counts, cost = map(int, sums)  # in PostgreSQL the sum of a bigint is a decimal
    return UsageTotal(Counts(*counts), cost)


def _filtered(statement: sa.Select[Any], query: UsageQuery) -> sa.Select[Any]:
    if query.project:
        statement = statement.where(UsageRow.project == query.project)
    if query.key:
        statement = statement.where(UsageRow.key == query.key)
    if query.model:
        statement = statement.where(UsageRow.model == query.model)
    if query.start is not None:
        statement = statement.where(UsageRow.hour >= query.start)
    if query.end is not None:
        statement = statement.where(UsageRow.hour < query.end)
    return statement


_DELTA: Final = MessageMapper(UsageDelta, pb.UsageDelta)
_SUM: Final = MessageMapper(
    UsageSum,
    pb.UsageSum,
    flat={
        "key": MessageMapper(UsageKey, pb.UsageSum, renamed={"start": "start_time"}, is_part=True)
    },
)
_QUERY: Final = MessageMapper(
    UsageQuery,
    pb.ListUsageRequest,
    renamed={"start": "start_time", "end": "end_time"},
    only_message=["page_size", "page_token"],
)


@dataclass(frozen=True)
class Usage(OperatorMethods[UsageSum]):
    """Reports and queries of usage."""

    service = pb.DESCRIPTOR.services_by_name["UsageService"]
    message, noun, plural = _SUM, "a sum", "sums"

    clock: Clock
    prices: Prices

    async def ReportUsage(self, request: pb.ReportUsageRequest) -> None:
        """Add a report; repetitions change nothing."""
        deltas = [
            _DELTA.from_message(delta, f"deltas[{number}]")
            for number, delta in enumerate(request.deltas)
        ]
        now = self.clock()
        report = UsageReport(
            request.report_id, [replace(each, hour=hour_of(each.hour)) for each in deltas]
        )
        report = report.until(now)
        await self.transactions.write(lambda tx: UsageQueries(tx).add(report, now, self.prices))

    @cross_project_read
    async def ListUsage(
        self, tx: CrossProjectTransaction, request: pb.ListUsageRequest
    ) -> Page[UsageSum]:
        """List sums, oldest first. Raises InvalidField."""
        asked = _QUERY.from_message(request)
        query = replace(
            asked, start=asked.start and hour_of(asked.start), end=asked.end and hour_of(asked.end)
        )
        query.check()
        window = self.window(request, "usage", str(query))
        return window.page(await UsageQueries(tx).page(query, window.after, window.limit))


async def delete_old_reports(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Delete the ids of reports added more than `RETENTION` ago. A step of the sweeper."""
    deleted = await delete_some(tx, UsageReportRow, UsageReportRow.added_at < now - RETENTION)
    return Deleted(len(deleted))
