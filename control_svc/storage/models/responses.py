"""The table of responses."""

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class ResponseRow(Table):
    """A response; its own items are in the timeline of the same id, its events in the stream."""

    __tablename__ = "responses"
    __table_args__ = (Index(None, "project", "previous_id"), Index(None, "expires_at"))

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # as asked
    settings: Mapped[bytes] = mapped_column(LargeBinary)
    options: Mapped[bytes] = mapped_column(LargeBinary)
    # as in effect
    model: Mapped[str] = mapped_column(Text)
    effective_options: Mapped[bytes] = mapped_column(LargeBinary)
    seed: Mapped[int] = mapped_column(BigInteger)
    # what was said before; no foreign keys, because it may be deleted and the response stays
    previous_id: Mapped[str] = mapped_column(Key)
    conversation_id: Mapped[str] = mapped_column(Key)
    conversation_end: Mapped[int] = mapped_column(BigInteger)
    context_start: Mapped[str] = mapped_column(Key)
    is_compacted: Mapped[bool] = mapped_column(Boolean)
    # what it has become
    state: Mapped[str] = mapped_column(String(16))
    work: Mapped[bytes] = mapped_column(LargeBinary)
    ending: Mapped[bytes] = mapped_column(LargeBinary)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
