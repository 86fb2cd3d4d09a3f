"""Responses."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "responses",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=False),
        sa.Column("options", sa.LargeBinary(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("effective_options", sa.LargeBinary(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("previous_id", KEY, nullable=False),
        sa.Column("conversation_id", KEY, nullable=False),
        sa.Column("conversation_end", sa.BigInteger(), nullable=False),
        sa.Column("context_start", KEY, nullable=False),
        sa.Column("is_compacted", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("work", sa.LargeBinary(), nullable=False),
        sa.Column("ending", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("completed_at", INSTANT, nullable=True),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("project", "id", name="pk_responses"),
    )
    op.create_index("ix_responses_project_previous_id", "responses", ["project", "previous_id"])
    op.create_index("ix_responses_expires_at", "responses", ["expires_at"])


def downgrade() -> None:
    """Back: what was answered is lost, but for what conversations have of it."""
    op.drop_table("responses")
