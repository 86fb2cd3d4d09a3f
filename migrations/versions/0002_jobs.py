"""Jobs.

A new table; a release that does not know it goes on without it.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
UNFINISHED = sa.text("state IN ('queued', 'running')")


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "jobs",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", KEY, nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("run_after", INSTANT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("num_postponed", sa.Integer(), nullable=False),
        sa.Column("engine_deaths", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", KEY),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("heartbeat_at", INSTANT),
        sa.Column("error_reason", sa.String(64)),
        sa.Column("error_message", sa.Text()),
        sa.PrimaryKeyConstraint("project", "id", name="pk_jobs"),
    )
    op.create_index(
        "ix_jobs_state_kind_priority_run_after", "jobs", ["state", "kind", "priority", "run_after"]
    )
    op.create_index("ix_jobs_lease_owner", "jobs", ["lease_owner"])
    op.create_index(
        "uq_jobs_unfinished",
        "jobs",
        ["project", "kind", "subject"],
        unique=True,
        sqlite_where=UNFINISHED,
        postgresql_where=UNFINISHED,
    )


def downgrade() -> None:
    """Back: work that was not done is forgotten."""
    op.drop_table("jobs")
