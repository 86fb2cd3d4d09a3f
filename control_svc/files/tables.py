"""Tables of files, uploads and upload parts."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow, blob_key


class FileRow(ObjectRow):
    """A file. Its bytes are in the blob store before the row is inserted."""

    __tablename__ = "files"
    __table_args__ = (sa.Index(None, "project", "purpose", "id"),)

    filename: Mapped[str] = mapped_column(sa.Text)
    purpose: Mapped[str] = mapped_column(sa.String(32))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(sa.String(64))
    blob_key: Mapped[str] = blob_key("size_bytes", "sha256")
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant, index=True)


class UploadRow(ObjectRow):
    __tablename__ = "uploads"
    __table_args__ = (sa.Index(None, "state", "expires_at"),)

    filename: Mapped[str] = mapped_column(sa.Text)
    purpose: Mapped[str] = mapped_column(sa.String(32))
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    mime_type: Mapped[str] = mapped_column(sa.Text)
    ttl: Mapped[timedelta | None] = mapped_column(sa.Interval)
    state: Mapped[str] = mapped_column(sa.String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant)
    # No foreign key: the upload outlives its file.
    file_id: Mapped[str | None] = mapped_column(Key)
    completion: Mapped[str] = mapped_column(sa.String(64))


class UploadPartRow(OwnedRow):
    """A part of a pending upload."""

    __tablename__ = "upload_parts"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "upload_id"], ["uploads.project", "uploads.id"], ondelete="CASCADE"
        ),
    )

    upload_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    blob_key: Mapped[str] = blob_key("size_bytes")
    created_at: Mapped[datetime] = mapped_column(Instant)
