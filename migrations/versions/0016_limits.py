"""Limits, their buckets and shares; usage by key, and its cost; the key that caused a job.

Usage that was reported before has no key and no cost. Processes of the previous release can run
beside it; what they report has no key.
"""

# ruff: noqa: S608  (names of the schema)

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def upgrade() -> None:
    """Create the tables, and rebuild the table of usage, whose primary key changes."""
    op.create_table(
        "limits",
        sa.Column("id", KEY, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("per", sa.String(64), nullable=False),
        sa.Column("unit", sa.String(32), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("period", sa.String(16)),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_limits"),
    )
    op.create_table(
        "limit_buckets",
        sa.Column("limit_id", KEY, nullable=False),
        sa.Column("bucket", TEXT, nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("limit_id", "bucket", name="pk_limit_buckets"),
    )
    op.create_index("ix_limit_buckets_updated_at", "limit_buckets", ["updated_at"])
    op.create_table(
        "limit_shares",
        sa.Column("limit_id", KEY, nullable=False),
        sa.Column("bucket", TEXT, nullable=False),
        sa.Column("holder", KEY, nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("limit_id", "bucket", "holder", name="pk_limit_shares"),
    )
    op.create_index("ix_limit_shares_expires_at", "limit_shares", ["expires_at"])
    key = sa.Column("key", TEXT, nullable=False, server_default=sa.text("''"))
    cost = sa.Column("cost_nanos", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    _rebuild_usage([key], [cost], ("project", "key", "model", "hour"))
    caller = sa.Column("caller_key", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("jobs", caller)


def downgrade() -> None:
    """Drop the tables and columns. The usage of all keys is summed."""
    op.drop_column("jobs", "caller_key")
    for table in ("limit_shares", "limit_buckets", "limits"):
        op.drop_table(table)
    _rebuild_usage([], [], ("project", "model", "hour"))


def _rebuild_usage(
    keys: Sequence[sa.Column[str]],
    costs: Sequence[sa.Column[int]],
    primary_key: Sequence[str],
) -> None:
    """Copy the table of usage to one with other columns."""
    op.rename_table("usage", "usage_old")
    op.drop_index("ix_usage_hour", table_name="usage_old")
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE usage_old DROP CONSTRAINT pk_usage")
    op.create_table(
        "usage",
        sa.Column("project", TEXT, nullable=False),
        *keys,
        sa.Column("model", TEXT, nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("day", INSTANT, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        *costs,
        sa.PrimaryKeyConstraint(*primary_key, name="pk_usage"),
    )
    columns = ["project", "model", "hour", "day", *COUNTS]
    sums = [f"sum({name})" for name in COUNTS]
    op.execute(
        f"INSERT INTO usage ({', '.join(columns)})"
        f" SELECT {', '.join([*columns[:4], *sums])} FROM usage_old"
        " GROUP BY project, model, hour, day"
    )
    op.drop_table("usage_old")
    op.create_index("ix_usage_hour", "usage", ["hour"])
