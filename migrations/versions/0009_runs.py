"""Runs and their steps."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "runs",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("thread_id", KEY, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_runs"),
        sa.ForeignKeyConstraint(
            ["project", "thread_id"],
            ["threads.project", "threads.id"],
            name="fk_runs_project_thread_id_threads",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_runs_project_thread_id_id", "runs", ["project", "thread_id", "id"])
    op.create_table(
        "run_steps",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("project", "run_id", "id", name="pk_run_steps"),
        sa.ForeignKeyConstraint(
            ["project", "run_id"],
            ["runs.project", "runs.id"],
            name="fk_run_steps_project_run_id_runs",
            ondelete="CASCADE",
        ),
    )

    op.create_index(
        "ix_timeline_items_project_timeline_origin_position",
        "timeline_items",
        ["project", "timeline", "origin", "position"],
    )


def downgrade() -> None:
    """Back: runs are lost; what they wrote stays in their threads."""
    op.drop_index("ix_timeline_items_project_timeline_origin_position", table_name="timeline_items")
    op.drop_table("run_steps")
    op.drop_table("runs")
