"""Table and SQL of conversations."""

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import LargeBinary, delete, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import CONVERSATION, is_id
from control_svc.conversations.model import Conversation
from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from svc_kit.errors import ConversationNotFound


class ConversationRow(Table):
    """A conversation; its items are in the timeline of the same id, and this row is its lock."""

    __tablename__ = "conversations"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    attached: Mapped[bytes] = mapped_column(LargeBinary)  # its metadata, a name that is taken here
    writer: Mapped[str] = mapped_column(Key)  # the response that is going to add to it, or empty
    created_at: Mapped[datetime] = mapped_column(Instant)


class ConversationQueries:
    """The rows of conversations; their items are in timelines of the same id."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, conversation: Conversation) -> None:
        """Keep a new conversation."""
        await self._session.execute(
            insert(ConversationRow).values(
                project=project,
                id=conversation.id,
                created_at=conversation.created_at,
                **_changing(conversation),
            )
        )

    async def get(self, project: str, conversation_id: str) -> Conversation:
        """Raises ConversationNotFound."""
        return await self._get(project, conversation_id, locked=False)

    async def lock(self, project: str, conversation_id: str) -> Conversation:
        """As `get`, with its timeline locked until the end of the transaction."""
        return await self._get(project, conversation_id, locked=True)

    async def update(self, project: str, conversation: Conversation) -> None:
        """Keep what has changed of a locked conversation."""
        await self._session.execute(
            update(ConversationRow)
            .where(*_of(project, conversation.id))
            .values(**_changing(conversation))
        )

    async def delete(self, project: str, conversation_id: str) -> None:
        """Forget a locked conversation; its timeline is the caller's to drop."""
        await self._session.execute(delete(ConversationRow).where(*_of(project, conversation_id)))

    async def _get(self, project: str, conversation_id: str, *, locked: bool) -> Conversation:
        row = None
        if is_id(conversation_id, CONVERSATION):  # a database may refuse other characters
            query = select(ConversationRow).where(*_of(project, conversation_id))
            row = await self._session.scalar(query.with_for_update() if locked else query)
        if row is None:
            raise ConversationNotFound(conversation=conversation_id)
        return Conversation(
            id=row.id,
            created_at=row.created_at,
            metadata=orjson.loads(row.attached),
            writer=row.writer,
        )


def _of(project: str, conversation_id: str) -> tuple[ColumnElement[bool], ...]:
    return (ConversationRow.project == project, ConversationRow.id == conversation_id)


def _changing(conversation: Conversation) -> dict[str, Any]:
    return {
        "attached": orjson.dumps(dict(conversation.metadata)),
        "writer": conversation.writer,
    }
