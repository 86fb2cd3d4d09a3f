"""The audit log, whose rows cannot be changed or deleted."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
TEXTS = ("actor", "project", "method", "target", "request", "address", "request_id")
REFUSAL = "audit_events cannot be changed or deleted"


def upgrade() -> None:
    """Create the table and the triggers."""
    op.create_table(
        "audit_events",
        sa.Column("id", KEY, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in TEXTS),
        sa.PrimaryKeyConstraint("id", name="pk_audit_events"),
    )
    for name in ("actor", "target"):
        op.create_index(f"ix_audit_events_{name}_id", "audit_events", [name, "id"])
    if op.get_context().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_events_no_{event.lower()} BEFORE {event} ON audit_events"
                f" BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_events_no_change BEFORE UPDATE OR DELETE ON audit_events"
        " FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
    )


def downgrade() -> None:
    """Drop the table with its triggers."""
    op.drop_table("audit_events")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change()")
