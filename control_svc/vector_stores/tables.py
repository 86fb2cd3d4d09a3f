"""Tables of vector stores, their files, batches of files and chunks."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.db.documents import Document
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow

_PRESENT = "state != 'deleted'"


class VectorStoreRow(ObjectRow):
    __tablename__ = "vector_stores"

    # set by the caller
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    attached: Mapped[Document]
    life_days: Mapped[int | None] = mapped_column(Integer)
    # sums over its files
    in_progress: Mapped[int] = mapped_column(Integer)
    completed: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    cancelled: Mapped[int] = mapped_column(Integer)
    num_chunks: Mapped[int] = mapped_column(BigInteger)
    usage_bytes: Mapped[int] = mapped_column(BigInteger)
    # embedding
    embedding_model: Mapped[str] = mapped_column(Text)
    embedding_digest: Mapped[str] = mapped_column(Text, server_default=text("''"))
    dimensions: Mapped[int] = mapped_column(Integer)
    revision: Mapped[int] = mapped_column(BigInteger)
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
        Index(None, "project", "store_id", "entry"),
        Index(None, "project", "batch_id"),
        Index(None, "project", "file_id"),
        Index(None, "state"),
        Index(
            "uq_vector_store_files_present",
            "project",
            "store_id",
            "file_id",
            unique=True,
            sqlite_where=text(_PRESENT),
            postgresql_where=text(_PRESENT),
        ),
    )

    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    store_id: Mapped[str] = mapped_column(Key)
    file_id: Mapped[str] = mapped_column(Key)
    batch_id: Mapped[str | None] = mapped_column(Key)
    # set by the caller
    attached: Mapped[Document]
    max_tokens: Mapped[int] = mapped_column(Integer)
    overlap_tokens: Mapped[int] = mapped_column(Integer)
    # state
    state: Mapped[str] = mapped_column(String(16))
    problem_code: Mapped[str | None] = mapped_column(String(32))
    problem_message: Mapped[str | None] = mapped_column(Text)
    num_chunks: Mapped[int] = mapped_column(Integer)
    usage_bytes: Mapped[int] = mapped_column(BigInteger)
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
        ForeignKeyConstraint(
            ["project", "entry"],
            ["vector_store_files.project", "vector_store_files.entry"],
            ondelete="CASCADE",
        ),
    )

    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(Text)
    vector: Mapped[bytes] = mapped_column(LargeBinary)  # little-endian float16, normalized
