"""All tables of the database, for Alembic.

The slices define the tables; this module imports them, so that `METADATA` is complete.
"""

from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.adapters.queries import AdapterReportRow, AdapterRow
from control_svc.assistants.queries import AssistantRow, MessageRow, ThreadRow
from control_svc.base.idempotency import RequestRow
from control_svc.batches.tables import BatchLineRow, BatchRow
from control_svc.conversations.queries import ConversationRow
from control_svc.db.documents import ConversionRow
from control_svc.db.tables import CounterRow, SecretRow, Table
from control_svc.event_log.queries import StreamChunkRow, StreamRow
from control_svc.files.tables import FileRow, UploadPartRow, UploadRow
from control_svc.items.queries import ItemRow, TimelineItemRow
from control_svc.jobs.queries import JobRow
from control_svc.projects.keys import ApiKeyRow
from control_svc.projects.projects import ProjectRow
from control_svc.projects.usage import UsageReportRow, UsageRow
from control_svc.responses.queries import ResponseRow
from control_svc.runs.queries import RunRow, RunStepRow
from control_svc.vector_stores.tables import ChunkRow, FileBatchRow, StoreFileRow, VectorStoreRow

TABLES: Final[tuple[type[Table], ...]] = (
    AdapterReportRow,
    AdapterRow,
    ApiKeyRow,
    AssistantRow,
    BatchLineRow,
    BatchRow,
    ChunkRow,
    ConversationRow,
    ConversionRow,
    CounterRow,
    FileBatchRow,
    FileRow,
    ItemRow,
    JobRow,
    MessageRow,
    ProjectRow,
    RequestRow,
    ResponseRow,
    RunRow,
    RunStepRow,
    SecretRow,
    StoreFileRow,
    StreamChunkRow,
    StreamRow,
    ThreadRow,
    TimelineItemRow,
    UploadPartRow,
    UploadRow,
    UsageReportRow,
    UsageRow,
    VectorStoreRow,
)

METADATA: Final[MetaData] = Table.metadata
BLOB_COLUMNS: Final[tuple[InstrumentedAttribute[str], ...]] = (
    AdapterRow.blob_key,
    FileRow.blob_key,
    UploadPartRow.blob_key,
)
"""Every column that refers to a blob. A blob that none refers to is deleted."""
