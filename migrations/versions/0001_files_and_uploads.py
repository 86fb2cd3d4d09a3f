"""Files, uploads and their parts, remembered requests, secrets.

The first revision: no release runs on an earlier one.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "files",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("blob_key", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.PrimaryKeyConstraint("project", "id", name="pk_files"),
        sa.UniqueConstraint("blob_key", name="uq_files_blob_key"),
    )
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_index("ix_files_project_purpose_id", "files", ["project", "purpose", "id"])
    op.create_table(
        "uploads",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("ttl", sa.Interval()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("file_id", KEY),
        sa.Column("completion", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_state_expires_at", "uploads", ["state", "expires_at"])
    op.create_table(
        "upload_parts",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("upload_id", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "upload_id"],
            ["uploads.project", "uploads.id"],
            name="fk_upload_parts_project_upload_id_uploads",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "upload_id", "id", name="pk_upload_parts"),
        sa.UniqueConstraint("blob_key", name="uq_upload_parts_blob_key"),
    )
    op.create_table(
        "requests",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("resource_id", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("project", "method", "request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )


def downgrade() -> None:
    """Back: everything that is kept is lost; the bytes stay until a sweeper finds them."""
    for table in ("secrets", "requests", "upload_parts", "uploads", "files"):
        op.drop_table(table)
