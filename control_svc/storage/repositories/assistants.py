"""Queries about assistants."""

from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import delete, insert, select, update

from control_svc.domain.assistants import Assistant, AssistantSettings
from control_svc.domain.ids import ASSISTANT, is_id
from control_svc.domain.listing import Window
from control_svc.storage.models import AssistantRow
from control_svc.storage.repositories.windows import in_order, windowed
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import AssistantNotFound

_SETTINGS: Final = TypeAdapter(AssistantSettings)


class SqlAssistants:
    """Assistants in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, assistant: Assistant) -> None:
        """Keep a new assistant."""
        row = insert(AssistantRow).values(
            project=project, id=assistant.id, created_at=assistant.created_at, **_values(assistant)
        )
        await self._session.execute(row)

    async def get(self, project: str, assistant_id: str) -> Assistant:
        """Raises AssistantNotFound."""
        return await self._get(project, assistant_id, locked=False)

    async def lock(self, project: str, assistant_id: str) -> Assistant:
        """As `get`; until the end of the transaction nobody else changes the assistant."""
        return await self._get(project, assistant_id, locked=True)

    async def page(self, project: str, window: Window) -> list[Assistant]:
        """The assistants of a window."""
        query = select(AssistantRow).where(AssistantRow.project == project)
        rows = await self._session.scalars(windowed(query, AssistantRow.id, window))
        return in_order([_assistant(row) for row in rows], window)

    async def update(self, project: str, assistant: Assistant) -> None:
        """Keep what has changed of a locked assistant."""
        await self._session.execute(
            update(AssistantRow)
            .where(AssistantRow.project == project, AssistantRow.id == assistant.id)
            .values(_values(assistant))
        )

    async def delete(self, project: str, assistant_id: str) -> None:
        """Forget an assistant. Raises AssistantNotFound."""
        await self.lock(project, assistant_id)
        await self._session.execute(
            delete(AssistantRow).where(
                AssistantRow.project == project, AssistantRow.id == assistant_id
            )
        )

    async def _get(self, project: str, assistant_id: str, *, locked: bool) -> Assistant:
        if not is_id(assistant_id, ASSISTANT):
            # Not asked for: a database may refuse its characters.
            raise AssistantNotFound(assistant=assistant_id)
        row = await self._session.get(AssistantRow, (project, assistant_id), with_for_update=locked)
        if row is None:
            raise AssistantNotFound(assistant=assistant_id)
        return _assistant(row)


def _values(assistant: Assistant) -> dict[str, Any]:
    settings = assistant.settings
    return {
        "revision": assistant.revision,
        "document": _SETTINGS.dump_json(settings, exclude={"options"}),
        "options": settings.options,
    }


def _assistant(row: AssistantRow) -> Assistant:
    return Assistant(
        id=row.id,
        settings=replace(_SETTINGS.validate_json(row.document), options=row.options),
        created_at=row.created_at,
        revision=row.revision,
    )
