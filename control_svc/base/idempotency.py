"""Idempotency: a request with a request id is executed once.

The table stores the fingerprint of each request and the id of the resource that it created, for a
day.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Self, SupportsBytes

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.cleanup import Deleted, delete_some
from control_svc.db.tables import Instant, Key, OwnedRow, read_row
from control_svc.db.transaction import CrossProjectTransaction, Queries, Transaction
from svc_kit.errors import RequestIdReused

RETENTION: Final = timedelta(days=1)
STORED_AS: Final = "STORED_AS"
_VERSION: Final = "2:"


@dataclass(frozen=True, kw_only=True)
class IdempotencyRecord:
    """An executed request."""

    method: str
    request_id: str
    fingerprint: str
    """Fingerprint of the contents of the request."""
    resource_id: str
    """Id of the resource that it created."""
    created_at: datetime

    @classmethod
    def of(
        cls, method: str, request_id: str, resource_id: str, created_at: datetime, *facts: object
    ) -> Self:
        """The record of a request with contents `facts` that creates `resource_id`.

        Without a request id nothing is stored or compared, and no fingerprint is computed.
        """
        return cls(
            method=method,
            request_id=request_id,
            fingerprint=fingerprint_of(*facts) if request_id else "",
            resource_id=resource_id,
            created_at=created_at,
        )

    def check_same(self, fingerprint: str) -> None:
        """Raise RequestIdReused if the fingerprint differs.

        Fingerprints of release 0.1 have no version and are not compared.
        """
        if self.fingerprint.startswith(_VERSION) and self.fingerprint != fingerprint:
            raise RequestIdReused(field="request_id", request_id=self.request_id)


def fingerprint_of(*facts: object) -> str:
    """Return the fingerprint of a request, at most 64 characters.

    It depends on stored names: those of classes and fields, or `STORED_AS` of a renamed class or in
    the metadata of a renamed field. Fields with their default value are left out, so a later
    release can add optional fields. Enums are represented by their values. Raises TypeError for a
    value without a stable form.
    """
    text = json.dumps([_stable_form(fact) for fact in facts], separators=(",", ":"))
    return _VERSION + hashlib.sha256(text.encode()).hexdigest()[: 64 - len(_VERSION)]


def _stable_form(value: Any) -> Any:
    """Convert a value to JSON types."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case SupportsBytes():
            return {"bytes": bytes(value).hex()}
        case datetime():
            return {"time": value.isoformat()}
        case timedelta():
            return {"seconds": value.total_seconds()}
        case Mapping():
            return {str(key): _stable_form(value[key]) for key in sorted(value)}
        case _ if is_dataclass(value) or hasattr(value, "_field_defaults"):
            name = getattr(value, STORED_AS, type(value).__name__)
            return [name, _stable_form(_changed_fields(value))]
        case tuple() | list():
            return [_stable_form(each) for each in value]
        case _:
            raise TypeError(f"{type(value).__name__} has no stable form")


def _changed_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple that differ from their defaults, by stored name."""
    if is_dataclass(value):
        return {
            field.metadata.get(STORED_AS, field.name): getattr(value, field.name)
            for field in fields(value)
            if getattr(value, field.name) != _default_of(field)
        }
    return {
        name: part
        for name, part in value._asdict().items()
        if name not in value._field_defaults or part != value._field_defaults[name]
    }


def _default_of(field: Field[Any]) -> object:
    """The default value of a field; MISSING, which equals no value, if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


class RequestRow(OwnedRow):
    """An executed request with a request id."""

    __tablename__ = "requests"

    method: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    request_id: Mapped[str] = mapped_column(sa.Text, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(sa.String(64))
    resource_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant, index=True)


class IdempotencyQueries(Queries):
    """Executed requests with a request id."""

    async def find(self, method: str, request_id: str, since: datetime) -> IdempotencyRecord | None:
        """Return the request with this id if it was executed after `since`; delete an older one."""
        await self._session.execute(
            self._delete(
                RequestRow,
                RequestRow.method == method,
                RequestRow.request_id == request_id,
                RequestRow.created_at <= since,
            )
        )
        row = await self._session.get(RequestRow, (self._project, method, request_id))
        if row is None:
            return None
        return read_row(IdempotencyRecord, row)

    async def add(self, request: IdempotencyRecord) -> None:
        await self._insert(RequestRow, asdict(request))


async def record_request(tx: Transaction, request: IdempotencyRecord) -> str:
    """Record a request, and return the id of the resource that the first request with its id
    created: `request.resource_id` if this is the first. Raises RequestIdReused.
    """
    first = await find_or_record(tx, request)
    return (first or request).resource_id


async def find_or_record(tx: Transaction, request: IdempotencyRecord) -> IdempotencyRecord | None:
    """Return an earlier request with the same id; None if this is the first, which is stored.

    Of two concurrent requests one violates the primary key; its transaction is retried and finds
    the other. A request without an id is always the first. Raises RequestIdReused.
    """
    if not request.request_id:
        return None
    since = request.created_at - RETENTION
    first = await IdempotencyQueries(tx).find(request.method, request.request_id, since)
    if first is None:
        await IdempotencyQueries(tx).add(request)
        return None
    first.check_same(request.fingerprint)
    return first


async def delete_old_requests(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Delete requests older than `RETENTION`. A step of the sweeper."""
    deleted = await delete_some(tx, RequestRow, RequestRow.created_at < now - RETENTION)
    return Deleted(len(deleted))
