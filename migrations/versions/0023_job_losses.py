"""How often in a row the process of a job has died."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column. Attempts before are counted in `attempt`."""
    op.add_column("jobs", sa.Column("num_lost", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("num_lost")
