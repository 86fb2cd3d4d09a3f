"""API keys: scopes, expiry, verification. Only their hashes are stored."""

import logging
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import ForeignKeyConstraint, Index, String, Text, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import KEY, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens, Window
from control_svc.base.validation import (
    SHA256_DIGITS,
    check_digest,
    check_project_id,
    check_request_id,
    check_text,
)
from control_svc.db.tables import Instant, Key, Table
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.projects.projects import ProjectQueries, ProjectRow
from svc_kit.auth.keys import create_key, has_key_form, hash_key
from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyNotFound,
    ApiKeyRevoked,
    DomainError,
    InvalidField,
    MissingField,
    ProjectArchived,
)

PREFIX_CHARACTERS: Final = 14
"""Stored characters of a key: the common prefix and four more."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """What is kept of a key."""

    id: str
    project: str
    name: str
    prefix: str
    sha256: str
    scopes: frozenset[str]
    priority: Priority
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def revoke(self, now: datetime) -> "ApiKey":
        """The key ended; a second time changes nothing."""
        return self if self.revoked_at is not None else replace(self, revoked_at=now)

    @property
    def principal(self) -> Principal:
        """On whose behalf its callers call."""
        return Principal(
            project=self.project, scopes=self.scopes, priority=self.priority, key_id=self.id
        )


@dataclass(frozen=True)
class PresentedKey:
    """A known key, and whether its project is archived."""

    key: ApiKey
    project_is_archived: bool

    def refusal(self, now: datetime) -> DomainError | None:
        """Why it may not be used now; None: it may."""
        key = self.key
        if key.revoked_at is not None:
            return ApiKeyRevoked()
        if key.expires_at is not None and key.expires_at <= now:
            return ApiKeyExpired()
        if self.project_is_archived:
            return ProjectArchived(project=key.project)
        return None


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """The request to create a key."""

    project: str
    name: str
    scopes: frozenset[str]
    priority: Priority
    expires_at: datetime | None = None
    request_id: str = ""

    def check(self, now: datetime) -> None:
        """Raises MissingField, TooLong or InvalidField."""
        check_text("name", self.name)
        if self.expires_at is not None and self.expires_at <= now:
            raise InvalidField(field="expire_time", problem="it has passed")
        check_request_id(self.request_id)


class ApiKeyRow(Table):
    """An API key. Operators list all keys, so the project does not lead the primary key."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["project"], ["projects.id"]),
        Index(None, "project", "id"),
    )

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    project: Mapped[str] = mapped_column(Key)
    # what an operator says
    name: Mapped[str] = mapped_column(Text)
    scopes: Mapped[str] = mapped_column(Text)
    priority: Mapped[str] = mapped_column(String(16))
    # the key
    prefix: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)


class KeyQueries:
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


_log = logging.getLogger(__name__)
MAX_PAGE = 1000
CREATE = "CreateKey"
_USE_NOTED_EVERY: Final = timedelta(minutes=1)
"""A row is not written for every question."""


class CreatedKey(NamedTuple):
    """A new key, and the key itself; empty where the request had made it before."""

    key: ApiKey
    secret: str


class KeyVerification(NamedTuple):
    """Why a key may not be used; None if it may."""

    key: ApiKey | None
    refusal: DomainError | None


class Keys:
    """What operators do with keys, and what services ask of them."""

    def __init__(
        self, transactions: Transactions, ids: IdSource, tokens: PageTokens, clock: Clock
    ) -> None:
        self._transactions = transactions
        self._ids = ids
        self._tokens = tokens
        self._clock = clock

    async def create(self, described: NewKey) -> CreatedKey:
        """Make a key.

        Raises MissingField, TooLong, InvalidField, ProjectNotFound, ProjectArchived or
        RequestIdReused.
        """
        check_project_id(described.project)
        described.check(self._clock())
        secret = create_key()
        key = self._new(described, secret)
        request = IdempotencyRecord.of(
            CREATE, described.request_id, key.id, key.created_at, *_facts(described)
        )

        async def add(tx: Transaction) -> CreatedKey:
            # Locked: a project that is being archived gets no key meanwhile.
            project = await ProjectQueries(tx).get(described.project, locked=True)
            created = await record_request(tx, described.project, request)
            if created != key.id:
                return CreatedKey(await KeyQueries(tx).get(created), "")
            project.check_active()
            await KeyQueries(tx).add(key)
            return CreatedKey(key, secret)

        return await self._transactions.write(add)

    async def get(self, key_id: str) -> ApiKey:
        """Raises ApiKeyNotFound."""
        return await self._transactions.read(lambda tx: KeyQueries(tx).get(key_id))

    async def page(
        self, page_request: PageRequest, project: str, *, with_revoked: bool
    ) -> Page[ApiKey]:
        """A page of keys; `project` empty: of all. Raises ProjectNotFound, OutOfRange or
        InvalidField."""
        if project:
            check_project_id(project)
        binding = ("keys", project, str(with_revoked))
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: KeyQueries(tx).page(window, project, with_revoked=with_revoked)
        )
        return self._tokens.page(found, window, page_request, binding)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key. Raises ApiKeyNotFound."""
        now = self._clock()
        return await self._transactions.write(lambda tx: KeyQueries(tx).revoke(key_id, now))

    async def look_up(self, sha256: str) -> KeyVerification:
        """What is known of a key by its hash. Raises MissingField or InvalidField."""
        if not sha256:
            raise MissingField(field="sha256")
        digest = check_digest("sha256", sha256, SHA256_DIGITS)
        now = self._clock()
        found = await self._transactions.read(lambda tx: KeyQueries(tx).find(digest))
        if found is None:
            return KeyVerification(None, ApiKeyInvalid())
        refusal = found.refusal(now)
        if refusal is None:
            await self._note_use(found)
        return KeyVerification(found.key, refusal)

    async def verify(self, key: str) -> Principal:
        """As a KeyVerifier: this service resolves keys in its own database.

        Raises ApiKeyInvalid, ApiKeyExpired, ApiKeyRevoked or ProjectArchived.
        """
        if not has_key_form(key):
            raise ApiKeyInvalid()
        found = await self.look_up(hash_key(key))
        if found.key is None or found.refusal is not None:
            raise found.refusal or ApiKeyInvalid()
        return found.key.principal

    async def _note_use(self, found: PresentedKey) -> None:
        now, last = self._clock(), found.key.last_used_at
        if last is not None and now - last < _USE_NOTED_EVERY:
            return
        try:
            await self._transactions.write(lambda tx: KeyQueries(tx).note_use(found.key.id, now))
        except DomainError as error:
            # A disk that is full is no reason to refuse the key.
            _log.warning("the last use of %s is not recorded: %s", found.key.id, error)

    def _new(self, described: NewKey, secret: str) -> ApiKey:
        return ApiKey(
            id=self._ids.new(KEY),
            project=described.project,
            name=described.name,
            prefix=secret[:PREFIX_CHARACTERS],
            sha256=hash_key(secret),
            scopes=described.scopes,
            priority=described.priority,
            created_at=self._clock(),
            expires_at=described.expires_at,
        )


def _facts(described: NewKey) -> tuple[object, ...]:
    """The contents of a request, with sets in order."""
    return (
        described.name,
        sorted(described.scopes),
        described.priority,
        described.expires_at,
    )
