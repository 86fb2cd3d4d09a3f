"""Requests that are told apart by an id of the caller's, so that one sent twice is done once."""

import hashlib
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import String, Text, delete, insert
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from svc_kit.errors import RequestIdReused

REMEMBERED_FOR: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class IdempotencyRecord:
    """A request that was carried out."""

    method: str
    request_id: str
    fingerprint: str
    """Of everything that the request said."""
    resource_id: str
    """What it made."""
    created_at: datetime

    def check_same(self, fingerprint: str) -> None:
        """Raises RequestIdReused for a request that says something else."""
        if self.fingerprint != fingerprint:
            raise RequestIdReused(field="request_id", request_id=self.request_id)


def fingerprint_of(*facts: object) -> str:
    """Tells one request from another."""
    text = "".join(f"{len(str(fact))}:{fact}" for fact in facts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class RequestRow(Table):
    """A request with an id of the caller's, remembered so that it is carried out once."""

    __tablename__ = "requests"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    method: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    resource_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant, index=True)


class IdempotencyQueries:
    """Remembered requests in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def recall(
        self, project: str, method: str, request_id: str, since: datetime
    ) -> IdempotencyRecord | None:
        """The request of this id that was carried out after `since`; an older one is forgotten."""
        await self._session.execute(
            delete(RequestRow).where(
                RequestRow.project == project,
                RequestRow.method == method,
                RequestRow.request_id == request_id,
                RequestRow.created_at <= since,
            )
        )
        row = await self._session.get(RequestRow, (project, method, request_id))
        if row is None:
            return None
        return IdempotencyRecord(
            method=row.method,
            request_id=row.request_id,
            fingerprint=row.fingerprint,
            resource_id=row.resource_id,
            created_at=row.created_at,
        )

    async def add(self, project: str, request: IdempotencyRecord) -> None:
        """Remember a request."""
        await self._session.execute(insert(RequestRow).values(project=project, **asdict(request)))


async def once(tx: Transaction, project: str, request: IdempotencyRecord) -> str:
    """The id of what the first such request made; `request.resource_id` where this is the first.

    Raises RequestIdReused.
    """
    first = await earlier(tx, project, request)
    return (first or request).resource_id


async def earlier(
    tx: Transaction, project: str, request: IdempotencyRecord
) -> IdempotencyRecord | None:
    """The same request, carried out before; None: this is the first, and is remembered.

    Two at the same moment meet in a unique key: one of the transactions is run again, and finds the
    other. A request without an id is always the first. Raises RequestIdReused.
    """
    if not request.request_id:
        return None
    since = request.created_at - REMEMBERED_FOR
    found = await IdempotencyQueries(tx).recall(project, request.method, request.request_id, since)
    if found is None:
        await IdempotencyQueries(tx).add(project, request)
        return None
    found.check_same(request.fingerprint)
    return found
