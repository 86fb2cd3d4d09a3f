"""All tables of the database, for Alembic.

The slices define the tables; this module imports them, so that `METADATA` is complete.
"""

from types import ModuleType
from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.adapters import queries as adapters
from control_svc.assistants import queries as assistants
from control_svc.base import idempotency
from control_svc.batches import tables as batches
from control_svc.conversations import queries as conversations
from control_svc.db import documents
from control_svc.db.tables import Table
from control_svc.event_log import queries as event_log
from control_svc.files import tables as files
from control_svc.items import queries as items
from control_svc.jobs import queries as jobs
from control_svc.projects import keys, projects, usage
from control_svc.responses import queries as responses
from control_svc.runs import queries as runs
from control_svc.vector_stores import tables as vector_stores

MODULES: Final[tuple[ModuleType, ...]] = (
    adapters,
    assistants,
    batches,
    conversations,
    documents,
    event_log,
    files,
    idempotency,
    items,
    jobs,
    keys,
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
