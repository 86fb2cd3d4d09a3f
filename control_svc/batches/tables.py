"""Tables of batches and their lines."""

from datetime import datetime, timedelta

from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Index,
    Integer,
    Interval,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow


class BatchRow(ObjectRow):
    __tablename__ = "batches"
    __table_args__ = (Index(None, "state"),)

    # set by the caller
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(Key)
    window: Mapped[timedelta] = mapped_column(Interval)
    output_ttl: Mapped[timedelta | None] = mapped_column(Interval)
    attached: Mapped[Document]  # metadata; SQLAlchemy reserves that name
    # read from the input file
    model: Mapped[str] = mapped_column(Text)
    problems: Mapped[Document]
    # sums over its lines
    total: Mapped[int] = mapped_column(Integer)
    completed: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    not_run: Mapped[int] = mapped_column(Integer)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
    # output files; no foreign keys, because files may be deleted before the batch
    output_file_id: Mapped[str | None] = mapped_column(Key)
    error_file_id: Mapped[str | None] = mapped_column(Key)
    # state and timestamps
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant)
    in_progress_at: Mapped[datetime | None] = mapped_column(Instant)
    finalizing_at: Mapped[datetime | None] = mapped_column(Instant)
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    failed_at: Mapped[datetime | None] = mapped_column(Instant)
    expired_at: Mapped[datetime | None] = mapped_column(Instant)
    cancelling_at: Mapped[datetime | None] = mapped_column(Instant)
    cancelled_at: Mapped[datetime | None] = mapped_column(Instant)


class BatchLineRow(OwnedRow):
    """A request of a batch, from validation until its result is in an output file."""

    __tablename__ = "batch_lines"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "batch_id"], ["batches.project", "batches.id"], ondelete="CASCADE"
        ),
        Index(None, "project", "batch_id", "state", "place", "number"),
    )

    batch_id: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    place: Mapped[bytes] = mapped_column(LargeBinary)  # sort key: lines run in this order
    request: Mapped[bytes] = mapped_column(LargeBinary)  # of the file; `result` is for a file
    # result
    state: Mapped[str] = mapped_column(String(16))
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    engine_deaths: Mapped[int] = mapped_column(Integer)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
