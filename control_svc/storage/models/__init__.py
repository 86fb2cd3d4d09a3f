"""The tables. Migrations make them; these classes are what the queries are written with.

Rows never leave the tx. Everything that callers keep belongs to a project, which leads
its primary key: a query that forgot it would not find its index, and a child cannot name a parent
of another one. What operators look after (projects, keys) and what the house keeps has none.
Ids grow with time, so the primary key also orders a project's lists.
"""

from control_svc.storage.models.adapters import AdapterReportRow, AdapterRow
from control_svc.storage.models.assistants import AssistantRow, MessageRow, ThreadRow
from control_svc.storage.models.base import Instant, Key, Project, Table
from control_svc.storage.models.batches import BatchLineRow, BatchRow
from control_svc.storage.models.files import FileRow, UploadPartRow, UploadRow
from control_svc.storage.models.installation import CounterRow, SecretRow
from control_svc.storage.models.items import ConversationRow, ItemRow, TimelineItemRow
from control_svc.storage.models.jobs import JobRow, RequestRow
from control_svc.storage.models.projects import ApiKeyRow, ProjectRow
from control_svc.storage.models.responses import ResponseRow
from control_svc.storage.models.runs import RunRow, RunStepRow
from control_svc.storage.models.streams import StreamChunkRow, StreamRow
from control_svc.storage.models.usage import UsageReportRow, UsageRow
from control_svc.storage.models.vector_stores import (
    ChunkRow,
    FileBatchRow,
    StoreFileRow,
    VectorStoreRow,
)

__all__ = [
    "AdapterReportRow",
    "AdapterRow",
    "ApiKeyRow",
    "AssistantRow",
    "BatchLineRow",
    "BatchRow",
    "ChunkRow",
    "ConversationRow",
    "CounterRow",
    "FileBatchRow",
    "FileRow",
    "Instant",
    "ItemRow",
    "JobRow",
    "Key",
    "MessageRow",
    "Project",
    "ProjectRow",
    "RequestRow",
    "ResponseRow",
    "RunRow",
    "RunStepRow",
    "SecretRow",
    "StoreFileRow",
    "StreamChunkRow",
    "StreamRow",
    "Table",
    "ThreadRow",
    "TimelineItemRow",
    "UploadPartRow",
    "UploadRow",
    "UsageReportRow",
    "UsageRow",
    "VectorStoreRow",
]
