"""What the use cases of operators need from the database: projects, keys and usage."""

from datetime import datetime
from typing import Protocol

from control_svc.domain.keys import ApiKey, PresentedKey
from control_svc.domain.listing import Window
from control_svc.domain.projects import Project
from control_svc.domain.usage import UsageQuery, UsageReport, UsageSum


class ProjectRepository(Protocol):
    """The rows of projects."""

    async def add(self, project: Project) -> None:
        """Keep a new project. Raises ProjectExists."""

    async def get(self, project_id: str, *, locked: bool = False) -> Project:
        """Raises ProjectNotFound. Of a locked project nobody else changes the row until the end of
        the transaction."""

    async def page(self, window: Window, *, with_archived: bool) -> list[Project]:
        """The projects of a window."""

    async def update(self, project: Project) -> None:
        """Keep what has changed of a locked project: whether it is archived."""


class KeyRepository(Protocol):
    """The rows of API keys."""

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""

    async def get(self, key_id: str) -> ApiKey:
        """Raises ApiKeyNotFound."""

    async def find(self, sha256: str) -> PresentedKey | None:
        """The key with this hash."""

    async def page(self, window: Window, project: str, *, with_revoked: bool) -> list[ApiKey]:
        """The keys of a window; `project` empty: of all."""

    async def revoke(self, key_id: str, now: datetime) -> ApiKey:
        """End a key; one that was revoked stays as it was. Raises ApiKeyNotFound."""

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Remember when a key was last asked for."""


class UsageRepository(Protocol):
    """The rows of usage."""

    async def add(self, report: UsageReport, now: datetime) -> None:
        """Add a report to the sums, unless that was done before."""

    async def page(self, query: UsageQuery, after: str, limit: int) -> list[UsageSum]:
        """Sums by time, project and model, beyond the cursor `after`; empty: from the first."""
