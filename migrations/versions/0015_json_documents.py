"""Documents as JSON: TEXT on SQLite, JSONB on PostgreSQL.

Rows are not changed here, whatever their number: the control service converts them while it runs,
as `control_svc/db/documents.py` says. Processes of the previous release cannot run beside it.
"""

# ruff: noqa: S608  (names of the schema)

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

DOCUMENTS = {
    "assistants": ["document"],
    "batches": ["attached", "problems"],
    "conversations": ["attached"],
    "items": ["document"],
    "messages": ["attachments", "attached"],
    "responses": ["settings", "work", "ending"],
    "run_steps": ["document"],
    "runs": ["settings", "document"],
    "threads": ["document"],
    "vector_store_files": ["attached"],
    "vector_stores": ["attached"],
}
UNESCAPE = r"'(?<!\\)((?:\\\\)*)\\u0001', '\1\\u', 'g'"


def upgrade() -> None:
    """Declare the columns, and list the tables with rows to convert."""
    op.create_table(
        "document_conversions",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("last_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_document_conversions"),
    )
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for table, columns in DOCUMENTS.items():
        op.execute(
            f"INSERT INTO document_conversions SELECT '{table}', '[]'"
            f" WHERE EXISTS (SELECT 1 FROM {table})"
        )
        for column in columns:
            if is_sqlite:
                _redeclare(table, f"{column} BLOB NOT NULL", f"{column} TEXT")
            else:
                op.alter_column(table, column, new_column_name=f"{column}_old", nullable=True)
                op.add_column(table, sa.Column(column, JSONB()))


def downgrade() -> None:
    """Convert all rows back."""
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for table, columns in DOCUMENTS.items():
        for column in columns:
            if is_sqlite:
                op.execute(f"UPDATE {table} SET {column} = CAST({column} AS BLOB)")
                _redeclare(table, f"{column} TEXT", f"{column} BLOB NOT NULL")
                continue
            text = f"regexp_replace({column}::text, {UNESCAPE})"
            op.execute(
                f"UPDATE {table} SET {column}_old = convert_to({text}, 'UTF8')"
                f" WHERE {column} IS NOT NULL"
            )
            op.drop_column(table, column)
            op.alter_column(table, f"{column}_old", new_column_name=column, nullable=False)
    op.drop_table("document_conversions")


def _redeclare(table: str, old: str, new: str) -> None:
    """Change the declaration of a column on SQLite, which has values of any type in any column.

    `ALTER TABLE` cannot do so. The change is one of those that need no new table:
    https://www.sqlite.org/lang_altertable.html#otheralter
    """
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.execute(
        sa.text(
            "UPDATE sqlite_schema SET sql = replace(sql, :old, :new)"
            " WHERE type = 'table' AND name = :table AND instr(sql, :old)"
        ),
        {"table": table, "old": old, "new": new},
    )
    if changed.rowcount != 1:
        raise RuntimeError(f"the table {table} has no column declared as {old}")
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")  # off, and reads the schema again
