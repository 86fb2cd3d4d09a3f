"""Tables of batches and their lines."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow


class BatchRow(ObjectRow):
    __tablename__ = "batches"
    __table_args__ = (sa.Index(None, "state"),)

    # set by the caller
    endpoint: Mapped[str] = mapped_column(sa.String(64))
    input_file_id: Mapped[str] = mapped_column(Key)
    window: Mapped[timedelta] = mapped_column(sa.Interval)
    output_ttl: Mapped[timedelta | None] = mapped_column(sa.Interval)
    attached: Mapped[Document]  # metadata; SQLAlchemy reserves that name
    # read from the input file
    model: Mapped[str] = mapped_column(sa.Text)
    problems: Mapped[Document]
    # sums over its lines
    total: Mapped[int] = mapped_column(sa.Integer)
    completed: Mapped[int] = mapped_column(sa.Integer)
    failed: Mapped[int] = mapped_column(sa.Integer)
    not_run: Mapped[int] = mapped_column(sa.Integer)
    input_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    cached_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    output_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    # output files; no foreign keys, because files may be deleted before the batch
    output_file_id: Mapped[str | None] = mapped_column(Key)
    error_file_id: Mapped[str | None] = mapped_column(Key)
    # state and timestamps
    state: Mapped[str] = mapped_column(sa.String(16))
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
        sa.ForeignKeyConstraint(
            ["project", "batch_id"], ["batches.project", "batches.id"], ondelete="CASCADE"
        ),
        sa.Index(None, "project", "batch_id", "state", "place", "number"),
    )

    batch_id: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    place: Mapped[bytes] = mapped_column(sa.LargeBinary)  # sort key: lines run in this order
    request: Mapped[bytes] = mapped_column(sa.LargeBinary)  # of the file; `result` is for a file
    # result
    state: Mapped[str] = mapped_column(sa.String(16))
    result: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    engine_deaths: Mapped[int] = mapped_column(sa.Integer)
    input_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    cached_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    output_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(sa.BigInteger)
