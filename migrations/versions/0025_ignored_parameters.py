"""The parameters of responses and runs that the model does not honour."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None
_TABLES = ("responses", "runs")


def upgrade() -> None:
    """Add the columns, JSON arrays of names."""
    for table in _TABLES:
        column = sa.Column("ignored_parameters", sa.Text(), nullable=False, server_default="[]")
        op.add_column(table, column)


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        with op.batch_alter_table(table) as changed:
            changed.drop_column("ignored_parameters")
