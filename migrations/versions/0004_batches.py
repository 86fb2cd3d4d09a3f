"""Batches and their lines.

New tables alone: the release before this one runs on them as on its own schema.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "batches",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", KEY, nullable=False),
        sa.Column("window", sa.Interval(), nullable=False),
        sa.Column("output_ttl", sa.Interval()),
        sa.Column("attached", sa.LargeBinary(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("problems", sa.LargeBinary(), nullable=False),
        *(
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("total", "completed", "failed")
        ),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in TOKENS),
        sa.Column("output_file_id", KEY),
        sa.Column("error_file_id", KEY),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("in_progress_at", INSTANT),
        sa.Column("finalizing_at", INSTANT),
        sa.Column("completed_at", INSTANT),
        sa.Column("failed_at", INSTANT),
        sa.Column("expired_at", INSTANT),
        sa.Column("cancelling_at", INSTANT),
        sa.Column("cancelled_at", INSTANT),
        sa.PrimaryKeyConstraint("project", "id", name="pk_batches"),
    )
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_table(
        "batch_lines",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("batch_id", KEY, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.LargeBinary(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("result", sa.LargeBinary()),
        sa.Column("engine_deaths", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in TOKENS),
        sa.ForeignKeyConstraint(
            ["project", "batch_id"],
            ["batches.project", "batches.id"],
            name="fk_batch_lines_project_batch_id_batches",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "batch_id", "number", name="pk_batch_lines"),
    )
    op.create_index(
        "ix_batch_lines_project_batch_id_state_place_number",
        "batch_lines",
        ["project", "batch_id", "state", "place", "number"],
    )


def downgrade() -> None:
    """Back: batches are lost; files that they wrote stay."""
    op.drop_table("batch_lines")
    op.drop_table("batches")
