"""All tables of the database, for Alembic.

The slices define the tables; this module imports them, so that `METADATA` is complete.
"""

from types import ModuleType
from typing import Any, Final, NamedTuple

from sqlalchemy import MetaData, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.adapters import queries as adapters
from control_svc.assistants import queries as assistants
from control_svc.audit import log as audit_log
from control_svc.base import idempotency
from control_svc.batches import tables as batches
from control_svc.conversations import queries as conversations
from control_svc.db import documents
from control_svc.db.tables import Table
from control_svc.event_log import queries as event_log
from control_svc.files import tables as files
from control_svc.items import queries as items
from control_svc.jobs import queries as jobs
from control_svc.limits import queries as limits
from control_svc.projects import keys, projects, usage
from control_svc.responses import queries as responses
from control_svc.runs import queries as runs
from control_svc.vector_stores import tables as vector_stores

MODULES: Final[tuple[ModuleType, ...]] = (
    adapters,
    assistants,
    audit_log,
    batches,
    conversations,
    documents,
    event_log,
    files,
    idempotency,
    items,
    jobs,
    keys,
    limits,
    projects,
    responses,
    runs,
    usage,
    vector_stores,
)
"""All modules with tables."""
METADATA: Final[MetaData] = Table.metadata
BLOB_COLUMNS: Final[tuple[InstrumentedAttribute[str], ...]] = (
    adapters.AdapterRow.blob_key,
    files.FileRow.blob_key,
    files.UploadPartRow.blob_key,
)
"""Every column that refers to a blob. A blob that none refers to is deleted."""


class BlobReference(NamedTuple):
    """A row that refers to a blob."""

    table: str
    project: str
    object_id: str
    key: str
    size_bytes: int
    sha256: str
    """Empty for a part of an upload."""


async def read_references(
    session: AsyncSession | AsyncConnection,
    column: InstrumentedAttribute[str],
    after: str,
    limit: int,
) -> list[BlobReference]:
    """The references of one of `BLOB_COLUMNS` with keys greater than `after`, by key."""
    table: Any = column.class_
    size = table.file_bytes if table is adapters.AdapterRow else table.size_bytes
    digest = literal("") if table is files.UploadPartRow else table.sha256
    query = select(literal(table.__tablename__), table.project, table.id, column, size, digest)
    rows = await session.execute(query.where(column > after).order_by(column).limit(limit))
    return [BlobReference(*row) for row in rows]
