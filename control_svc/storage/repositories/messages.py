"""Queries about the messages of threads, over those about their timelines."""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from pydantic import TypeAdapter
from sqlalchemy import delete, insert, select, update
from sqlalchemy.sql import ColumnElement

from control_svc.domain.items import Item, PlacedItem
from control_svc.domain.listing import Window
from control_svc.domain.messages import Attachment, IncompleteReason, ThreadMessage
from control_svc.domain.timeline_ports import ItemFilter
from control_svc.storage.models import MessageRow
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import MessageNotFound

_KIND: Final = "message"
_ATTACHMENTS: Final = TypeAdapter(tuple[Attachment, ...])


class SqlMessages:
    """The messages of threads: items of their timelines, and a row for each."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._timelines = SqlTimelines(tx)

    async def add(self, project: str, messages: Sequence[ThreadMessage]) -> None:
        """Keep new messages at the end of their thread's timeline, one thread's at a time.

        Those that a run writes have its id as their origin there.
        """
        if not messages:
            return
        thread, run = messages[0].thread_id, messages[0].run_id
        items = [message.item for message in messages]
        await self._timelines.append(project, thread, items, origin=run)
        await self._session.execute(
            insert(MessageRow),
            [
                {"project": project, "thread_id": thread, "id": each.id, **_values(each)}
                for each in messages
            ],
        )

    async def get(self, project: str, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises MessageNotFound."""
        placed = await self._timelines.get(project, thread_id, message_id)
        found = await self._messages(project, thread_id, [] if placed is None else [placed])
        if not found:
            raise MessageNotFound(message_id=message_id)
        return found[0]

    async def page(
        self, project: str, thread_id: str, window: Window, run_id: str = ""
    ) -> list[ThreadMessage]:
        """The messages of a window; `run_id` empty: by whomever."""
        wanted = ItemFilter(kinds=(_KIND,), origin=run_id)
        placed = await self._timelines.page(project, thread_id, window, wanted)
        return await self._messages(project, thread_id, placed)

    async def of_run(self, project: str, thread_id: str, run_id: str) -> list[ThreadMessage]:
        """The messages that a run has written, in order."""
        wanted = ItemFilter(kinds=(_KIND,), origin=run_id)
        placed = await self._timelines.since(project, thread_id, wanted=wanted)
        return await self._messages(project, thread_id, placed)

    async def update(self, project: str, message: ThreadMessage) -> None:
        """Keep what has changed of a message, its content included."""
        await self._timelines.update(project, message.item)
        await self._session.execute(
            update(MessageRow)
            .where(*_of(project, message.thread_id), MessageRow.id == message.id)
            .values(_values(message))
        )

    async def delete(self, project: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread. Raises MessageNotFound."""
        await self.get(project, thread_id, message_id)
        await self._session.execute(
            delete(MessageRow).where(*_of(project, thread_id), MessageRow.id == message_id)
        )
        await self._timelines.remove(project, thread_id, message_id)

    async def _messages(
        self, project: str, thread_id: str, placed: Sequence[PlacedItem]
    ) -> list[ThreadMessage]:
        """The messages that items are; an item of another kind is none."""
        items = [each.item for each in placed if each.item.kind == _KIND]
        if not items:
            return []
        ids = [item.id for item in items]
        rows = await self._session.scalars(
            select(MessageRow).where(*_of(project, thread_id), MessageRow.id.in_(ids))
        )
        by_id = {row.id: row for row in rows}
        return [_message(by_id[item.id], item) for item in items]


def _of(project: str, thread_id: str) -> tuple[ColumnElement[bool], ...]:
    return (MessageRow.project == project, MessageRow.thread_id == thread_id)


def _values(message: ThreadMessage) -> dict[str, Any]:
    reason = message.incomplete_reason
    return {
        "assistant_id": message.assistant_id or None,
        "run_id": message.run_id or None,
        "attachments": _ATTACHMENTS.dump_json(message.attachments),
        "attached": orjson.dumps(dict(message.metadata)),
        "completed_at": message.completed_at,
        "incomplete_at": message.incomplete_at,
        "incomplete_reason": None if reason is None else reason.value,
    }


def _message(row: MessageRow, item: Item) -> ThreadMessage:
    reason = row.incomplete_reason
    return ThreadMessage(
        item=item,
        thread_id=row.thread_id,
        assistant_id=row.assistant_id or "",
        run_id=row.run_id or "",
        attachments=_ATTACHMENTS.validate_json(row.attachments),
        metadata=orjson.loads(row.attached),
        completed_at=row.completed_at,
        incomplete_at=row.incomplete_at,
        incomplete_reason=None if reason is None else IncompleteReason(reason),
    )
