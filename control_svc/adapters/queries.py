"""Tables and SQL of adapters and of the reports of inference frontends."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    REPORT_TTL,
    Adapter,
    AdapterReport,
    DesiredAdapter,
    DesiredState,
    Frontend,
    ReportedState,
)
from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.object_queries import ObjectQueries
from control_svc.db.tables import (
    CounterRow,
    Instant,
    Key,
    ObjectRow,
    OwnedRow,
    Table,
    blob_key,
    read_row,
    row_values,
)
from control_svc.db.transaction import CrossProjectQueries, InstallationQueries
from model_files.adapter_facts import AdapterFacts
from svc_kit.adapter_rules import is_adapter_name
from svc_kit.errors import AdapterNotFound, DomainError


class AdapterRow(ObjectRow):
    """A registered adapter. Its bytes are in the blob store before the row is inserted."""

    __tablename__ = "adapters"
    __table_args__ = (sa.UniqueConstraint("project", "name"),)

    name: Mapped[str] = mapped_column(sa.String(128))
    model: Mapped[str] = mapped_column(sa.Text)
    description: Mapped[str] = mapped_column(sa.Text)
    default_scale: Mapped[float] = mapped_column(sa.Float)
    standing_scale: Mapped[float] = mapped_column(sa.Float)
    sha256: Mapped[str] = mapped_column(sa.String(64), index=True)
    file_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    blob_key: Mapped[str] = blob_key("file_bytes", "sha256")
    architecture: Mapped[str] = mapped_column(sa.Text)
    base_model: Mapped[str] = mapped_column(sa.Text)
    rank: Mapped[int] = mapped_column(sa.Integer)
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    title: Mapped[str] = mapped_column(sa.Text)
    attempt: Mapped[int] = mapped_column(sa.BigInteger)
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)


class AdapterReportRow(OwnedRow):
    """The last reported state of an adapter in one engine of a frontend."""

    __tablename__ = "adapter_reports"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "adapter_id"], ["adapters.project", "adapters.id"], ondelete="CASCADE"
        ),
    )

    adapter_id: Mapped[str] = mapped_column(Key, primary_key=True)
    frontend: Mapped[str] = mapped_column(Key, primary_key=True, index=True)
    address: Mapped[str] = mapped_column(sa.Text)
    model: Mapped[str] = mapped_column(sa.Text)
    state: Mapped[str] = mapped_column(sa.String(16))
    reason: Mapped[str] = mapped_column(sa.String(64))
    problem: Mapped[str] = mapped_column(sa.Text)
    sha256: Mapped[str] = mapped_column(sa.String(64))
    reported_at: Mapped[datetime] = mapped_column(Instant)


class AdapterFrontendRow(Table):
    """The last report of a frontend, also if it has no adapters."""

    __tablename__ = "adapter_frontends"

    frontend: Mapped[str] = mapped_column(Key, primary_key=True)
    address: Mapped[str] = mapped_column(sa.Text)
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    reported_at: Mapped[datetime] = mapped_column(Instant, index=True)


REVISION = "adapters"
"""Name of the counter of changes of the registry."""
_DESIRED = (
    *(AdapterRow.id, AdapterRow.project, AdapterRow.name, AdapterRow.model, AdapterRow.sha256),
    *(AdapterRow.file_bytes, AdapterRow.default_scale, AdapterRow.standing_scale),
    AdapterRow.attempt,
)


class AdapterQueries(ObjectQueries[AdapterRow, Adapter]):
    """Adapters in one transaction. `get` and `lock` look them up by id or by name."""

    table = AdapterRow
    prefix = ADAPTER

    async def find(self, name: str) -> Adapter | None:
        """Return and lock the adapter with this name, if any."""
        row = await self._session.scalar(self._select_one(name).with_for_update())
        return None if row is None else self._object(row)

    async def count(self) -> int:
        query = sa.select(sa.func.count()).where(self._mine(AdapterRow))
        return await self._session.scalar(query) or 0

    async def reports(self, adapter_id: str, since: datetime) -> list[AdapterReport]:
        """Return the reports about an adapter since a time."""
        rows = await self._session.scalars(
            self._select(
                AdapterReportRow,
                AdapterReportRow.adapter_id == adapter_id,
                AdapterReportRow.reported_at > since,
            ).order_by(AdapterReportRow.frontend)
        )
        return [read_row(AdapterReport, row, state=ReportedState(row.state)) for row in rows]

    async def _get(self, object_id: str, *, locked: bool) -> Adapter:
        query = self._select_one(object_id)
        row = await self._session.scalar(query.with_for_update() if locked else query)
        if row is None:
            raise self._not_found(object_id)
        return self._object(row)

    def _select_one(self, adapter: str) -> sa.Select[AdapterRow]:
        """Select an adapter by id or name. Raises AdapterNotFound for a malformed name, since a
        database may reject its characters.
        """
        if not is_adapter_name(adapter):
            raise AdapterNotFound(adapter=adapter)
        column = AdapterRow.id if is_id(adapter, ADAPTER) else AdapterRow.name
        return self._select(AdapterRow, column == adapter)

    def _not_found(self, object_id: str) -> DomainError:
        return AdapterNotFound(adapter=object_id)

    def _values(self, value: Adapter) -> dict[str, Any]:
        return row_values(AdapterRow, value) | row_values(AdapterRow, value.facts)

    def _object(self, row: AdapterRow) -> Adapter:
        return read_row(Adapter, row, facts=read_row(AdapterFacts, row))


class AdapterFrontendQueries(InstallationQueries):
    """The revision of the registry, and the frontends that follow it."""

    async def next_revision(self) -> int:
        """Increment and return the revision of the registry.

        Every change does this first, so that changes are committed in the order of their revisions
        and no reader misses one.
        """
        revision = await self._session.scalar(
            sa.update(CounterRow)
            .where(CounterRow.name == REVISION)
            .values(value=CounterRow.value + 1)
            .returning(CounterRow.value)
        )
        if revision is None:
            revision = 1
            await self._session.execute(sa.insert(CounterRow).values(name=REVISION, value=revision))
        self._tx.announce(ADAPTERS_TOPIC)
        return revision

    async def revision(self) -> int:
        """Return the current revision of the registry."""
        query = sa.select(CounterRow.value).where(CounterRow.name == REVISION)
        return await self._session.scalar(query) or 0

    async def frontends(self, since: datetime) -> list[Frontend]:
        """Return the frontends that have reported since a time."""
        query = sa.select(AdapterFrontendRow).where(AdapterFrontendRow.reported_at > since)
        return [read_row(Frontend, row) for row in await self._session.scalars(query)]


class AdapterSyncQueries(CrossProjectQueries):
    """The desired state over all projects, and the reports of frontends."""

    async def state(self) -> DesiredState:
        revision = await AdapterFrontendQueries(self._tx).revision()
        rows = await self._session.execute(sa.select(*_DESIRED))
        desired = [DesiredAdapter(**row._mapping) for row in rows]
        return DesiredState(revision, {each.id: each for each in desired})

    async def find_blob(self, sha256: str) -> tuple[str, int] | None:
        """Return key and size of the blob of a registered digest."""
        query = sa.select(AdapterRow.blob_key, AdapterRow.file_bytes)
        result = await self._session.execute(query.where(AdapterRow.sha256 == sha256).limit(1))
        row = result.one_or_none()
        return None if row is None else (row.blob_key, row.file_bytes)

    async def replace_reports(self, frontend: Frontend, reports: Sequence[AdapterReport]) -> None:
        """Replace the reports of a frontend; reports about deleted adapters are ignored.

        Frontends that have not reported since `REPORT_TTL` are forgotten.
        """
        keys = {(report.project, report.adapter_id) for report in reports}
        query = (
            sa.select(AdapterRow.project, AdapterRow.id)
            .where(sa.tuple_(AdapterRow.project, AdapterRow.id).in_(keys))
            .order_by(AdapterRow.project, AdapterRow.id)
        )
        # Lock the adapters: the foreign key of a report would fail if one was deleted meanwhile.
        # First, as who deletes an adapter locks it before its reports.
        found = await self._session.execute(query.with_for_update(read=True))
        known = {(each.project, each.id) for each in found}
        row = AdapterFrontendRow
        is_gone = row.reported_at < frontend.reported_at - REPORT_TTL
        await self._session.execute(
            sa.delete(row).where(sa.or_(row.frontend == frontend.frontend, is_gone))
        )
        await self._session.execute(sa.insert(row).values(asdict(frontend)))
        await self._session.execute(
            sa.delete(AdapterReportRow).where(AdapterReportRow.frontend == frontend.frontend)
        )
        values = [asdict(r) for r in reports if (r.project, r.adapter_id) in known]
        if values:
            await self._session.execute(sa.insert(AdapterReportRow), values)
        self._tx.announce(ADAPTERS_TOPIC)
