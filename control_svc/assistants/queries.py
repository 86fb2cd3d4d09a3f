"""Tables and SQL of assistants, threads and messages."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import orjson
import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.assistants.message_model import Attachment, IncompleteReason, ThreadMessage
from control_svc.assistants.model import Assistant, AssistantSettings, Thread, ThreadSettings
from control_svc.base.ids import ASSISTANT, THREAD
from control_svc.base.object_queries import ObjectQueries
from control_svc.base.pagination import Window
from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow, read_row
from control_svc.db.transaction import Queries, Transaction
from control_svc.inference.generation_options import GenerationOptions
from control_svc.items.model import Item, ItemFilter, TimelineItem
from control_svc.items.queries import TimelineQueries
from svc_kit.errors import AssistantNotFound, DomainError, MessageNotFound, ThreadNotFound


class AssistantRow(ObjectRow):
    """An assistant. Its document has no searchable fields."""

    __tablename__ = "assistants"

    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(sa.Integer)
    document: Mapped[Document]
    options: Mapped[bytes] = mapped_column(sa.LargeBinary)  # a serialized GenerationOptions


class ThreadRow(ObjectRow):
    """A thread, and the lock of its timeline."""

    __tablename__ = "threads"

    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(sa.Integer)
    document: Mapped[Document]
    # no foreign key, because the row of the run refers to the thread
    active_run_id: Mapped[str | None] = mapped_column(Key)
    cut: Mapped[int] = mapped_column(sa.BigInteger)


class MessageRow(OwnedRow):
    """Fields of a message that its item does not have.

    There is no foreign key to the item, which remains if a conversation contains it.
    """

    __tablename__ = "messages"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
    )

    thread_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)  # id of the item
    # no foreign keys, because the message outlives its assistant
    assistant_id: Mapped[str | None] = mapped_column(Key)
    run_id: Mapped[str | None] = mapped_column(Key)
    attachments: Mapped[Document]
    attached: Mapped[Document]  # `metadata` is reserved by SQLAlchemy
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_reason: Mapped[str | None] = mapped_column(sa.String(16))


_ASSISTANT_SETTINGS: Final = TypeAdapter(AssistantSettings)


class AssistantQueries(ObjectQueries[AssistantRow, Assistant]):
    """SQL of assistants."""

    table = AssistantRow
    prefix = ASSISTANT

    def _not_found(self, object_id: str) -> DomainError:
        return AssistantNotFound(assistant=object_id)

    def _values(self, value: Assistant) -> dict[str, Any]:
        settings = value.settings
        return {
            "revision": value.revision,
            "document": _ASSISTANT_SETTINGS.dump_json(settings, exclude={"options"}),
            "options": bytes(settings.options),
        }

    def _object(self, row: AssistantRow) -> Assistant:
        settings = _ASSISTANT_SETTINGS.validate_json(row.document)
        options = GenerationOptions.from_bytes(row.options)
        return read_row(Assistant, row, settings=replace(settings, options=options))


_THREAD_SETTINGS: Final = TypeAdapter(ThreadSettings)


class ThreadQueries(ObjectQueries[ThreadRow, Thread]):
    """SQL of threads. Changes of a thread or its messages require the lock of its row."""

    table = ThreadRow
    prefix = THREAD

    async def delete(self, object_id: str) -> None:
        """Delete a locked thread, its items, and the rows with foreign keys to it.

        A hook of `Threads` deletes the event streams of its runs.
        """
        await super().delete(object_id)
        await TimelineQueries(self._tx).delete(object_id)

    def _not_found(self, object_id: str) -> DomainError:
        return ThreadNotFound(thread=object_id)

    def _values(self, value: Thread) -> dict[str, Any]:
        return {
            "revision": value.revision,
            "document": _THREAD_SETTINGS.dump_json(value.settings),
            "active_run_id": value.active_run_id or None,
            "cut": value.cut,
        }

    def _object(self, row: ThreadRow) -> Thread:
        settings = _THREAD_SETTINGS.validate_json(row.document)
        return read_row(Thread, row, settings=settings, active_run_id=row.active_run_id or "")


_KIND: Final = "message"
_ATTACHMENTS: Final = TypeAdapter(tuple[Attachment, ...])


class MessageQueries(Queries):
    """SQL of messages: items of a thread's timeline, each with a row."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._timelines = TimelineQueries(tx)

    async def add(self, messages: Sequence[ThreadMessage]) -> None:
        """Append new messages of one thread to its timeline.

        All have the same `run_id`, which becomes the origin of their items.
        """
        if not messages:
            return
        thread, run = messages[0].thread_id, messages[0].run_id
        items = [message.item for message in messages]
        await self._timelines.append(thread, items, origin=run)
        rows = [{"thread_id": thread, "id": each.id, **_message_values(each)} for each in messages]
        await self._insert(MessageRow, *rows)

    async def get(self, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises MessageNotFound."""
        entry = await self._timelines.get(thread_id, message_id)
        messages = await self._messages(thread_id, [] if entry is None else [entry])
        if not messages:
            raise MessageNotFound(message_id=message_id)
        return messages[0]

    async def page(self, thread_id: str, window: Window, run_id: str = "") -> list[ThreadMessage]:
        """The messages of a window, or those of them that the run `run_id` created."""
        item_filter = ItemFilter(kinds=(_KIND,), origin=run_id)
        entries = await self._timelines.page(thread_id, window, item_filter)
        return await self._messages(thread_id, entries)

    async def created_by_run(self, thread_id: str, run_id: str) -> list[ThreadMessage]:
        """The messages that a run created, in order."""
        item_filter = ItemFilter(kinds=(_KIND,), origin=run_id)
        entries = await self._timelines.read(thread_id, item_filter=item_filter)
        return await self._messages(thread_id, entries)

    async def update(self, message: ThreadMessage) -> None:
        """Store the changed fields of a message and its item."""
        await self._timelines.update(message.item)
        await self._session.execute(
            sa.update(MessageRow)
            .where(*self._in_thread(message.thread_id), MessageRow.id == message.id)
            .values(_message_values(message))
        )

    async def delete(self, thread_id: str, message_id: str) -> None:
        """Delete a message. Raises MessageNotFound."""
        await self.get(thread_id, message_id)
        await self._session.execute(
            sa.delete(MessageRow).where(*self._in_thread(thread_id), MessageRow.id == message_id)
        )
        await self._timelines.remove(thread_id, message_id)

    async def _messages(
        self, thread_id: str, entries: Sequence[TimelineItem]
    ) -> list[ThreadMessage]:
        """The messages among the items, in order."""
        items = [entry.item for entry in entries if entry.item.kind == _KIND]
        if not items:
            return []
        ids = [item.id for item in items]
        rows = await self._session.scalars(
            sa.select(MessageRow).where(*self._in_thread(thread_id), MessageRow.id.in_(ids))
        )
        by_id = {row.id: row for row in rows}
        return [_message(by_id[item.id], item) for item in items]

    def _in_thread(self, thread_id: str) -> tuple[ColumnElement[bool], ...]:
        return (self._mine(MessageRow), MessageRow.thread_id == thread_id)


def _message_values(message: ThreadMessage) -> dict[str, Any]:
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
    return read_row(
        ThreadMessage,
        row,
        item=item,
        assistant_id=row.assistant_id or "",
        run_id=row.run_id or "",
        attachments=_ATTACHMENTS.validate_json(row.attachments),
        metadata=orjson.loads(row.attached),
        incomplete_reason=None if reason is None else IncompleteReason(reason),
    )
