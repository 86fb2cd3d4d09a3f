"""API keys as the database keeps them: what they may do and for how long, never the keys."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.domain.checks import check_request_id, check_text
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyRevoked,
    DomainError,
    InvalidField,
    ProjectArchived,
)
from svc_kit.principal import Principal, Priority

PREFIX_CHARACTERS: Final = 14
"""How much of a key is kept readable: the common prefix, and four characters to tell it by."""


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
    """A known key that somebody shows, and whether its project is archived."""

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
    """What an operator says of a key."""

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
