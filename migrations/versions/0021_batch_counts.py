"""How many lines of a batch did not run."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column. It is 0 for batches that have ended already."""
    op.add_column("batches", sa.Column("not_run", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("batches") as batches:
        batches.alter_column("not_run", server_default=None)


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("batches") as batches:
        batches.drop_column("not_run")
