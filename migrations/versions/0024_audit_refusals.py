"""Refused calls in the audit log."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column. Its default stays: a table that is copied would lose its triggers."""
    op.add_column(
        "audit_events", sa.Column("refusal", sa.Text(), nullable=False, server_default="")
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("audit_events", "refusal")
