"""The tables of work: jobs, and the requests that are carried out once."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, Integer, SmallInteger, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table

_UNFINISHED = "state IN ('queued', 'running')"


class RequestRow(Table):
    """A request with an id of the caller's, remembered so that it is carried out once."""

    __tablename__ = "requests"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    method: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    resource_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant, index=True)


class JobRow(Table):
    """Work that outlives the call which asked for it."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "kind", "priority", "run_after"),
        Index(None, "lease_owner"),
        Index(
            "uq_jobs_unfinished",
            "project",
            "kind",
            "subject",
            unique=True,
            sqlite_where=text(_UNFINISHED),
            postgresql_where=text(_UNFINISHED),
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what it is for
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(Key)
    priority: Mapped[int] = mapped_column(SmallInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    # where it is
    state: Mapped[str] = mapped_column(String(16))
    run_after: Mapped[datetime] = mapped_column(Instant)
    attempt: Mapped[int] = mapped_column(Integer)
    num_postponed: Mapped[int] = mapped_column(Integer)
    engine_deaths: Mapped[int] = mapped_column(Integer)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(Instant)
    ended_at: Mapped[datetime | None] = mapped_column(Instant)
    # who has it
    fence: Mapped[int] = mapped_column(BigInteger)
    lease_owner: Mapped[str | None] = mapped_column(Key)
    lease_expires_at: Mapped[datetime | None] = mapped_column(Instant)
    heartbeat_at: Mapped[datetime | None] = mapped_column(Instant)
    # why its last attempt failed
    error_reason: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
