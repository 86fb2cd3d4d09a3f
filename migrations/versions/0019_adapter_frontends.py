"""The inference frontends, with the revision of the desired adapters that each has followed.

Frontends of the previous release report no revision.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "adapter_frontends",
        sa.Column("frontend", KEY, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("frontend", name="pk_adapter_frontends"),
    )
    op.create_index("ix_adapter_frontends_reported_at", "adapter_frontends", ["reported_at"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("adapter_frontends")
