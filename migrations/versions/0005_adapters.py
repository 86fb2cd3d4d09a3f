"""Adapters, what frontends report of them, and counters."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    op.create_table(
        "adapters",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("default_scale", sa.Float(), nullable=False),
        sa.Column("standing_scale", sa.Float(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("file_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_key", KEY, nullable=False),
        sa.Column("architecture", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_adapters"),
        sa.UniqueConstraint("project", "name", name="uq_adapters_project_name"),
        sa.UniqueConstraint("blob_key", name="uq_adapters_blob_key"),
    )
    op.create_index("ix_adapters_sha256", "adapters", ["sha256"])
    op.create_table(
        "adapter_reports",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("adapter_id", KEY, nullable=False),
        sa.Column("frontend", KEY, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("reported_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "adapter_id"],
            ["adapters.project", "adapters.id"],
            name="fk_adapter_reports_project_adapter_id_adapters",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "adapter_id", "frontend", name="pk_adapter_reports"),
    )
    op.create_index("ix_adapter_reports_frontend", "adapter_reports", ["frontend"])


def downgrade() -> None:
    """Back: adapters are lost; their bytes stay until a sweeper finds them."""
    for table in ("adapter_reports", "adapters", "counters"):
        op.drop_table(table)
