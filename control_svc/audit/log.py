"""The audit log: who did what, when, and from where. Rows are added, never changed or deleted;
triggers of the database see to it.

Operations with the scope admin call `record_call` in their transaction, so that the log has exactly
the calls that were committed, and the server records what it refuses. Other services report theirs
(`inference_svc/audit.py`).
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Final

import sqlalchemy as sa
from corral.control.v1 import audit_service_pb2 as pb
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import AUDIT_EVENT, IdSource
from control_svc.base.pagination import Page, Window, apply_window
from control_svc.base.resource import OperatorMethods
from control_svc.db.tables import Instant, Key, Table, read_row
from control_svc.db.transaction import (
    CrossProjectQueries,
    CrossProjectTransaction,
    cross_project_read,
)
from svc_kit.auth.principal import current_principal, peer_host
from svc_kit.logs import current_request_id
from svc_kit.rpc.admin_call import AdminCall, current_admin_call
from svc_kit.rpc.message_mapper import MessageMapper

UNSENT: Final = "audit_events"
"""The name of a session's new events."""


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """A call of an operator."""

    id: str
    time: datetime
    actor: str
    project: str
    method: str
    target: str
    request: str
    address: str
    request_id: str
    refusal: str = ""

    @classmethod
    def of(cls, call: AdminCall, target: str, now: datetime) -> "AuditEvent":
        principal = current_principal()
        return cls(
            id=IdSource(lambda: now).new(AUDIT_EVENT),
            time=now,
            actor=principal.key_id,
            project=principal.project,
            method=call.short_method,
            target=target,
            request=call.request_json,
            address=peer_host(call.peer) or "",
            request_id=current_request_id(),
            refusal=call.refusal,
        )

    def reported(self) -> "AuditEvent":
        """The event that another service reports, with the id under which it is stored."""
        digest = sha256(self.id.encode()).digest()
        ids = IdSource(lambda: self.time, lambda length: digest[:length])
        return replace(self, id=ids.new(AUDIT_EVENT))


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which events to list; empty texts and None select all."""

    actor: str = ""
    target: str = ""
    start: datetime | None = None
    end: datetime | None = None


class AuditEventRow(Table):
    """A call of an operator."""

    __tablename__ = "audit_events"
    __table_args__ = (sa.Index(None, "actor", "id"), sa.Index(None, "target", "id"))

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    time: Mapped[datetime] = mapped_column(Instant)
    actor: Mapped[str] = mapped_column(sa.Text)
    project: Mapped[str] = mapped_column(sa.Text)
    method: Mapped[str] = mapped_column(sa.Text)
    target: Mapped[str] = mapped_column(sa.Text)
    request: Mapped[str] = mapped_column(sa.Text)
    address: Mapped[str] = mapped_column(sa.Text)
    request_id: Mapped[str] = mapped_column(sa.Text)
    refusal: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("''"))


class AuditQueries(CrossProjectQueries):
    async def add(self, event: AuditEvent) -> None:
        """Append an event, which `syslog.py` may send after the commit."""
        self._session.info.setdefault(UNSENT, []).append(event)
        await self._session.execute(sa.insert(AuditEventRow).values(**asdict(event)))

    async def add_if_missing(self, event: AuditEvent) -> None:
        """Append an event unless one with its id is there."""
        if await self._session.get(AuditEventRow, event.id) is None:
            await self.add(event)

    async def page(self, window: Window, chosen: AuditFilter) -> list[AuditEvent]:
        """List the events of a window, newest first."""
        query = sa.select(AuditEventRow)
        for column, wanted in (
            (AuditEventRow.actor, chosen.actor),
            (AuditEventRow.target, chosen.target),
        ):
            if wanted:
                query = query.where(column == wanted)
        if chosen.start is not None:
            query = query.where(AuditEventRow.time >= chosen.start)
        if chosen.end is not None:
            query = query.where(AuditEventRow.time < chosen.end)
        rows = await self._session.scalars(apply_window(query, AuditEventRow.id, window))
        return [read_row(AuditEvent, row) for row in rows]


async def record_call(tx: CrossProjectTransaction, target: str) -> None:
    """Append the running call, which changes the object `target`, to the audit log."""
    event = AuditEvent.of(current_admin_call(), target, await tx.now())
    await AuditQueries(tx).add(event)


_EVENT: Final = MessageMapper(AuditEvent, pb.AuditEvent)
_FILTER: Final = MessageMapper(
    AuditFilter,
    pb.ListAuditEventsRequest,
    renamed={"start": "start_time", "end": "end_time"},
    only_message=["page_size", "page_token"],
)


@dataclass(frozen=True)
class AuditLog(OperatorMethods[AuditEvent]):
    service = pb.DESCRIPTOR.services_by_name["AuditService"]
    message, noun, plural = _EVENT, "an event", "events"

    async def ReportAuditEvents(self, request: pb.ReportAuditEventsRequest) -> None:
        """Append the events that another service reports; those that are there are ignored."""
        events = [
            _EVENT.from_message(event, f"events[{number}]")
            for number, event in enumerate(request.events)
        ]
        reported = [event.reported() for event in events]

        async def store(tx: CrossProjectTransaction) -> None:
            for event in reported:
                await AuditQueries(tx).add_if_missing(event)

        await self.transactions.write(store)

    async def record_refusal(self, call: AdminCall) -> None:
        """Append the running call if it was refused; operations record those that succeed."""

        async def store(tx: CrossProjectTransaction) -> None:
            await AuditQueries(tx).add(AuditEvent.of(call, "", await tx.now()))

        if call.refusal:
            await self.transactions.write(store)

    @cross_project_read
    async def ListAuditEvents(
        self, tx: CrossProjectTransaction, request: pb.ListAuditEventsRequest
    ) -> Page[AuditEvent]:
        """List events, newest first. Raises InvalidField."""
        chosen = _FILTER.from_message(request)
        filters = map(str, asdict(chosen).values())
        window = self.window(request, "audit", *filters, newest_first=True)
        return window.page(await AuditQueries(tx).page(window, chosen))
