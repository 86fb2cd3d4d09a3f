"""Queries about remembered requests."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy import delete, insert

from control_svc.domain.requests import RememberedRequest
from control_svc.storage.models import RequestRow
from control_svc.storage.unit_of_work import Transaction


class SqlRequests:
    """Remembered requests in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def recall(
        self, project: str, method: str, request_id: str, since: datetime
    ) -> RememberedRequest | None:
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
        return RememberedRequest(
            method=row.method,
            request_id=row.request_id,
            fingerprint=row.fingerprint,
            resource_id=row.resource_id,
            created_at=row.created_at,
        )

    async def add(self, project: str, request: RememberedRequest) -> None:
        """Remember a request."""
        await self._session.execute(insert(RequestRow).values(project=project, **asdict(request)))
