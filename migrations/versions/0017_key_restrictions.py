"""What restricts an API key: models and networks; and its secret before the last rotation.

Processes of the previous release can run beside it; they ignore the restrictions.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the columns. Keys that exist have no restrictions."""
    for name in ("models", "networks"):
        empty = sa.text("''")
        op.add_column("api_keys", sa.Column(name, sa.Text(), nullable=False, server_default=empty))
    op.add_column("api_keys", sa.Column("rotated_at", INSTANT))
    op.add_column("api_keys", sa.Column("old_sha256", sa.String(64)))
    op.add_column("api_keys", sa.Column("old_expires_at", INSTANT))
    op.create_index("ix_api_keys_old_sha256", "api_keys", ["old_sha256"], unique=True)


def downgrade() -> None:
    """Drop the columns. Keys with restrictions or newer scopes are revoked."""
    op.execute(
        "UPDATE api_keys SET revoked_at = CURRENT_TIMESTAMP"
        " WHERE revoked_at IS NULL AND (models <> '' OR networks <> '')"
    )
    op.execute(
        "UPDATE api_keys SET scopes = 'inference',"
        " revoked_at = coalesce(revoked_at, CURRENT_TIMESTAMP)"
        " WHERE scopes NOT IN ('inference', 'admin', 'admin,inference')"
    )
    op.drop_index("ix_api_keys_old_sha256", table_name="api_keys")
    for name in ("old_expires_at", "old_sha256", "rotated_at", "networks", "models"):
        op.drop_column("api_keys", name)
