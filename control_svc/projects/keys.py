"""API keys: their tables and queries, operations, and verification. Only hashes are stored."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.audit.log import record_call
from control_svc.base.idempotency import (
    RETENTION,
    IdempotencyQueries,
    IdempotencyRecord,
    find_or_record,
    record_request,
)
from control_svc.base.ids import KEY, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens, Window, apply_window
from control_svc.base.validation import (
    SHA256_DIGITS,
    check_digest,
    check_project_id,
)
from control_svc.db.tables import Instant, Key, Table, read_row
from control_svc.db.transaction import (
    Clock,
    CrossProjectQueries,
    CrossProjectTransaction,
    CrossProjectTransactions,
    cross_project_read,
    cross_project_write,
)
from control_svc.projects.key_model import PREFIX_CHARACTERS, ApiKey, KeyStatus, NewKey, Rotation
from control_svc.projects.projects import ProjectQueries, ProjectRow
from svc_kit.auth.keys import create_key, has_key_form, hash_key
from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import (
    ApiKeyInvalid,
    ApiKeyNotFound,
    DomainError,
    MissingField,
)


class ApiKeyRow(Table):
    """An API key. Operators list all keys, so the project does not lead the primary key."""

    __tablename__ = "api_keys"
    __table_args__ = (
        sa.ForeignKeyConstraint(["project"], ["projects.id"]),
        sa.Index(None, "project", "id"),
        sa.Index(None, "old_sha256", unique=True),
    )

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    project: Mapped[str] = mapped_column(Key)
    name: Mapped[str] = mapped_column(sa.Text)
    scopes: Mapped[str] = mapped_column(sa.Text)
    priority: Mapped[str] = mapped_column(sa.String(16))
    prefix: Mapped[str] = mapped_column(sa.String(16))
    sha256: Mapped[str] = mapped_column(sa.String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)
    models: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("''"))
    """One name a line."""
    networks: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("''"))
    """One network a line."""
    rotated_at: Mapped[datetime | None] = mapped_column(Instant)
    old_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    old_expires_at: Mapped[datetime | None] = mapped_column(Instant)


class KeyQueries(CrossProjectQueries):
    async def add(self, key: ApiKey) -> None:
        values = asdict(key) | {
            "scopes": ",".join(sorted(key.scopes)),
            "priority": key.priority.name,
            "models": "\n".join(key.models),
            "networks": "\n".join(key.networks),
        }
        await self._session.execute(sa.insert(ApiKeyRow).values(**values))

    async def save_rotation(self, key: ApiKey) -> None:
        """Store the secrets and times of a rotated key."""
        names = ("prefix", "sha256", "expires_at", "rotated_at", "old_sha256", "old_expires_at")
        values = {name: getattr(key, name) for name in names}
        await self._session.execute(
            sa.update(ApiKeyRow).where(ApiKeyRow.id == key.id).values(**values)
        )

    async def get(self, key_id: str, *, locked: bool = False) -> ApiKey:
        """Return a key, locked until the transaction ends if asked for. Raises ApiKeyNotFound."""
        # Do not query for malformed ids: PostgreSQL refuses some characters.
        row = None
        if is_id(key_id, KEY):
            row = await self._session.get(ApiKeyRow, key_id, with_for_update=locked or None)
        if row is None:
            raise ApiKeyNotFound(key=key_id)
        return _key(row)

    async def find(self, sha256: str) -> KeyStatus | None:
        """Return the key with this hash, before or after a rotation; None if there is none."""
        result = await self._session.execute(
            sa.select(ApiKeyRow, ProjectRow.archived_at)
            .join(ProjectRow, ProjectRow.id == ApiKeyRow.project)
            .where(sa.or_(ApiKeyRow.sha256 == sha256, ApiKeyRow.old_sha256 == sha256))
        )
        row = result.one_or_none()
        if row is None:
            return None
        key = _key(row[0])
        return KeyStatus(key if key.sha256 == sha256 else key.with_old_secret(), row[1] is not None)

    async def page(self, window: Window, project: str, *, with_revoked: bool) -> list[ApiKey]:
        """List the keys of a window, newest first; of all projects if `project` is empty."""
        query = sa.select(ApiKeyRow)
        if project:
            query = query.where(ApiKeyRow.project == project)
        if not with_revoked:
            query = query.where(ApiKeyRow.revoked_at.is_(None))
        rows = await self._session.scalars(apply_window(query, ApiKeyRow.id, window))
        return [_key(row) for row in rows]

    async def revoke(self, key_id: str, now: datetime) -> ApiKey:
        """Revoke a key; a revoked one is unchanged. Raises ApiKeyNotFound."""
        key = await self.get(key_id)
        await self._session.execute(
            sa.update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        return key.revoke(now)

    async def set_last_used(self, key_id: str, now: datetime) -> None:
        """Store when a key was last used."""
        await self._session.execute(
            sa.update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=now)
        )


def _key(row: ApiKeyRow) -> ApiKey:
    return read_row(
        ApiKey,
        row,
        scopes=frozenset(row.scopes.split(",")),
        priority=Priority[row.priority],
        models=tuple(row.models.split("\n") if row.models else ()),
        networks=tuple(row.networks.split("\n") if row.networks else ()),
    )


_log = logging.getLogger(__name__)
MAX_PAGE = 1000
CREATE = "CreateKey"
ROTATE = "RotateKey"
_LAST_USED_RESOLUTION: Final = timedelta(minutes=1)
"""`last_used_at` is not written more often."""
_USE_PATIENCE_S: Final = 2.0
"""How long a verification waits until the use is written; if others write for longer, that happens
later. Less than the 5 seconds after which services that ask for it give up."""


AddLimits = Callable[[CrossProjectTransaction, str], Awaitable[None]]
"""Creates the limits of the key with this id."""


class CreatedKey(NamedTuple):
    """A new or rotated key and its secret, which is empty if the request is a repetition."""

    key: ApiKey
    secret: str


class KeyVerification(NamedTuple):
    key: ApiKey | None
    """None if the key is unknown."""
    refusal: DomainError | None
    """Why the key is refused; None if it is valid."""


@dataclass(frozen=True)
class Keys:
    """Operations on keys, and their verification."""

    transactions: CrossProjectTransactions
    ids: IdSource
    tokens: PageTokens
    clock: Clock

    async def create(
        self, new: NewKey, add_limits: AddLimits, check_models: Callable[[], Awaitable[None]]
    ) -> CreatedKey:
        """Create a key, and its limits with `add_limits`, unless `check_models` raises.

        Raises MissingField, TooLong, InvalidField, ProjectNotFound, ProjectArchived or
        RequestIdReused, and what `add_limits` raises.
        """
        check_project_id(new.project)
        new.check(self.clock())
        # Outside the transaction, since it asks another service. A repetition does not need it.
        if not (new.request_id and await self._is_repeated(new)):
            await check_models()
        return await self._create(new, add_limits)

    @cross_project_write
    async def _is_repeated(self, tx: CrossProjectTransaction, new: NewKey) -> bool:
        since = self.clock() - RETENTION
        queries = IdempotencyQueries(tx.of(new.project))
        return await queries.find(CREATE, new.request_id, since) is not None

    @cross_project_write
    async def _create(
        self, tx: CrossProjectTransaction, new: NewKey, add_limits: AddLimits
    ) -> CreatedKey:
        secret = create_key()
        key = self._new(new, secret)
        request = IdempotencyRecord.of(CREATE, new.request_id, key.id, key.created_at, *_facts(new))
        # Locked, so that the project is not archived at the same time.
        project = await ProjectQueries(tx).get(new.project, locked=True)
        created = await record_request(tx.of(new.project), request)
        if created != key.id:
            return CreatedKey(await KeyQueries(tx).get(created), "")
        project.check_active()
        await KeyQueries(tx).add(key)
        await add_limits(tx, key.id)
        await record_call(tx, key.id)
        return CreatedKey(key, secret)

    @cross_project_read
    async def get(self, tx: CrossProjectTransaction, key_id: str) -> ApiKey:
        """Return a key. Raises ApiKeyNotFound."""
        return await KeyQueries(tx).get(key_id)

    @cross_project_read
    async def page(
        self,
        tx: CrossProjectTransaction,
        page_request: PageRequest,
        project: str,
        *,
        with_revoked: bool,
    ) -> Page[ApiKey]:
        """List keys, of all projects if `project` is empty.

        Raises ProjectNotFound, OutOfRange or InvalidField.
        """
        if project:
            check_project_id(project)
        window = self.tokens.window(page_request, ("keys", project, str(with_revoked)), MAX_PAGE)
        return window.page(await KeyQueries(tx).page(window, project, with_revoked=with_revoked))

    @cross_project_write
    async def revoke(self, tx: CrossProjectTransaction, key_id: str) -> ApiKey:
        """Revoke a key. Raises ApiKeyNotFound."""
        key = await KeyQueries(tx).revoke(key_id, self.clock())
        await record_call(tx, key_id)
        return key

    @cross_project_write
    async def rotate(self, tx: CrossProjectTransaction, rotation: Rotation) -> CreatedKey:
        """Give a key a new secret.

        Raises ApiKeyNotFound, TooLong, OutOfRange, InvalidField or RequestIdReused.
        """
        now, secret = self.clock(), create_key()
        rotation.check(now)
        key = await KeyQueries(tx).get(rotation.key_id, locked=True)
        facts = (rotation.key_id, rotation.overlap, rotation.expires_at)
        request = IdempotencyRecord.of(ROTATE, rotation.request_id, key.id, now, *facts)
        if await find_or_record(tx.of(key.project), request) is not None:
            return CreatedKey(key, "")
        rotated = key.rotate(secret, now, rotation)
        await KeyQueries(tx).save_rotation(rotated)
        await record_call(tx, key.id)
        return CreatedKey(rotated, secret)

    async def look_up(self, sha256: str) -> KeyVerification:
        """Verify a key by its hash. Raises MissingField or InvalidField."""
        if not sha256:
            raise MissingField(field="sha256")
        digest = check_digest("sha256", sha256, SHA256_DIGITS)
        now = self.clock()
        status = await self.transactions.read(lambda tx: KeyQueries(tx).find(digest))
        if status is None:
            return KeyVerification(None, ApiKeyInvalid())
        refusal = status.refusal(now)
        if refusal is None:
            await self._record_use(status.key, now)
        return KeyVerification(status.key, refusal)

    async def verify(self, key: str) -> Principal:
        """Verify a key, as a KeyVerifier.

        Raises ApiKeyInvalid, ApiKeyExpired, ApiKeyRevoked or ProjectArchived.
        """
        if not has_key_form(key):
            raise ApiKeyInvalid()
        verification = await self.look_up(hash_key(key))
        if verification.key is None or verification.refusal is not None:
            raise verification.refusal or ApiKeyInvalid()
        return verification.key.principal

    async def check_project(self, project: str) -> None:
        """Raise ProjectArchived if a project is archived; one without a row is active."""
        status = await self.transactions.read(lambda tx: ProjectQueries(tx).find(project))
        if status is not None:
            status.check_active()

    async def _record_use(self, key: ApiKey, now: datetime) -> None:
        if key.last_used_at is not None and now - key.last_used_at < _LAST_USED_RESOLUTION:
            return
        try:
            async with asyncio.timeout(_USE_PATIENCE_S):
                await self.transactions.write(lambda tx: KeyQueries(tx).set_last_used(key.id, now))
        except TimeoutError:
            _log.warning("the last use of %s is recorded late: others are writing", key.id)
        except DomainError as error:
            # The key is valid even if the disk is full.
            _log.warning("the last use of %s is not recorded: %s", key.id, error)

    def _new(self, new: NewKey, secret: str) -> ApiKey:
        return ApiKey(
            id=self.ids.new(KEY),
            project=new.project,
            name=new.name,
            prefix=secret[:PREFIX_CHARACTERS],
            sha256=hash_key(secret),
            scopes=new.scopes,
            priority=new.priority,
            created_at=self.clock(),
            expires_at=new.expires_at,
            models=new.models,
            networks=new.networks,
        )


def _facts(new: NewKey) -> tuple[object, ...]:
    """The contents of a request for its fingerprint; scopes are sorted."""
    facts: tuple[object, ...] = (new.name, sorted(new.scopes), new.priority, new.expires_at)
    if new.models or new.networks or new.limits:  # else as in release 0.1
        facts += (new.models, new.networks)
    return (*facts, new.limits) if new.limits else facts
