"""Revisions of settings, etags, and conditional updates."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, Self, TypeVar

from svc_kit.errors import StaleGeneration

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, kw_only=True)
class Versioned(Generic[SettingsT]):
    """An object with editable settings."""

    id: str
    settings: SettingsT
    created_at: datetime
    revision: int = 0
    """Number of changes of the settings."""

    @property
    def etag(self) -> str:
        """The etag, which changes with the settings."""
        return etag_of(self.id, self.revision)

    def check_etag(self, etag: str) -> None:
        """Raise StaleGeneration if the caller's etag is not current."""
        check_etag(etag, self.etag, self.id)

    def with_settings(self, settings: SettingsT) -> Self:
        """Replace the settings, which must be valid."""
        return replace(self, settings=settings, revision=self.revision + 1)


def etag_of(object_id: str, revision: int) -> str:
    """The etag of a revision. A hash, so that it does not reveal the revision."""
    return hashlib.sha256(f"{object_id} {revision}".encode()).hexdigest()[:32]


def check_etag(etag: str, current: str, resource: str) -> None:
    """Raise StaleGeneration if the caller's etag is neither empty nor current."""
    if etag not in ("", current):
        raise StaleGeneration(resource=resource)
