"""Changes of what owners say of their objects: what they may name, and from which state."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from control_svc.domain.revisions import Revised
from control_svc.domain.tools import ToolResources
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.tool_stores import check_stores


class _Settings(Protocol):
    @property
    def resources(self) -> ToolResources: ...

    def check(self) -> None: ...


SettingsT = TypeVar("SettingsT", bound=_Settings)


async def edited(
    tx: Transaction,
    project: str,
    found: Revised[SettingsT],
    edit: Callable[[SettingsT], SettingsT],
    etag: str,
) -> SettingsT:
    """The settings that `edit` makes of those of an object, which is locked.

    Raises StaleGeneration, VectorStoreNotFound, and what the settings' check does.
    """
    found.check_etag(etag)
    settings = edit(found.settings)
    settings.check()
    if settings.resources != found.settings.resources:
        await check_stores(tx, project, settings.resources)
    return settings
