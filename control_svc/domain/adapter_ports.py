"""What the use cases of adapters need from the database."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from control_svc.domain.adapters import Adapter, AdapterReport, DesiredState
from control_svc.domain.listing import Window

ADAPTERS_TOPIC: Final = "adapters"
"""What is announced when the registry of adapters changes, or a frontend reports."""


class AdapterRepository(Protocol):
    """The rows of adapters. An adapter is named by its id or by its name."""

    async def add(self, project: str, adapter: Adapter) -> None:
        """Keep a new adapter."""

    async def get(self, project: str, adapter: str) -> Adapter:
        """Raises AdapterNotFound."""

    async def lock(self, project: str, adapter: str) -> Adapter:
        """As `get`; until the end of the transaction nobody else changes it."""

    async def find(self, project: str, name: str) -> Adapter | None:
        """The one of this name, locked."""

    async def count(self, project: str) -> int:
        """How many there are."""

    async def page(self, project: str, window: Window) -> list[Adapter]:
        """The adapters of a window."""

    async def update(self, project: str, adapter: Adapter) -> None:
        """Keep what has changed of a locked adapter."""

    async def delete(self, project: str, adapter_id: str) -> None:
        """Forget an adapter; its bytes are the caller's to delete."""

    async def reports(self, project: str, adapter_id: str, since: datetime) -> list[AdapterReport]:
        """What frontends have said of it since a time."""


class DesiredRepository(Protocol):
    """What every frontend should have, over all projects: for our own services alone."""

    async def next_revision(self) -> int:
        """A number above all before. Whoever changes the registry takes one first: then changes
        are committed in the order of their numbers."""

    async def revision(self) -> int:
        """The newest number."""

    async def state(self) -> DesiredState:
        """Everything."""

    async def blob_of(self, sha256: str) -> tuple[str, int] | None:
        """The key and size of the bytes of a registered digest."""

    async def replace_reports(self, frontend: str, reports: Sequence[AdapterReport]) -> None:
        """Keep what a frontend says, in place of what it said."""
