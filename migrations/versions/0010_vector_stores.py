"""Vector stores, and what finds their passages.

The index of passages is made of what each database has: FTS5 on SQLite; text search vectors on
PostgreSQL, and pgvector's column beside them where that extension can be had. Where it cannot,
vectors are searched in the control service's memory.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KEY = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
PROJECT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
PRESENT = sa.text("state != 'deleted'")
COUNTS = ("in_progress", "completed", "failed", "cancelled")
HAS_PGVECTOR = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"


def upgrade() -> None:
    """Forward."""
    _make_stores()
    _make_files()
    op.create_table(
        "vector_store_batches",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("store_id", KEY, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("cancelled_at", INSTANT),
        sa.PrimaryKeyConstraint("project", "id", name="pk_vector_store_batches"),
    )
    op.create_table(
        "vector_chunks",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("entry", KEY, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "entry"],
            ["vector_store_files.project", "vector_store_files.entry"],
            name="fk_vector_chunks_project_entry_vector_store_files",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "entry", "number", name="pk_vector_chunks"),
    )
    if op.get_bind().dialect.name == "sqlite":
        _make_sqlite_index()
    else:
        _make_postgres_index()


def _make_stores() -> None:
    op.create_table(
        "vector_stores",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("id", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("attached", sa.LargeBinary(), nullable=False),
        sa.Column("life_days", sa.Integer()),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in COUNTS),
        sa.Column("num_chunks", sa.BigInteger(), nullable=False),
        sa.Column("usage_bytes", sa.BigInteger(), nullable=False),
        sa.Column("embedding_model", sa.Text(), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("active_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.PrimaryKeyConstraint("project", "id", name="pk_vector_stores"),
    )
    op.create_index("ix_vector_stores_expires_at", "vector_stores", ["expires_at"])


def _make_files() -> None:
    op.create_table(
        "vector_store_files",
        sa.Column("project", PROJECT, nullable=False),
        sa.Column("entry", KEY, nullable=False),
        sa.Column("store_id", KEY, nullable=False),
        sa.Column("file_id", KEY, nullable=False),
        sa.Column("batch_id", KEY),
        sa.Column("attached", sa.LargeBinary(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("overlap_tokens", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("problem_code", sa.String(32)),
        sa.Column("problem_message", sa.Text()),
        sa.Column("num_chunks", sa.Integer(), nullable=False),
        sa.Column("usage_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("project", "entry", name="pk_vector_store_files"),
    )
    for columns in (["project", "store_id", "entry"], ["project", "batch_id"], ["state"]):
        name = "_".join(["ix_vector_store_files", *columns])
        op.create_index(name, "vector_store_files", columns)
    op.create_index(
        "ix_vector_store_files_project_file_id", "vector_store_files", ["project", "file_id"]
    )
    op.create_index(
        "uq_vector_store_files_present",
        "vector_store_files",
        ["project", "store_id", "file_id"],
        unique=True,
        sqlite_where=PRESENT,
        postgresql_where=PRESENT,
    )


def _make_sqlite_index() -> None:
    op.execute(
        "CREATE VIRTUAL TABLE vector_chunk_index USING fts5("
        "store, entry, number UNINDEXED, words, tokenize = \"ascii tokenchars '_-'\")"
    )


def _make_postgres_index() -> None:
    op.execute(
        'CREATE TABLE vector_chunk_index (entry varchar(64) COLLATE "C" NOT NULL,'
        " number integer NOT NULL, words tsvector NOT NULL,"
        " CONSTRAINT pk_vector_chunk_index PRIMARY KEY (entry, number))"
    )
    op.execute("CREATE INDEX ix_vector_chunk_index_words ON vector_chunk_index USING gin (words)")
    if _can_have_pgvector():
        op.execute("ALTER TABLE vector_chunk_index ADD COLUMN embedding vector")


def _can_have_pgvector() -> bool:
    """Whether the extension is there, or this role may create it."""
    connection = op.get_bind()
    if not connection.execute(sa.text(HAS_PGVECTOR)).first():
        return False
    try:
        with connection.begin_nested():
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector"))
    except sa.exc.DBAPIError:  # only a superuser may
        return False
    return True


def downgrade() -> None:
    """Back: stores are lost; their files stay. The extension stays too: others may use it."""
    op.drop_table("vector_chunk_index")
    op.drop_table("vector_chunks")
    op.drop_table("vector_store_batches")
    op.drop_table("vector_store_files")
    op.drop_table("vector_stores")
