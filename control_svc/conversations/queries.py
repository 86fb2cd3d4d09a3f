"""Table and SQL of conversations."""

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import CONVERSATION
from control_svc.base.object_queries import ObjectQueries
from control_svc.conversations.model import Conversation
from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, read_row
from svc_kit.errors import ConversationNotFound, DomainError


class ConversationRow(ObjectRow):
    """A conversation. Its items are in the timeline of the same id, which this row locks."""

    __tablename__ = "conversations"

    attached: Mapped[Document]  # `metadata` is reserved by SQLAlchemy
    writer: Mapped[str] = mapped_column(Key)  # id of the response in progress, or empty
    created_at: Mapped[datetime] = mapped_column(Instant)


class ConversationQueries(ObjectQueries[ConversationRow, Conversation]):
    """SQL of conversations; items are in timelines of the same id."""

    table = ConversationRow
    prefix = CONVERSATION

    def _not_found(self, object_id: str) -> DomainError:
        return ConversationNotFound(conversation=object_id)

    def _values(self, value: Conversation) -> dict[str, Any]:
        return {"attached": orjson.dumps(dict(value.metadata)), "writer": value.writer}

    def _object(self, row: ConversationRow) -> Conversation:
        return read_row(Conversation, row, metadata=orjson.loads(row.attached))
