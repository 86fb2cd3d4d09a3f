"""The tables of adapters and of what frontends report about them."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKeyConstraint,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Project, Table


class AdapterRow(Table):
    """A registered adapter; its bytes are in the blob store before the row is here."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("project", "name"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    name: Mapped[str] = mapped_column(String(128))
    model: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    default_scale: Mapped[float] = mapped_column(Float)
    standing_scale: Mapped[float] = mapped_column(Float)
    # its bytes
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    file_bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str] = mapped_column(Key, unique=True)
    # what its file says
    architecture: Mapped[str] = mapped_column(Text)
    base_model: Mapped[str] = mapped_column(Text)
    rank: Mapped[int] = mapped_column(Integer)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    title: Mapped[str] = mapped_column(Text)
    # its life
    attempt: Mapped[int] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)


class AdapterReportRow(Table):
    """How an adapter is in one engine of a frontend, as the frontend said last."""

    __tablename__ = "adapter_reports"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "adapter_id"], ["adapters.project", "adapters.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    adapter_id: Mapped[str] = mapped_column(Key, primary_key=True)
    frontend: Mapped[str] = mapped_column(Key, primary_key=True, index=True)
    address: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(64))
    problem: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    reported_at: Mapped[datetime] = mapped_column(Instant)
