"""What a holder has used of a rate, and which of its calls that was."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COLUMNS = ("used", "number")


def upgrade() -> None:
    """Add the columns. Control services of the previous release leave them 0."""
    for name in COLUMNS:
        op.add_column(
            "limit_shares",
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        )


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("limit_shares") as shares:
        for name in COLUMNS:
            shares.drop_column(name)
