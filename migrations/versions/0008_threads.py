"""Assistants, threads and messages."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "assistants",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("options", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_assistants"),
    )
    op.create_table(
        "threads",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("active_run_id", KEY, nullable=True),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_threads"),
    )
    op.create_table(
        "messages",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("thread_id", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("assistant_id", KEY, nullable=True),
        sa.Column("run_id", KEY, nullable=True),
        sa.Column("attachments", sa.LargeBinary(), nullable=False),
        sa.Column("attached", sa.LargeBinary(), nullable=False),
        sa.Column("completed_at", INSTANT, nullable=True),
        sa.Column("incomplete_at", INSTANT, nullable=True),
        sa.Column("incomplete_reason", sa.String(16), nullable=True),
        sa.PrimaryKeyConstraint("project", "thread_id", "id", name="pk_messages"),
        sa.ForeignKeyConstraint(
            ["project", "thread_id"],
            ["threads.project", "threads.id"],
            name="fk_messages_project_thread_id_threads",
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    """Back: assistants, threads and messages are lost; what was said in them stays as items."""
    op.drop_table("messages")
    op.drop_table("threads")
    op.drop_table("assistants")
