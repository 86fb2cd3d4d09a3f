"""Queries about API keys."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy import insert, select, update

from control_svc.domain.ids import KEY, is_id
from control_svc.domain.keys import ApiKey, PresentedKey
from control_svc.domain.listing import Window
from control_svc.storage.models import ApiKeyRow, ProjectRow
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import ApiKeyNotFound
from svc_kit.principal import Priority


class SqlKeys:
    """API keys in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""
        scopes, priority = ",".join(sorted(key.scopes)), key.priority.name
        values = {**asdict(key), "scopes": scopes, "priority": priority}
        await self._session.execute(insert(ApiKeyRow).values(**values))

    async def get(self, key_id: str) -> ApiKey:
        """Raises ApiKeyNotFound."""
        # What is no id is not asked for: a database may refuse its characters.
        row = await self._session.get(ApiKeyRow, key_id) if is_id(key_id, KEY) else None
        if row is None:
            raise ApiKeyNotFound(key=key_id)
        return _key(row)

    async def find(self, sha256: str) -> PresentedKey | None:
        """The key with this hash."""
        found = await self._session.execute(
            select(ApiKeyRow, ProjectRow.archived_at)
            .join(ProjectRow, ProjectRow.id == ApiKeyRow.project)
            .where(ApiKeyRow.sha256 == sha256)
        )
        both = found.one_or_none()
        return None if both is None else PresentedKey(_key(both[0]), both[1] is not None)

    async def page(self, window: Window, project: str, *, with_revoked: bool) -> list[ApiKey]:
        """The keys of a window, which goes by id downwards; `project` empty: of all."""
        query = select(ApiKeyRow).order_by(ApiKeyRow.id.desc())
        if window.after:
            query = query.where(ApiKeyRow.id < window.after)
        if project:
            query = query.where(ApiKeyRow.project == project)
        if not with_revoked:
            query = query.where(ApiKeyRow.revoked_at.is_(None))
        return [_key(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def revoke(self, key_id: str, now: datetime) -> ApiKey:
        """End a key; one that was revoked stays as it was. Raises ApiKeyNotFound."""
        key = await self.get(key_id)
        await self._session.execute(
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        return key.revoke(now)

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Remember when a key was last asked for."""
        await self._session.execute(
            update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=now)
        )


def _key(row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        id=row.id,
        project=row.project,
        name=row.name,
        prefix=row.prefix,
        sha256=row.sha256,
        scopes=frozenset(row.scopes.split(",")),
        priority=Priority[row.priority],
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
