"""The tables of projects and their keys."""

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Instant, Key, Table


class ProjectRow(Table):
    """A project. Objects name theirs without a foreign key: it may be known to settings alone."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    display_name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    archived_at: Mapped[datetime | None] = mapped_column(Instant)


class ApiKeyRow(Table):
    """What is kept of an API key. Operators look after all of them: the project does not lead."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["project"], ["projects.id"]),
        Index(None, "project", "id"),
    )

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    project: Mapped[str] = mapped_column(Key)
    # what an operator says
    name: Mapped[str] = mapped_column(Text)
    scopes: Mapped[str] = mapped_column(Text)
    priority: Mapped[str] = mapped_column(String(16))
    # the key
    prefix: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)
