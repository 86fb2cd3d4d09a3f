"""The tables. Migrations make them; these classes are what the queries are written with.

Rows never leave the repositories. Everything that callers keep belongs to a project, which leads
its primary key: a query that forgot it would not find its index, and a child cannot name a parent
of another one. What operators look after (projects, keys) and what the house keeps has none.
Ids grow with time, so the primary key also orders a project's lists.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""A name for every constraint, so that a migration can drop what an earlier one made."""


class Instant(TypeDecorator[datetime]):
    """A time with its zone. SQLite has no zones: there it is UTC, and gets its zone back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """From UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


# Ids and keys are ordered by their bytes, as in SQLite; a database's own language may differ.
Key = String(64).with_variant(String(64, collation="C"), "postgresql")
UNFINISHED_JOB = "state IN ('queued', 'running')"
PRESENT_FILE = "state != 'deleted'"
Project = Text().with_variant(Text(collation="C"), "postgresql")


class Table(DeclarativeBase):
    """The root of all tables."""

    metadata = MetaData(naming_convention=NAMING)


class FileRow(Table):
    """A file; its bytes are in the blob store before the row is here."""

    __tablename__ = "files"
    __table_args__ = (Index(None, "project", "purpose", "id"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    filename: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str] = mapped_column(String(32))
    # its bytes
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    blob_key: Mapped[str] = mapped_column(Key, unique=True)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant, index=True)


class UploadRow(Table):
    """A file that comes in parts."""

    __tablename__ = "uploads"
    __table_args__ = (Index(None, "state", "expires_at"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    filename: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str] = mapped_column(String(32))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    mime_type: Mapped[str] = mapped_column(Text)
    ttl: Mapped[timedelta | None] = mapped_column(Interval)
    # its life
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant)
    # what it has become; no foreign key, because the file may be deleted and the upload stays
    file_id: Mapped[str | None] = mapped_column(Key)
    completion: Mapped[str] = mapped_column(String(64))


class UploadPartRow(Table):
    """A part of an upload that is still pending."""

    __tablename__ = "upload_parts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "upload_id"], ["uploads.project", "uploads.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    upload_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str] = mapped_column(Key, unique=True)
    created_at: Mapped[datetime] = mapped_column(Instant)


class BatchRow(Table):
    """A file of requests that run when there is time."""

    __tablename__ = "batches"
    __table_args__ = (Index(None, "state"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(Key)
    window: Mapped[timedelta] = mapped_column(Interval)
    output_ttl: Mapped[timedelta | None] = mapped_column(Interval)
    attached: Mapped[bytes] = mapped_column(LargeBinary)  # its metadata, a name that is taken here
    # what its file says
    model: Mapped[str] = mapped_column(Text)
    problems: Mapped[bytes] = mapped_column(LargeBinary)
    # sums over its lines
    total: Mapped[int] = mapped_column(Integer)
    completed: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
    # what it has become; no foreign keys, because the files may be deleted and the batch stays
    output_file_id: Mapped[str | None] = mapped_column(Key)
    error_file_id: Mapped[str | None] = mapped_column(Key)
    # its life
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant)
    in_progress_at: Mapped[datetime | None] = mapped_column(Instant)
    finalizing_at: Mapped[datetime | None] = mapped_column(Instant)
    completed_at: Mapped[datetime | None] = mapped_column(Instant)
    failed_at: Mapped[datetime | None] = mapped_column(Instant)
    expired_at: Mapped[datetime | None] = mapped_column(Instant)
    cancelling_at: Mapped[datetime | None] = mapped_column(Instant)
    cancelled_at: Mapped[datetime | None] = mapped_column(Instant)


class BatchLineRow(Table):
    """A request of a batch, from the check of its file until its answer is in another file."""

    __tablename__ = "batch_lines"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "batch_id"], ["batches.project", "batches.id"], ondelete="CASCADE"
        ),
        Index(None, "project", "batch_id", "state", "place", "number"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    batch_id: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    place: Mapped[bytes] = mapped_column(LargeBinary)  # lines run in this order
    request: Mapped[bytes] = mapped_column(LargeBinary)
    # how it ended
    state: Mapped[str] = mapped_column(String(16))
    result: Mapped[bytes | None] = mapped_column(LargeBinary)
    engine_deaths: Mapped[int] = mapped_column(Integer)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)


class VectorStoreRow(Table):
    """Files whose text can be searched."""

    __tablename__ = "vector_stores"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    attached: Mapped[bytes] = mapped_column(LargeBinary)
    life_days: Mapped[int | None] = mapped_column(Integer)
    # sums over its files
    in_progress: Mapped[int] = mapped_column(Integer)
    completed: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    cancelled: Mapped[int] = mapped_column(Integer)
    num_chunks: Mapped[int] = mapped_column(BigInteger)
    usage_bytes: Mapped[int] = mapped_column(BigInteger)
    # its vectors
    embedding_model: Mapped[str] = mapped_column(Text)
    dimensions: Mapped[int] = mapped_column(Integer)
    revision: Mapped[int] = mapped_column(BigInteger)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    active_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant, index=True)


class StoreFileRow(Table):
    """A file in a vector store; what is deleted stays until its passages are swept.

    Neither the store nor the file is a foreign key: both go at once, and this afterwards.
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
            sqlite_where=text(PRESENT_FILE),
            postgresql_where=text(PRESENT_FILE),
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    store_id: Mapped[str] = mapped_column(Key)
    file_id: Mapped[str] = mapped_column(Key)
    batch_id: Mapped[str | None] = mapped_column(Key)
    # what its owner says
    attached: Mapped[bytes] = mapped_column(LargeBinary)
    max_tokens: Mapped[int] = mapped_column(Integer)
    overlap_tokens: Mapped[int] = mapped_column(Integer)
    # its life
    state: Mapped[str] = mapped_column(String(16))
    problem_code: Mapped[str | None] = mapped_column(String(32))
    problem_message: Mapped[str | None] = mapped_column(Text)
    num_chunks: Mapped[int] = mapped_column(Integer)
    usage_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)


class FileBatchRow(Table):
    """Files that were put into a vector store together."""

    __tablename__ = "vector_store_batches"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    store_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant)
    cancelled_at: Mapped[datetime | None] = mapped_column(Instant)


class ChunkRow(Table):
    """A passage of a file in a vector store; `chunk_index` is what finds it."""

    __tablename__ = "vector_chunks"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "entry"],
            ["vector_store_files.project", "vector_store_files.entry"],
            ondelete="CASCADE",
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    entry: Mapped[str] = mapped_column(Key, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(Text)
    vector: Mapped[bytes] = mapped_column(LargeBinary)  # float16, little-endian, of length 1


class ItemRow(Table):
    """What was said or done: a document. Timelines say where."""

    __tablename__ = "items"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    document: Mapped[bytes] = mapped_column(LargeBinary)


class TimelineItemRow(Table):
    """An item's place in the past of a thread, a conversation or a response."""

    __tablename__ = "timeline_items"
    __table_args__ = (
        ForeignKeyConstraint(["project", "item_id"], ["items.project", "items.id"]),
        UniqueConstraint("project", "item_id", "timeline"),
        Index(None, "project", "timeline", "kind", "position"),
        Index(None, "project", "timeline", "origin", "position"),
        Index(None, "project", "timeline", "age"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    timeline: Mapped[str] = mapped_column(Key, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    item_id: Mapped[str] = mapped_column(Key)
    # of the item, for lists
    kind: Mapped[str] = mapped_column(String(32))
    age: Mapped[str] = mapped_column(Key)  # its id without the prefix: ids grow with time
    origin: Mapped[str] = mapped_column(Key)  # the run or response that made it; empty: a caller


class ConversationRow(Table):
    """A conversation; its items are in the timeline of the same id, and this row is its lock."""

    __tablename__ = "conversations"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    attached: Mapped[bytes] = mapped_column(LargeBinary)  # its metadata, a name that is taken here
    writer: Mapped[str] = mapped_column(Key)  # the response that is going to add to it, or empty
    created_at: Mapped[datetime] = mapped_column(Instant)


class RequestRow(Table):
    """A request with an id of the caller's, remembered so that it is carried out once."""

    __tablename__ = "requests"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    method: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    resource_id: Mapped[str] = mapped_column(Key)
    created_at: Mapped[datetime] = mapped_column(Instant, index=True)


class JobRow(Table):
    """Work that outlives the call which asked for it."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "kind", "priority", "run_after"),
        Index(None, "lease_owner"),
        Index(
            "uq_jobs_unfinished",
            "project",
            "kind",
            "subject",
            unique=True,
            sqlite_where=text(UNFINISHED_JOB),
            postgresql_where=text(UNFINISHED_JOB),
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what it is for
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(Key)
    priority: Mapped[int] = mapped_column(SmallInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    # where it is
    state: Mapped[str] = mapped_column(String(16))
    run_after: Mapped[datetime] = mapped_column(Instant)
    attempt: Mapped[int] = mapped_column(Integer)
    num_postponed: Mapped[int] = mapped_column(Integer)
    engine_deaths: Mapped[int] = mapped_column(Integer)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(Instant)
    ended_at: Mapped[datetime | None] = mapped_column(Instant)
    # who has it
    fence: Mapped[int] = mapped_column(BigInteger)
    lease_owner: Mapped[str | None] = mapped_column(Key)
    lease_expires_at: Mapped[datetime | None] = mapped_column(Instant)
    heartbeat_at: Mapped[datetime | None] = mapped_column(Instant)
    # why its last attempt failed
    error_reason: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)


class ProjectRow(Table):
    """A project. Objects name theirs without a foreign key: it may be known to settings alone."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    display_name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    archived_at: Mapped[datetime | None] = mapped_column(Instant)


class ApiKeyRow(Table):
    """What is kept of an API key. Operators look after all of them: the project does not lead."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["project"], ["projects.id"]),
        Index(None, "project", "id"),
    )

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    project: Mapped[str] = mapped_column(Key)
    # what an operator says
    name: Mapped[str] = mapped_column(Text)
    scopes: Mapped[str] = mapped_column(Text)
    priority: Mapped[str] = mapped_column(String(16))
    # the key
    prefix: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    # its life
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)


class UsageRow(Table):
    """What a project used of a model within an hour."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "hour"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    model: Mapped[str] = mapped_column(Project, primary_key=True)
    hour: Mapped[datetime] = mapped_column(Instant, primary_key=True)
    day: Mapped[datetime] = mapped_column(Instant)
    # sums
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class UsageReportRow(Table):
    """A report that was added to the sums, remembered so that it is added once."""

    __tablename__ = "usage_reports"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    added_at: Mapped[datetime] = mapped_column(Instant, index=True)


class CounterRow(Table):
    """Numbers that only grow, for all control processes."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class AdapterRow(Table):
    """A registered adapter; its bytes are in the blob store before the row is here."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("project", "name"),)

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    # what its owner says
    name: Mapped[str] = mapped_column(String(128))
    model: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    default_scale: Mapped[float] = mapped_column(Float)
    standing_scale: Mapped[float] = mapped_column(Float)
    # its bytes
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    file_bytes: Mapped[int] = mapped_column(BigInteger)
    blob_key: Mapped[str] = mapped_column(Key, unique=True)
    # what its file says
    architecture: Mapped[str] = mapped_column(Text)
    base_model: Mapped[str] = mapped_column(Text)
    rank: Mapped[int] = mapped_column(Integer)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    title: Mapped[str] = mapped_column(Text)
    # its life
    attempt: Mapped[int] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Instant)
    updated_at: Mapped[datetime] = mapped_column(Instant)


class AdapterReportRow(Table):
    """How an adapter is in one engine of a frontend, as the frontend said last."""

    __tablename__ = "adapter_reports"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "adapter_id"], ["adapters.project", "adapters.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    adapter_id: Mapped[str] = mapped_column(Key, primary_key=True)
    frontend: Mapped[str] = mapped_column(Key, primary_key=True, index=True)
    address: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(64))
    problem: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    reported_at: Mapped[datetime] = mapped_column(Instant)


class SecretRow(Table):
    """Secrets that all control processes of an installation share."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)
