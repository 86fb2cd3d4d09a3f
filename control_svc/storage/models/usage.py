"""The tables of what projects used."""

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class UsageRow(Table):
    """What a project used of a model within an hour."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "hour"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    model: Mapped[str] = mapped_column(Project, primary_key=True)
    hour: Mapped[datetime] = mapped_column(Instant, primary_key=True)
    day: Mapped[datetime] = mapped_column(Instant)
    # sums
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class UsageReportRow(Table):
    """A report that was added to the sums, remembered so that it is added once."""

    __tablename__ = "usage_reports"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    added_at: Mapped[datetime] = mapped_column(Instant, index=True)
