"""The audit log: who did what, when, and from where. Rows are added, never changed or deleted;
triggers of the database see to it.

Operations with the scope admin call `record_act` in their transaction, so that the log has exactly
the acts that were committed.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from google.protobuf.json_format import MessageToJson
from sqlalchemy import Index, Text, insert, select
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import AUDIT_EVENT, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens, Window, apply_window
from control_svc.db.tables import Instant, Key, Table, read_row
from control_svc.db.transaction import Queries, Transaction, Transactions, read_transaction
from svc_kit.auth.principal import current_principal, peer_host
from svc_kit.logs import current_request_id
from svc_kit.rpc.admin_call import current_admin_call

MAX_PAGE: Final = 1000
MAX_REQUEST_CHARACTERS: Final = 16_384
"""Length of a stored request; a longer one is cut."""


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """One act of an operator."""

    id: str
    time: datetime
    actor: str
    project: str
    method: str
    target: str
    request: str
    address: str
    request_id: str


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which events to list; empty texts and None select all."""

    actor: str = ""
    target: str = ""
    start: datetime | None = None
    end: datetime | None = None


class AuditEventRow(Table):
    """An act of an operator."""

    __tablename__ = "audit_events"
    __table_args__ = (Index(None, "actor", "id"), Index(None, "target", "id"))

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    time: Mapped[datetime] = mapped_column(Instant)
    actor: Mapped[str] = mapped_column(Text)
    project: Mapped[str] = mapped_column(Text)
    method: Mapped[str] = mapped_column(Text)
    target: Mapped[str] = mapped_column(Text)
    request: Mapped[str] = mapped_column(Text)
    address: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str] = mapped_column(Text)


class AuditQueries(Queries):
    """The audit log."""

    async def add(self, event: AuditEvent) -> None:
        """Append an event."""
        await self._session.execute(insert(AuditEventRow).values(**asdict(event)))

    async def page(self, window: Window, chosen: AuditFilter) -> list[AuditEvent]:
        """List the events of a window, newest first."""
        query = select(AuditEventRow)
        for column, text in (
            (AuditEventRow.actor, chosen.actor),
            (AuditEventRow.target, chosen.target),
        ):
            if text:
                query = query.where(column == text)
        if chosen.start is not None:
            query = query.where(AuditEventRow.time >= chosen.start)
        if chosen.end is not None:
            query = query.where(AuditEventRow.time < chosen.end)
        rows = await self._session.scalars(apply_window(query, AuditEventRow.id, window))
        return [read_row(AuditEvent, row) for row in rows]


async def record_act(tx: Transaction, target: str) -> None:
    """Append the running call, which changes the object `target`, to the audit log."""
    call, principal, now = current_admin_call(), current_principal(), await tx.now()
    request = MessageToJson(call.request, indent=None, ensure_ascii=False)
    await AuditQueries(tx).add(
        AuditEvent(
            id=IdSource(lambda: now).new(AUDIT_EVENT),
            time=now,
            actor=principal.key_id,
            project=principal.project,
            method=call.method.rpartition(".")[2],
            target=target,
            request=request.replace("\\u0000", "")[:MAX_REQUEST_CHARACTERS],
            address=peer_host(call.peer) or "",
            request_id=current_request_id(),
        )
    )


@dataclass(frozen=True)
class AuditLog:
    """Operations on the audit log."""

    transactions: Transactions
    tokens: PageTokens

    @read_transaction
    async def page(
        self, tx: Transaction, page_request: PageRequest, chosen: AuditFilter
    ) -> Page[AuditEvent]:
        """List events, newest first. Raises OutOfRange or InvalidField."""
        binding = ("audit", *map(str, asdict(chosen).values()))
        window = self.tokens.window(page_request, binding, MAX_PAGE)
        return window.page(await AuditQueries(tx).page(window, chosen))
