"""API keys: validity, rotation, and the requests of operators."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from svc_kit.auth.keys import hash_key
from svc_kit.auth.principal import Principal, Priority, Restrictions, parse_network
from svc_kit.auth.scopes import Scope
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyRevoked,
    DomainError,
    InvalidField,
    ProjectArchived,
)

PREFIX_CHARACTERS: Final = 14
"""Length of the stored part of a key: the common prefix and four more characters."""
DEFAULT_OVERLAP: Final = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A stored API key, without the secret."""

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
    models: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    rotated_at: datetime | None = None
    old_sha256: str | None = None
    """The hash of the secret before the last rotation."""
    old_expires_at: datetime | None = None
    """When that secret ends."""

    def with_old_secret(self) -> "ApiKey":
        """The key as it is for callers with the secret before the last rotation."""
        return replace(self, expires_at=self.old_expires_at)

    def rotate(self, secret: str, now: datetime, rotation: "Rotation") -> "ApiKey":
        """Replace the secret. Raises InvalidField if the key may not be used any more."""
        if self.revoked_at is not None:
            raise InvalidField(field="key_id", problem="the key is revoked")
        if self.expires_at is not None and self.expires_at <= now:
            raise InvalidField(field="key_id", problem="the key has expired")
        overlap = DEFAULT_OVERLAP if rotation.overlap is None else rotation.overlap
        old_end = now + overlap
        return replace(
            self,
            prefix=secret[:PREFIX_CHARACTERS],
            sha256=hash_key(secret),
            expires_at=rotation.expires_at or self.expires_at,
            rotated_at=now,
            old_sha256=self.sha256,
            old_expires_at=min(old_end, self.expires_at or old_end),
        )

    def revoke(self, now: datetime) -> "ApiKey":
        """Revoke the key; revoking it again changes nothing."""
        return self if self.revoked_at is not None else replace(self, revoked_at=now)

    @property
    def principal(self) -> Principal:
        """The principal of callers with this key."""
        return Principal(
            project=self.project,
            scopes=self.scopes,
            priority=self.priority,
            key_id=self.id,
            restrictions=Restrictions.of(self.models, self.networks),
        )


@dataclass(frozen=True)
class KeyStatus:
    """A key, and whether its project is archived."""

    key: ApiKey
    project_is_archived: bool

    def refusal(self, now: datetime) -> DomainError | None:
        """The error with which the key is refused; None if it is valid."""
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
    project: str
    name: str
    scopes: frozenset[str]
    priority: Priority
    expires_at: datetime | None = None
    request_id: str = ""
    models: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """Its limits, serialized: a repetition must have the same."""

    def check(self, now: datetime) -> None:
        """Validate the request. Raises InvalidField."""
        _check_expiry(self.expires_at, now)
        for number, network in enumerate(self.networks):
            try:
                parse_network(network)
            except ValueError as error:
                raise InvalidField(field=f"networks[{number}]", problem=str(error)) from None
        if self.models and Scope.INFERENCE in self.scopes:
            problem = 'not with the scope "inference", whose stored objects use models later on'
            raise InvalidField(field="models", problem=problem)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The request to give a key a new secret."""

    key_id: str
    overlap: timedelta | None = None
    expires_at: datetime | None = None
    request_id: str = ""

    def check(self, now: datetime) -> None:
        """Validate the request. Raises InvalidField."""
        _check_expiry(self.expires_at, now)


def _check_expiry(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is not None and expires_at <= now:
        raise InvalidField(field="expire_time", problem="it is in the past")
