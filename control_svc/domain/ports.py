"""What the use cases need from the outside: repositories, transactions and a store of bytes.

Methods of a repository take the project first and find nothing of another one. Only what operators
look after (projects, keys, usage) and what keeps the house, `Housekeeping`, looks across projects;
no caller without the scope admin reaches it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from control_svc.domain.adapter_ports import AdapterRepository, DesiredRepository
from control_svc.domain.batch_ports import BatchLineRepository, BatchRepository
from control_svc.domain.conversation_ports import ConversationRepository
from control_svc.domain.file_ports import FileRepository, UploadRepository
from control_svc.domain.job_ports import JobQueue, JobRecords, JobRepository
from control_svc.domain.jobs import JobState
from control_svc.domain.operator_ports import KeyRepository, ProjectRepository, UsageRepository
from control_svc.domain.requests import RememberedRequest
from control_svc.domain.response_ports import ResponseRepository
from control_svc.domain.run_ports import RunRepository, RunStepRepository
from control_svc.domain.streams import EventLog, EventStreams
from control_svc.domain.thread_ports import (
    AssistantRepository,
    MessageRepository,
    ThreadRepository,
)
from control_svc.domain.timeline_ports import TimelineRepository
from control_svc.domain.vector_ports import (
    ChunkRepository,
    FileBatchRepository,
    StoreFileRepository,
    VectorStoreRepository,
)

Clock = Callable[[], datetime]
"""The time, with its zone."""
ResultT = TypeVar("ResultT")


class RequestRepository(Protocol):
    """The rows of remembered requests."""

    async def recall(
        self, project: str, method: str, request_id: str, since: datetime
    ) -> RememberedRequest | None:
        """The request of this id that was carried out after `since`; an older one is forgotten."""

    async def add(self, project: str, request: RememberedRequest) -> None:
        """Remember a request."""


class Dropped(NamedTuple):
    """Rows that are gone, and the keys of their bytes, which are the caller's to delete."""

    num_rows: int
    blob_keys: Sequence[str]


class Housekeeping(Protocol):
    """What the sweeper asks, over all projects. Limits bound one transaction."""

    async def drop_expired_files(self, now: datetime, limit: int) -> Dropped:
        """Forget files that have expired."""

    async def expire_uploads(self, now: datetime, limit: int) -> Dropped:
        """Turn late uploads to expired and forget their parts."""

    async def forget_requests(self, before: datetime, limit: int) -> int:
        """Forget requests carried out before a time; how many there were."""

    async def forget_jobs(self, state: JobState, before: datetime, limit: int) -> int:
        """Forget jobs that ended so before a time; how many there were."""

    async def forget_usage_reports(self, before: datetime, limit: int) -> int:
        """Forget the ids of reports added before a time; how many there were."""

    async def hurry_late_batches(self, kind: str, hurried_kind: str, now: datetime) -> int:
        """Give waiting jobs another kind where the window of their batch has closed; how many."""

    async def drop_batch_lines(self, before: datetime, limit: int) -> int:
        """Forget lines of batches that have ended; how many there were. Of those that failed
        without files, lines are kept until they failed before a time."""

    async def sweep_streams(self, before: datetime, limit: int) -> int:
        """Forget the events of streams that ended before a time, about as many chunks of them; how
        many streams there were."""

    async def unreferenced(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that no row names."""

    async def secret(self, name: str, candidate: bytes) -> bytes:
        """The installation's secret of a name; the candidate, where it has none yet."""


class Repositories(Protocol):
    """All repositories of one transaction."""

    @property
    def files(self) -> FileRepository: ...
    @property
    def uploads(self) -> UploadRepository: ...
    @property
    def requests(self) -> RequestRepository: ...
    @property
    def projects(self) -> ProjectRepository: ...
    @property
    def keys(self) -> KeyRepository: ...
    @property
    def usage(self) -> UsageRepository: ...
    @property
    def adapters(self) -> AdapterRepository: ...
    @property
    def desired(self) -> DesiredRepository: ...
    @property
    def housekeeping(self) -> Housekeeping: ...
    @property
    def batches(self) -> BatchRepository: ...
    @property
    def batch_lines(self) -> BatchLineRepository: ...
    @property
    def runs(self) -> RunRepository: ...
    @property
    def run_steps(self) -> RunStepRepository: ...
    @property
    def timelines(self) -> TimelineRepository: ...
    @property
    def streams(self) -> EventStreams: ...
    @property
    def event_log(self) -> EventLog: ...
    @property
    def assistants(self) -> AssistantRepository: ...
    @property
    def threads(self) -> ThreadRepository: ...
    @property
    def messages(self) -> MessageRepository: ...
    @property
    def conversations(self) -> ConversationRepository: ...
    @property
    def vector_stores(self) -> VectorStoreRepository: ...
    @property
    def store_files(self) -> StoreFileRepository: ...
    @property
    def file_batches(self) -> FileBatchRepository: ...
    @property
    def chunks(self) -> ChunkRepository: ...
    @property
    def responses(self) -> ResponseRepository: ...
    @property
    def jobs(self) -> JobRepository: ...
    @property
    def queue(self) -> JobQueue: ...
    @property
    def job_records(self) -> JobRecords: ...

    async def now(self) -> datetime:
        """The database's time, one for the whole transaction: processes' own clocks may differ."""

    def announce(self, topic: str) -> None:
        """Tell who listens for a topic, in every process, once this is committed."""


class Transactions(Protocol):
    """Units of work: everything in one, or nothing.

    The work may be run again from its start, after a conflict with another transaction. It must do
    nothing that cannot be done twice: no bytes, no calls. Raises UpstreamUnavailable while the
    database cannot be reached, StorageFailed where its disk is full.
    """

    async def write(self, work: Callable[[Repositories], Awaitable[ResultT]]) -> ResultT:
        """Run the work and commit; what it returns is durable when this returns."""

    async def read(self, work: Callable[[Repositories], Awaitable[ResultT]]) -> ResultT:
        """Run work that changes nothing."""


class Notices(Protocol):
    """Hints, in every control process, that something has changed; one may get lost.

    Who listens looks for itself what it is, and now and then without a hint.
    """

    def send(self, topics: Collection[str]) -> None:
        """Tell who listens; at once here, soon elsewhere."""

    def listen(self, topic: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever the topic is announced; the listener clears it."""


@dataclass(frozen=True)
class Blob:
    """Bytes that are stored durably."""

    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredKey:
    """A key in the store, complete or not, and when bytes last came under it."""

    key: str
    touched_at: datetime


class BlobSink(Protocol):
    """Bytes on their way into the store. Left without `commit` they leave nothing behind."""

    @property
    def size_bytes(self) -> int:
        """How much has been written."""

    async def write(self, chunk: bytes) -> None:
        """Append. Raises StorageFailed, perhaps for an earlier chunk."""

    async def sha256(self) -> str:
        """The digest of what has been written, in lower-case hex. Raises StorageFailed."""

    async def commit(self) -> Blob:
        """Make the bytes durable under their key. Raises StorageFailed."""


class BlobMissing(Exception):
    """The store has no bytes under a key."""


class BlobStore(Protocol):
    """A store of bytes that never change, under keys of its own making."""

    def create(self) -> AbstractAsyncContextManager[BlobSink]:
        """Begin new bytes."""

    def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a range in chunks. Raises BlobMissing before the first of them."""

    async def delete(self, keys: Collection[str]) -> None:
        """Delete; what is not there is no error."""

    def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Everything in the store, in groups."""
