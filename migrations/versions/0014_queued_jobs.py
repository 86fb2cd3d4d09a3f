"""An index by which a claim finds the oldest job of each project."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Create the partial index over queued jobs."""
    queued = sa.text("state = 'queued'")
    op.create_index(
        "ix_jobs_queued",
        "jobs",
        ["kind", "priority", "project", "run_after", "id"],
        sqlite_where=queued,
        postgresql_where=queued,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_jobs_queued", table_name="jobs")
