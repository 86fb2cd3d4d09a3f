"""Which file the vectors of a store are of."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Forward: stores that are there learn it with their next file."""
    digest = sa.Column("embedding_digest", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("vector_stores", digest)


def downgrade() -> None:
    """Back: models are told apart by their names again."""
    with op.batch_alter_table("vector_stores") as table:
        table.drop_column("embedding_digest")
