"""Tables of vector stores, their files, batches of files and chunks."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow

_PRESENT = "state != 'deleted'"


class VectorStoreRow(ObjectRow):
    __tablename__ = "vector_stores"

    # set by the caller
    name: Mapped[str] = mapped_column(sa.Text)
    description: Mapped[str] = mapped_column(sa.Text)
    attached: Mapped[Document]
    life_days: Mapped[int | None] = mapped_column(sa.Integer)
    # sums over its files
    in_progress: Mapped[int] = mapped_column(sa.Integer)
    completed: Mapped[int] = mapped_column(sa.Integer)
    failed: Mapped[int] = mapped_column(sa.Integer)
    cancelled: Mapped[int] = mapped_column(sa.Integer)
    num_chunks: Mapped[int] = mapped_column(sa.BigInteger)
    usage_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    # embedding
    embedding_model: Mapped[str] = mapped_column(sa.Text)
    embedding_digest: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("''"))
    dimensions: Mapped[int] = mapped_column(sa.Integer)
    revision: Mapped[int] = mapped_column(sa.BigInteger)
    # timestamps
    created_at: Mapped[datetime] = mapped_column(Instant)
    active_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant, index=True)


class StoreFileRow(OwnedRow):
    """A file in a vector store. Rows of deleted files remain until their chunks are swept.

    There are no foreign keys, because stores and files are deleted before these rows.
    """

    __tablename__ = "vector_store_files"
    __table_args__ = (
        sa.Index(None, "project", "store_id", "entry"),
        sa.Index(None, "project", "batch_id"),
        sa.Index(None, "project", "file_id"),
        sa.Index(None, "state"),
        sa.Index(
            "uq_vector_store_files_present",
            "project",
            "store_id",
            "file_id",
            unique=True,
            sqlite_where=sa.text(_PRESENT),
            postgresql_where=sa.text(_PRESENT),
        ),
    )

    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    store_id: Mapped[str] = mapped_column(Key)
    file_id: Mapped[str] = mapped_column(Key)
    batch_id: Mapped[str | None] = mapped_column(Key)
    # set by the caller
    attached: Mapped[Document]
    max_tokens: Mapped[int] = mapped_column(sa.Integer)
    overlap_tokens: Mapped[int] = mapped_column(sa.Integer)
    # state
    state: Mapped[str] = mapped_column(sa.String(16))
    problem_code: Mapped[str | None] = mapped_column(sa.String(32))
    problem_message: Mapped[str | None] = mapped_column(sa.Text)
    num_chunks: Mapped[int] = mapped_column(sa.Integer)
    usage_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)


class FileBatchRow(ObjectRow):
    """Files that were added to a vector store together."""

    __tablename__ = "vector_store_batches"

    store_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant)
    cancelled_at: Mapped[datetime | None] = mapped_column(Instant)


class ChunkRow(OwnedRow):
    """A chunk of a file in a vector store. `search/chunk_index.py` has its index."""

    __tablename__ = "vector_chunks"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "entry"],
            ["vector_store_files.project", "vector_store_files.entry"],
            ondelete="CASCADE",
        ),
    )

    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(sa.Text)
    vector: Mapped[bytes] = mapped_column(sa.LargeBinary)  # little-endian float16, normalized
