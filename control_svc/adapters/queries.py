"""Tables and SQL of adapters and of the reports of inference frontends."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKeyConstraint,
    Integer,
    Select,
    String,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    Adapter,
    AdapterReport,
    DesiredAdapter,
    DesiredState,
    ReportedState,
)
from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.pagination import Window
from control_svc.db.tables import CounterRow, Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from model_files.adapter_facts import AdapterFacts
from svc_kit.adapter_rules import is_adapter_name
from svc_kit.errors import AdapterNotFound


class AdapterRow(Table):
    """A registered adapter; its bytes are in the blob store before the row is here."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("project", "name"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    name: Mapped[str] = mapped_column(String(128))
    model: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    default_scale: Mapped[float] = mapped_column(Float)
    standing_scale: Mapped[float] = mapped_column(Float)
    # its bytes
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    file_bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str] = mapped_column(Key, unique=True)
    # what its file says
    architecture: Mapped[str] = mapped_column(Text)
    base_model: Mapped[str] = mapped_column(Text)
    rank: Mapped[int] = mapped_column(Integer)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    title: Mapped[str] = mapped_column(Text)
    # its life
    attempt: Mapped[int] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)


class AdapterReportRow(Table):
    """The last reported state of an adapter in one engine of a frontend."""

    __tablename__ = "adapter_reports"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "adapter_id"], ["adapters.project", "adapters.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    adapter_id: Mapped[str] = mapped_column(Key, primary_key=True)
    frontend: Mapped[str] = mapped_column(Key, primary_key=True, index=True)
    address: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(64))
    problem: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    reported_at: Mapped[datetime] = mapped_column(Instant)


REVISION = "adapters"
"""The counter that grows with every change of the registry."""
_FACTS = ("architecture", "base_model", "rank", "size_bytes", "title")
_DESIRED = (
    *(AdapterRow.id, AdapterRow.project, AdapterRow.name, AdapterRow.model, AdapterRow.sha256),
    *(AdapterRow.file_bytes, AdapterRow.default_scale, AdapterRow.standing_scale),
    AdapterRow.attempt,
)


class AdapterQueries:
    """The rows of adapters. An adapter is named by its id or by its name."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, adapter: Adapter) -> None:
        """Keep a new adapter."""
        await self._session.execute(insert(AdapterRow).values(project=project, **_values(adapter)))

    async def get(self, project: str, adapter: str) -> Adapter:
        """By id or name. Raises AdapterNotFound."""
        return await self._one(adapter, _named(project, adapter))

    async def lock(self, project: str, adapter: str) -> Adapter:
        """As `get`, locked until the end of the transaction."""
        return await self._one(adapter, _named(project, adapter).with_for_update())

    async def find(self, project: str, name: str) -> Adapter | None:
        """The one of this name, locked."""
        row = await self._session.scalar(_named(project, name).with_for_update())
        return None if row is None else _adapter(row)

    async def count(self, project: str) -> int:
        """How many there are."""
        query = select(func.count()).where(AdapterRow.project == project)
        return await self._session.scalar(query) or 0

    async def page(self, project: str, window: Window) -> list[Adapter]:
        """The adapters of a window."""
        query = select(AdapterRow).where(AdapterRow.project == project)
        newest_first, after = window.newest_first, window.after
        query = query.order_by(AdapterRow.id.desc() if newest_first else AdapterRow.id)
        if after:
            query = query.where(AdapterRow.id < after if newest_first else AdapterRow.id > after)
        return [_adapter(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def update(self, project: str, adapter: Adapter) -> None:
        """Keep what has changed of a locked adapter."""
        await self._session.execute(
            update(AdapterRow)
            .where(AdapterRow.project == project, AdapterRow.id == adapter.id)
            .values(**_values(adapter))
        )

    async def delete(self, project: str, adapter_id: str) -> None:
        """Forget an adapter; its bytes are the caller's to delete."""
        await self._session.execute(
            delete(AdapterRow).where(AdapterRow.project == project, AdapterRow.id == adapter_id)
        )

    async def reports(self, project: str, adapter_id: str, since: datetime) -> list[AdapterReport]:
        """Reports of frontends about it since a time."""
        rows = await self._session.scalars(
            select(AdapterReportRow)
            .where(
                AdapterReportRow.project == project,
                AdapterReportRow.adapter_id == adapter_id,
                AdapterReportRow.reported_at > since,
            )
            .order_by(AdapterReportRow.frontend)
        )
        return [_report(row) for row in rows]

    async def _one(self, adapter: str, query: Select[AdapterRow]) -> Adapter:
        row = await self._session.scalar(query)
        if row is None:
            raise AdapterNotFound(adapter=adapter)
        return _adapter(row)


class AdapterSyncQueries:
    """What every frontend should have, over all projects: for our own services alone."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._announce = tx.announce

    async def next_revision(self) -> int:
        """Return the next revision of the registry. Every change takes one first, so that changes
        are committed in the order of their revisions and no reader misses one.
        """
        found = await self._session.scalar(
            update(CounterRow)
            .where(CounterRow.name == REVISION)
            .values(value=CounterRow.value + 1)
            .returning(CounterRow.value)
        )
        if found is None:
            found = 1
            await self._session.execute(insert(CounterRow).values(name=REVISION, value=found))
        self._announce(ADAPTERS_TOPIC)
        return found

    async def revision(self) -> int:
        """The newest number."""
        query = select(CounterRow.value).where(CounterRow.name == REVISION)
        return await self._session.scalar(query) or 0

    async def state(self) -> DesiredState:
        """Everything."""
        revision = await self.revision()
        rows = await self._session.execute(select(*_DESIRED))
        desired = [DesiredAdapter(**row._mapping) for row in rows]
        return DesiredState(revision, {each.id: each for each in desired})

    async def blob_of(self, sha256: str) -> tuple[str, int] | None:
        """The key and size of the bytes of a registered digest."""
        row = (
            await self._session.execute(
                select(AdapterRow.blob_key, AdapterRow.file_bytes)
                .where(AdapterRow.sha256 == sha256)
                .limit(1)
            )
        ).one_or_none()
        return None if row is None else (row.blob_key, row.file_bytes)

    async def replace_reports(self, frontend: str, reports: Sequence[AdapterReport]) -> None:
        """Replace the reports of a frontend; reports about deleted adapters are ignored."""
        await self._session.execute(
            delete(AdapterReportRow).where(AdapterReportRow.frontend == frontend)
        )
        known = await self._known({(report.project, report.adapter_id) for report in reports})
        values = [asdict(r) for r in reports if (r.project, r.adapter_id) in known]
        if values:
            await self._session.execute(insert(AdapterReportRow), values)
        self._announce(ADAPTERS_TOPIC)

    async def _known(self, ids: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        key = tuple_(AdapterRow.project, AdapterRow.id)
        query = select(AdapterRow.project, AdapterRow.id).where(key.in_(ids))
        # Locked: one that is deleted meanwhile would leave a report without its adapter.
        rows = await self._session.execute(query.with_for_update(read=True))
        return {(row.project, row.id) for row in rows}


def _named(project: str, adapter: str) -> Select[AdapterRow]:
    """What has this id or name. What can be neither is not asked for: a database may refuse it."""
    if not is_adapter_name(adapter):
        raise AdapterNotFound(adapter=adapter)
    column = AdapterRow.id if is_id(adapter, ADAPTER) else AdapterRow.name
    return select(AdapterRow).where(AdapterRow.project == project, column == adapter)


def _values(adapter: Adapter) -> dict[str, Any]:
    values: dict[str, Any] = asdict(adapter)
    facts: dict[str, Any] = values.pop("facts")
    return values | facts


def _adapter(row: AdapterRow) -> Adapter:
    return Adapter(
        id=row.id,
        name=row.name,
        model=row.model,
        description=row.description,
        default_scale=row.default_scale,
        standing_scale=row.standing_scale,
        sha256=row.sha256,
        file_bytes=row.file_bytes,
        blob_key=row.blob_key,
        facts=AdapterFacts(**{name: getattr(row, name) for name in _FACTS}),
        attempt=row.attempt,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _report(row: AdapterReportRow) -> AdapterReport:
    return AdapterReport(
        adapter_id=row.adapter_id,
        project=row.project,
        frontend=row.frontend,
        address=row.address,
        model=row.model,
        state=ReportedState(row.state),
        reason=row.reason,
        problem=row.problem,
        sha256=row.sha256,
        reported_at=row.reported_at,
    )
