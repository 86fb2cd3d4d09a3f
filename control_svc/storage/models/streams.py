"""The tables of event streams."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class StreamRow(Table):
    """The events of an object, as a whole; its id is the object's."""

    __tablename__ = "streams"
    __table_args__ = (Index(None, "state", "ended_at"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # how far it is
    next_number: Mapped[int] = mapped_column(BigInteger)
    num_chunks: Mapped[int] = mapped_column(BigInteger)
    # its life
    state: Mapped[str] = mapped_column(String(16))
    ended_at: Mapped[datetime | None] = mapped_column(Instant)


class StreamChunkRow(Table):
    """What one commit added to a stream.

    The key begins with the number behind the chunk's events, so that a reader's next events are a
    range of it, wherever the chunks begin. Chunks without events have the number of the one before.
    """

    __tablename__ = "stream_chunks"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "stream_id"], ["streams.project", "streams.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    stream_id: Mapped[str] = mapped_column(Key, primary_key=True)
    past: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    num_events: Mapped[int] = mapped_column(Integer)
    events: Mapped[bytes] = mapped_column(LargeBinary)
    turn: Mapped[int] = mapped_column(Integer)
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
