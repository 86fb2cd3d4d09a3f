"""Tables and SQL of assistants, threads and messages."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import orjson
from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    String,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.assistants.message_model import Attachment, IncompleteReason, ThreadMessage
from control_svc.assistants.model import Assistant, AssistantSettings, Thread, ThreadSettings
from control_svc.base.ids import ASSISTANT, THREAD, is_id
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from control_svc.inference.generation_options import GenerationOptions
from control_svc.items.model import Item, ItemFilter, TimelineItem
from control_svc.items.queries import TimelineQueries
from svc_kit.errors import AssistantNotFound, MessageNotFound, ThreadNotFound


class AssistantRow(Table):
    """An assistant. Its document has no searchable fields."""

    __tablename__ = "assistants"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(Integer)
    document: Mapped[Document]
    options: Mapped[bytes] = mapped_column(LargeBinary)  # a serialized GenerationOptions


class ThreadRow(Table):
    """A thread, and the lock of its timeline."""

    __tablename__ = "threads"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(Integer)
    document: Mapped[Document]
    # no foreign key, because the row of the run refers to the thread
    active_run_id: Mapped[str | None] = mapped_column(Key)
    cut: Mapped[int] = mapped_column(BigInteger)


class MessageRow(Table):
    """Fields of a message that its item does not have.

    There is no foreign key to the item, which remains if a conversation contains it.
    """

    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    thread_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)  # id of the item
    # no foreign keys, because the message outlives its assistant
    assistant_id: Mapped[str | None] = mapped_column(Key)
    run_id: Mapped[str | None] = mapped_column(Key)
    attachments: Mapped[Document]
    attached: Mapped[Document]  # `metadata` is reserved by SQLAlchemy
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_reason: Mapped[str | None] = mapped_column(String(16))


_ASSISTANT_SETTINGS: Final = TypeAdapter(AssistantSettings)


class AssistantQueries:
    """SQL of assistants."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, assistant: Assistant) -> None:
        """Insert an assistant."""
        row = insert(AssistantRow).values(
            project=project,
            id=assistant.id,
            created_at=assistant.created_at,
            **_assistant_values(assistant),
        )
        await self._session.execute(row)

    async def get(self, project: str, assistant_id: str) -> Assistant:
        """Raises AssistantNotFound."""
        return await self._get(project, assistant_id, locked=False)

    async def lock(self, project: str, assistant_id: str) -> Assistant:
        """Like `get`, but lock the row until the end of the transaction."""
        return await self._get(project, assistant_id, locked=True)

    async def page(self, project: str, window: Window) -> list[Assistant]:
        """The assistants of a window."""
        query = select(AssistantRow).where(AssistantRow.project == project)
        rows = await self._session.scalars(apply_window(query, AssistantRow.id, window))
        return restore_order([_assistant(row) for row in rows], window)

    async def update(self, project: str, assistant: Assistant) -> None:
        """Store the changed fields of a locked assistant."""
        await self._session.execute(
            update(AssistantRow)
            .where(AssistantRow.project == project, AssistantRow.id == assistant.id)
            .values(_assistant_values(assistant))
        )

    async def delete(self, project: str, assistant_id: str) -> None:
        """Delete an assistant. Raises AssistantNotFound."""
        await self.lock(project, assistant_id)
        await self._session.execute(
            delete(AssistantRow).where(
                AssistantRow.project == project, AssistantRow.id == assistant_id
            )
        )

    async def _get(self, project: str, assistant_id: str, *, locked: bool) -> Assistant:
        row = None
        if is_id(assistant_id, ASSISTANT):  # databases reject some characters
            row = await self._session.get(
                AssistantRow, (project, assistant_id), with_for_update=locked
            )
        if row is None:
            raise AssistantNotFound(assistant=assistant_id)
        return _assistant(row)


def _assistant_values(assistant: Assistant) -> dict[str, Any]:
    settings = assistant.settings
    return {
        "revision": assistant.revision,
        "document": _ASSISTANT_SETTINGS.dump_json(settings, exclude={"options"}),
        "options": bytes(settings.options),
    }


def _assistant(row: AssistantRow) -> Assistant:
    return Assistant(
        id=row.id,
        settings=replace(
            _ASSISTANT_SETTINGS.validate_json(row.document),
            options=GenerationOptions.from_bytes(row.options),
        ),
        created_at=row.created_at,
        revision=row.revision,
    )


_THREAD_SETTINGS: Final = TypeAdapter(ThreadSettings)


class ThreadQueries:
    """SQL of threads. Changes of a thread or its messages require the lock of its row."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._timelines = TimelineQueries(tx)

    async def add(self, project: str, thread: Thread) -> None:
        """Insert a thread."""
        row = insert(ThreadRow).values(
            project=project, id=thread.id, created_at=thread.created_at, **_thread_values(thread)
        )
        await self._session.execute(row)

    async def get(self, project: str, thread_id: str) -> Thread:
        """Raises ThreadNotFound."""
        return await self._get(project, thread_id, locked=False)

    async def lock(self, project: str, thread_id: str) -> Thread:
        """Like `get`, but lock the row until the end of the transaction."""
        return await self._get(project, thread_id, locked=True)

    async def page(self, project: str, window: Window) -> list[Thread]:
        """The threads of a window."""
        query = select(ThreadRow).where(ThreadRow.project == project)
        rows = await self._session.scalars(apply_window(query, ThreadRow.id, window))
        return restore_order([_thread(row) for row in rows], window)

    async def update(self, project: str, thread: Thread) -> None:
        """Store the changed fields of a locked thread."""
        await self._session.execute(
            update(ThreadRow)
            .where(ThreadRow.project == project, ThreadRow.id == thread.id)
            .values(_thread_values(thread))
        )

    async def delete(self, project: str, thread_id: str) -> None:
        """Delete a locked thread, its items, and the rows with foreign keys to it.

        A hook of `Threads` deletes the event streams of its runs.
        """
        await self._session.execute(
            delete(ThreadRow).where(ThreadRow.project == project, ThreadRow.id == thread_id)
        )
        await self._timelines.delete(project, thread_id)

    async def _get(self, project: str, thread_id: str, *, locked: bool) -> Thread:
        row = None
        if is_id(thread_id, THREAD):  # databases reject some characters
            row = await self._session.get(
                ThreadRow, (project, thread_id), with_for_update=locked, populate_existing=locked
            )
        if row is None:
            raise ThreadNotFound(thread=thread_id)
        return _thread(row)


def _thread_values(thread: Thread) -> dict[str, Any]:
    return {
        "revision": thread.revision,
        "document": _THREAD_SETTINGS.dump_json(thread.settings),
        "active_run_id": thread.active_run_id or None,
        "cut": thread.cut,
    }


def _thread(row: ThreadRow) -> Thread:
    return Thread(
        id=row.id,
        settings=_THREAD_SETTINGS.validate_json(row.document),
        created_at=row.created_at,
        revision=row.revision,
        active_run_id=row.active_run_id or "",
        cut=row.cut,
    )


_KIND: Final = "message"
_ATTACHMENTS: Final = TypeAdapter(tuple[Attachment, ...])


class MessageQueries:
    """SQL of messages: items of a thread's timeline, each with a row."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._timelines = TimelineQueries(tx)

    async def add(self, project: str, messages: Sequence[ThreadMessage]) -> None:
        """Append new messages of one thread to its timeline.

        All have the same `run_id`, which becomes the origin of their items.
        """
        if not messages:
            return
        thread, run = messages[0].thread_id, messages[0].run_id
        items = [message.item for message in messages]
        await self._timelines.append(project, thread, items, origin=run)
        await self._session.execute(
            insert(MessageRow),
            [
                {"project": project, "thread_id": thread, "id": each.id, **_message_values(each)}
                for each in messages
            ],
        )

    async def get(self, project: str, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises MessageNotFound."""
        entry = await self._timelines.get(project, thread_id, message_id)
        messages = await self._messages(project, thread_id, [] if entry is None else [entry])
        if not messages:
            raise MessageNotFound(message_id=message_id)
        return messages[0]

    async def page(
        self, project: str, thread_id: str, window: Window, run_id: str = ""
    ) -> list[ThreadMessage]:
        """The messages of a window, or those of them that the run `run_id` created."""
        item_filter = ItemFilter(kinds=(_KIND,), origin=run_id)
        entries = await self._timelines.page(project, thread_id, window, item_filter)
        return await self._messages(project, thread_id, entries)

    async def created_by_run(
        self, project: str, thread_id: str, run_id: str
    ) -> list[ThreadMessage]:
        """The messages that a run created, in order."""
        item_filter = ItemFilter(kinds=(_KIND,), origin=run_id)
        entries = await self._timelines.read(project, thread_id, item_filter=item_filter)
        return await self._messages(project, thread_id, entries)

    async def update(self, project: str, message: ThreadMessage) -> None:
        """Store the changed fields of a message and its item."""
        await self._timelines.update(project, message.item)
        await self._session.execute(
            update(MessageRow)
            .where(*_in_thread(project, message.thread_id), MessageRow.id == message.id)
            .values(_message_values(message))
        )

    async def delete(self, project: str, thread_id: str, message_id: str) -> None:
        """Delete a message. Raises MessageNotFound."""
        await self.get(project, thread_id, message_id)
        await self._session.execute(
            delete(MessageRow).where(*_in_thread(project, thread_id), MessageRow.id == message_id)
        )
        await self._timelines.remove(project, thread_id, message_id)

    async def _messages(
        self, project: str, thread_id: str, entries: Sequence[TimelineItem]
    ) -> list[ThreadMessage]:
        """The messages among the items, in order."""
        items = [entry.item for entry in entries if entry.item.kind == _KIND]
        if not items:
            return []
        ids = [item.id for item in items]
        rows = await self._session.scalars(
            select(MessageRow).where(*_in_thread(project, thread_id), MessageRow.id.in_(ids))
        )
        by_id = {row.id: row for row in rows}
        return [_message(by_id[item.id], item) for item in items]


def _in_thread(project: str, thread_id: str) -> tuple[ColumnElement[bool], ...]:
    return (MessageRow.project == project, MessageRow.thread_id == thread_id)


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
