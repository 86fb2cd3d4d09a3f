"""Settings with a revision, their etags, and conditional updates."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, Self, TypeVar

from svc_kit.errors import StaleGeneration

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, kw_only=True)
class Versioned(Generic[SettingsT]):
    """An object whose settings its owner changes."""

    id: str
    settings: SettingsT
    created_at: datetime
    revision: int = 0
    """How often the settings have been changed."""

    @property
    def etag(self) -> str:
        """Another one after each change of the settings."""
        return etag_of(self.id, self.revision)

    def check_etag(self, etag: str) -> None:
        """Raises StaleGeneration."""
        check_etag(etag, self.etag, self.id)

    def with_settings(self, settings: SettingsT) -> Self:
        """The object with other settings, which have been checked."""
        return replace(self, settings=settings, revision=self.revision + 1)


def etag_of(object_id: str, revision: int) -> str:
    """The etag of a revision, which does not reveal the number of revisions."""
    return hashlib.sha256(f"{object_id} {revision}".encode()).hexdigest()[:32]


def check_etag(seen: str, current: str, resource: str) -> None:
    """That the caller has seen the current state; empty is not checked. Raises StaleGeneration."""
    if seen not in ("", current):
        raise StaleGeneration(resource=resource)
