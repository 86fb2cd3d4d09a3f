"""API keys: made, listed and revoked by operators, verified for whoever is shown one."""

import logging
from datetime import timedelta
from typing import Final, NamedTuple

from control_svc.domain.checks import check_digest
from control_svc.domain.files import SHA256_DIGITS
from control_svc.domain.ids import KEY, IdSource
from control_svc.domain.keys import PREFIX_CHARACTERS, ApiKey, NewKey, PresentedKey
from control_svc.domain.listing import Page, PageRequest, PageTokens
from control_svc.domain.ports import Clock
from control_svc.domain.projects import check_form
from control_svc.domain.requests import RememberedRequest, fingerprint_of
from control_svc.storage.repositories.keys import SqlKeys
from control_svc.storage.repositories.projects import SqlProjects
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.once import once
from svc_kit.errors import ApiKeyInvalid, DomainError, MissingField
from svc_kit.keys import create_key, has_key_form, hash_key
from svc_kit.principal import Principal

_log = logging.getLogger(__name__)

MAX_PAGE = 1000
CREATE = "CreateKey"
_USE_NOTED_EVERY: Final = timedelta(minutes=1)
"""A row is not written for every question."""


class CreatedKey(NamedTuple):
    """A new key, and the key itself; empty where the request had made it before."""

    key: ApiKey
    secret: str


class Verified(NamedTuple):
    """What is known of a key that somebody shows: why it may not be used; None: it may."""

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
        check_form(described.project)
        described.check(self._clock())
        secret = create_key()
        key = self._new(described, secret)
        request = RememberedRequest(
            method=CREATE,
            request_id=described.request_id,
            fingerprint=fingerprint_of(*_facts(described)),
            resource_id=key.id,
            created_at=key.created_at,
        )

        async def add(tx: Transaction) -> CreatedKey:
            # Locked: a project that is being archived gets no key meanwhile.
            project = await SqlProjects(tx).get(described.project, locked=True)
            made = await once(tx, described.project, request)
            if made != key.id:
                return CreatedKey(await SqlKeys(tx).get(made), "")
            project.check_active()
            await SqlKeys(tx).add(key)
            return CreatedKey(key, secret)

        return await self._transactions.write(add)

    async def get(self, key_id: str) -> ApiKey:
        """Raises ApiKeyNotFound."""
        return await self._transactions.read(lambda tx: SqlKeys(tx).get(key_id))

    async def page(self, asked: PageRequest, project: str, *, with_revoked: bool) -> Page[ApiKey]:
        """A page of keys; `project` empty: of all. Raises ProjectNotFound, OutOfRange or
        InvalidField."""
        if project:
            check_form(project)
        binding = ("keys", project, str(with_revoked))
        window = self._tokens.window(asked, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: SqlKeys(tx).page(window, project, with_revoked=with_revoked)
        )
        return self._tokens.page(found, window, asked, binding)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key. Raises ApiKeyNotFound."""
        now = self._clock()
        return await self._transactions.write(lambda tx: SqlKeys(tx).revoke(key_id, now))

    async def look_up(self, sha256: str) -> Verified:
        """What is known of a key by its hash. Raises MissingField or InvalidField."""
        if not sha256:
            raise MissingField(field="sha256")
        digest = check_digest("sha256", sha256, SHA256_DIGITS)
        now = self._clock()
        found = await self._transactions.read(lambda tx: SqlKeys(tx).find(digest))
        if found is None:
            return Verified(None, ApiKeyInvalid())
        refusal = found.refusal(now)
        if refusal is None:
            await self._note_use(found)
        return Verified(found.key, refusal)

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
            await self._transactions.write(lambda tx: SqlKeys(tx).note_use(found.key.id, now))
        except DomainError as error:
            # A disk that is full is no reason to refuse the key.
            _log.warning("the use of %s is not noted: %s", found.key.id, error)

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
    """What tells one request from another; a set has no order of its own."""
    return (
        described.name,
        sorted(described.scopes),
        described.priority,
        described.expires_at,
    )
