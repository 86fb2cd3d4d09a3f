"""Queries about threads."""

from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import delete, insert, select, update

from control_svc.domain.ids import THREAD, is_id
from control_svc.domain.listing import Window
from control_svc.domain.threads import Thread, ThreadSettings
from control_svc.storage.models import RunRow, StreamRow, ThreadRow
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.repositories.windows import in_order, windowed
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import ThreadNotFound

_SETTINGS: Final = TypeAdapter(ThreadSettings)


class SqlThreads:
    """The rows of threads. Who changes anything of a thread, its messages included, locks it."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._timelines = SqlTimelines(tx)

    async def add(self, project: str, thread: Thread) -> None:
        """Keep a new thread."""
        row = insert(ThreadRow).values(
            project=project, id=thread.id, created_at=thread.created_at, **_values(thread)
        )
        await self._session.execute(row)

    async def get(self, project: str, thread_id: str) -> Thread:
        """Raises ThreadNotFound."""
        return await self._get(project, thread_id, locked=False)

    async def lock(self, project: str, thread_id: str) -> Thread:
        """As `get`; until the end of the transaction nobody else changes the thread."""
        return await self._get(project, thread_id, locked=True)

    async def page(self, project: str, window: Window) -> list[Thread]:
        """The threads of a window."""
        query = select(ThreadRow).where(ThreadRow.project == project)
        rows = await self._session.scalars(windowed(query, ThreadRow.id, window))
        return in_order([_thread(row) for row in rows], window)

    async def update(self, project: str, thread: Thread) -> None:
        """Keep what has changed of a locked thread."""
        await self._session.execute(
            update(ThreadRow)
            .where(ThreadRow.project == project, ThreadRow.id == thread.id)
            .values(_values(thread))
        )

    async def delete(self, project: str, thread_id: str) -> None:
        """Forget a locked thread and its timeline, and with it every row that hangs on it."""
        runs = select(RunRow.id).where(RunRow.project == project, RunRow.thread_id == thread_id)
        await self._session.execute(
            delete(StreamRow).where(StreamRow.project == project, StreamRow.id.in_(runs))
        )
        await self._session.execute(
            delete(ThreadRow).where(ThreadRow.project == project, ThreadRow.id == thread_id)
        )
        await self._timelines.drop(project, thread_id)

    async def _get(self, project: str, thread_id: str, *, locked: bool) -> Thread:
        if not is_id(thread_id, THREAD):
            # Not asked for: a database may refuse its characters.
            raise ThreadNotFound(thread=thread_id)
        row = await self._session.get(
            ThreadRow, (project, thread_id), with_for_update=locked, populate_existing=locked
        )
        if row is None:
            raise ThreadNotFound(thread=thread_id)
        return _thread(row)


def _values(thread: Thread) -> dict[str, Any]:
    return {
        "revision": thread.revision,
        "document": _SETTINGS.dump_json(thread.settings),
        "active_run_id": thread.active_run_id or None,
        "cut": thread.cut,
    }


def _thread(row: ThreadRow) -> Thread:
    return Thread(
        id=row.id,
        settings=_SETTINGS.validate_json(row.document),
        created_at=row.created_at,
        revision=row.revision,
        active_run_id=row.active_run_id or "",
        cut=row.cut,
    )
