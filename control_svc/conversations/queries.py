"""Table and SQL of conversations."""

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import CONVERSATION, is_id
from control_svc.conversations.model import Conversation
from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from svc_kit.errors import ConversationNotFound


class ConversationRow(Table):
    """A conversation. Its items are in the timeline of the same id, which this row locks."""

    __tablename__ = "conversations"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    attached: Mapped[Document]  # `metadata` is reserved by SQLAlchemy
    writer: Mapped[str] = mapped_column(Key)  # id of the response in progress, or empty
    created_at: Mapped[datetime] = mapped_column(Instant)


class ConversationQueries:
    """SQL of conversations; items are in timelines of the same id."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, conversation: Conversation) -> None:
        """Insert a conversation."""
        await self._session.execute(
            insert(ConversationRow).values(
                project=project,
                id=conversation.id,
                created_at=conversation.created_at,
                **_mutable_values(conversation),
            )
        )

    async def get(self, project: str, conversation_id: str) -> Conversation:
        """Raises ConversationNotFound."""
        return await self._get(project, conversation_id, locked=False)

    async def lock(self, project: str, conversation_id: str) -> Conversation:
        """Like `get`, but lock the row and its timeline until the end of the transaction."""
        return await self._get(project, conversation_id, locked=True)

    async def update(self, project: str, conversation: Conversation) -> None:
        """Store the changed fields of a locked conversation."""
        await self._session.execute(
            update(ConversationRow)
            .where(*_has_id(project, conversation.id))
            .values(**_mutable_values(conversation))
        )

    async def delete(self, project: str, conversation_id: str) -> None:
        """Delete a locked conversation; the caller deletes its timeline."""
        await self._session.execute(
            delete(ConversationRow).where(*_has_id(project, conversation_id))
        )

    async def _get(self, project: str, conversation_id: str, *, locked: bool) -> Conversation:
        row = None
        if is_id(conversation_id, CONVERSATION):  # databases reject some characters
            query = select(ConversationRow).where(*_has_id(project, conversation_id))
            row = await self._session.scalar(query.with_for_update() if locked else query)
        if row is None:
            raise ConversationNotFound(conversation=conversation_id)
        return Conversation(
            id=row.id,
            created_at=row.created_at,
            metadata=orjson.loads(row.attached),
            writer=row.writer,
        )


def _has_id(project: str, conversation_id: str) -> tuple[ColumnElement[bool], ...]:
    return (ConversationRow.project == project, ConversationRow.id == conversation_id)


def _mutable_values(conversation: Conversation) -> dict[str, Any]:
    return {
        "attached": orjson.dumps(dict(conversation.metadata)),
        "writer": conversation.writer,
    }
