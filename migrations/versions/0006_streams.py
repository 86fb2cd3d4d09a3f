"""Event streams and their chunks."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "streams",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("next_number", sa.BigInteger(), nullable=False),
        sa.Column("num_chunks", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("project", "id", name="pk_streams"),
    )
    op.create_index("ix_streams_state_ended_at", "streams", ["state", "ended_at"])
    op.create_table(
        "stream_chunks",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("stream_id", KEY, nullable=False),
        sa.Column("past", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("num_events", sa.Integer(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "stream_id"],
            ["streams.project", "streams.id"],
            name="fk_stream_chunks_project_stream_id_streams",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "project", "stream_id", "past", "position", name="pk_stream_chunks"
        ),
    )


def downgrade() -> None:
    """Back: what is under way cannot be followed any more."""
    for table in ("stream_chunks", "streams"):
        op.drop_table(table)
