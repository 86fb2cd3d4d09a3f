"""The tables of assistants, threads and messages."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKeyConstraint, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class AssistantRow(Table):
    """An assistant: a document, of which nothing is searched."""

    __tablename__ = "assistants"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(Integer)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    options: Mapped[bytes] = mapped_column(LargeBinary)  # a message of protos


class ThreadRow(Table):
    """A thread, and the lock of its timeline."""

    __tablename__ = "threads"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    revision: Mapped[int] = mapped_column(Integer)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    # of its runs; no foreign key, because a run's row names its thread
    active_run_id: Mapped[str | None] = mapped_column(Key)
    cut: Mapped[int] = mapped_column(BigInteger)


class MessageRow(Table):
    """What the Assistants' view adds to an item.

    No foreign key to the item, which stays where a conversation has it too.
    """

    __tablename__ = "messages"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    thread_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)  # its item's
    # who wrote it; no foreign keys, because the assistant may be deleted and the message stays
    assistant_id: Mapped[str | None] = mapped_column(Key)
    run_id: Mapped[str | None] = mapped_column(Key)
    # what its owner attached
    attachments: Mapped[bytes] = mapped_column(LargeBinary)
    attached: Mapped[bytes] = mapped_column(LargeBinary)  # its metadata, a name that is taken here
    # its end
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_at: Mapped[datetime | None] = mapped_column(Instant)
    incomplete_reason: Mapped[str | None] = mapped_column(String(16))
