"""Projects, API keys, usage and the reports that were added to it.

New tables only: the release before does not see them.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward; the default project comes with the start of the service."""
    op.create_table(
        "projects",
        sa.Column("id", KEY, nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("archived_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", KEY, nullable=False),
        sa.Column("project", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("priority", sa.String(16), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("last_used_at", INSTANT),
        sa.Column("revoked_at", INSTANT),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_api_keys_project_projects"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("sha256", name="uq_api_keys_sha256"),
    )
    op.create_index("ix_api_keys_project_id", "api_keys", ["project", "id"])
    op.create_table(
        "usage",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("model", PROJECT, nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("day", INSTANT, nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "model", "hour", name="pk_usage"),
    )
    op.create_index("ix_usage_hour", "usage", ["hour"])
    op.create_table(
        "usage_reports",
        sa.Column("id", KEY, nullable=False),
        sa.Column("added_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_reports"),
    )
    op.create_index("ix_usage_reports_added_at", "usage_reports", ["added_at"])


def downgrade() -> None:
    """Back: keys of the database stop to work, and what was used is forgotten."""
    for table in ("usage_reports", "usage", "api_keys", "projects"):
        op.drop_table(table)
