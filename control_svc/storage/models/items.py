"""The tables of items and of the timelines and conversations that they stand in."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class ItemRow(Table):
    """What was said or done: a document. Timelines say where."""

    __tablename__ = "items"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    document: Mapped[bytes] = mapped_column(LargeBinary)


class TimelineItemRow(Table):
    """An item's place in the past of a thread, a conversation or a response."""

    __tablename__ = "timeline_items"
    __table_args__ = (
        ForeignKeyConstraint(["project", "item_id"], ["items.project", "items.id"]),
        UniqueConstraint("project", "item_id", "timeline"),
        Index(None, "project", "timeline", "kind", "position"),
        Index(None, "project", "timeline", "origin", "position"),
        Index(None, "project", "timeline", "age"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    timeline: Mapped[str] = mapped_column(Key, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    item_id: Mapped[str] = mapped_column(Key)
    # of the item, for lists
    kind: Mapped[str] = mapped_column(String(32))
    age: Mapped[str] = mapped_column(Key)  # its id without the prefix: ids grow with time
    origin: Mapped[str] = mapped_column(Key)  # the run or response that made it; empty: a caller


class ConversationRow(Table):
    """A conversation; its items are in the timeline of the same id, and this row is its lock."""

    __tablename__ = "conversations"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    attached: Mapped[bytes] = mapped_column(LargeBinary)  # its metadata, a name that is taken here
    writer: Mapped[str] = mapped_column(Key)  # the response that is going to add to it, or empty
    created_at: Mapped[datetime] = mapped_column(Instant)
