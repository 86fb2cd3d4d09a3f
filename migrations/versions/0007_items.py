"""Items and their timelines."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "items",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name="pk_items"),
    )
    op.create_table(
        "timeline_items",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("timeline", KEY, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("item_id", KEY, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("age", KEY, nullable=False),
        sa.Column("origin", KEY, nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "item_id"],
            ["items.project", "items.id"],
            name="fk_timeline_items_project_item_id_items",
        ),
        sa.PrimaryKeyConstraint("project", "timeline", "position", name="pk_timeline_items"),
        sa.UniqueConstraint(
            "project", "item_id", "timeline", name="uq_timeline_items_project_item_id_timeline"
        ),
    )
    op.create_index(
        "ix_timeline_items_project_timeline_kind_position",
        "timeline_items",
        ["project", "timeline", "kind", "position"],
    )
    op.create_index(
        "ix_timeline_items_project_timeline_age", "timeline_items", ["project", "timeline", "age"]
    )


def downgrade() -> None:
    """Back: what was said is lost."""
    op.drop_table("timeline_items")
    op.drop_table("items")
