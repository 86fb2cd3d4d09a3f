"""What the use cases need from the outside: repositories, transactions and a store of bytes.

Methods of a repository take the project first and find nothing of another one. Only what operators
look after (projects, keys, usage) and what keeps the house, `Housekeeping`, looks across projects;
no caller without the scope admin reaches it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol, TypeVar

from control_svc.domain.adapters import Adapter, AdapterReport, DesiredState
from control_svc.domain.batch_ports import BatchLineRepository, BatchRepository
from control_svc.domain.conversation_ports import ConversationRepository
from control_svc.domain.files import File, FilePurpose
from control_svc.domain.job_ports import JobRecords
from control_svc.domain.jobs import Claim, Job, JobState, NewJob
from control_svc.domain.keys import ApiKey, PresentedKey
from control_svc.domain.listing import Window
from control_svc.domain.projects import Project
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
from control_svc.domain.uploads import Taken, Upload, UploadPart
from control_svc.domain.usage import UsageQuery, UsageReport, UsageSum
from control_svc.domain.vector_ports import (
    ChunkRepository,
    FileBatchRepository,
    StoreFileRepository,
    VectorStoreRepository,
)

Clock = Callable[[], datetime]
"""The time, with its zone."""
ResultT = TypeVar("ResultT")


class FileRepository(Protocol):
    """The rows of files."""

    async def add(self, project: str, file: File) -> None:
        """Keep a new file."""

    async def get(self, project: str, file_id: str, now: datetime) -> File:
        """Raises FileNotFound, also for a file that has expired."""

    async def page(
        self, project: str, window: Window, purpose: FilePurpose | None, now: datetime
    ) -> list[File]:
        """The files of a window that have not expired; `purpose` None: any."""

    async def delete(self, project: str, file_id: str, now: datetime) -> File:
        """Forget a file; its bytes are the caller's to delete. Raises FileNotFound."""


class UploadRepository(Protocol):
    """The rows of uploads and their parts."""

    async def add(self, project: str, upload: Upload) -> None:
        """Keep a new upload."""

    async def get(self, project: str, upload_id: str) -> Upload:
        """Raises UploadNotFound."""

    async def lock(self, project: str, upload_id: str) -> Upload:
        """As `get`; until the end of the transaction nobody else changes the upload."""

    async def update(self, project: str, upload: Upload) -> None:
        """Keep what has changed of a locked upload: its state and its file."""

    async def add_part(self, project: str, part: UploadPart) -> None:
        """Keep a new part."""

    async def taken(self, project: str, upload_id: str) -> Taken:
        """How many parts there are, and their bytes."""

    async def parts(self, project: str, upload_id: str) -> list[UploadPart]:
        """The parts, oldest first."""

    async def drop_parts(self, project: str, upload_id: str) -> list[str]:
        """Forget all parts; the keys of their bytes, which are the caller's to delete."""


class RequestRepository(Protocol):
    """The rows of remembered requests."""

    async def recall(
        self, project: str, method: str, request_id: str, since: datetime
    ) -> RememberedRequest | None:
        """The request of this id that was carried out after `since`; an older one is forgotten."""

    async def add(self, project: str, request: RememberedRequest) -> None:
        """Remember a request."""


JOBS_TOPIC: Final = "jobs"
"""What is announced when a job can be claimed, or is to be cancelled."""


class JobRepository(Protocol):
    """The jobs of a project, for the use cases that cause them.

    Where a transaction locks both, it locks the job before the resource that it works for.
    """

    async def add(self, project: str, new: NewJob) -> Job:
        """Queue a job, in the transaction of the change that causes it."""

    async def get(self, project: str, job_id: str) -> Job | None:
        """A job; None: there is none, or no longer."""

    async def request_cancel(self, project: str, kind: str, subject: str) -> Job | None:
        """Ask for the end of the subject's unfinished job, and lock it; None: there is none.

        The job runs once more, if it waits: its worker ends the subject as it should.
        """


class JobCount(NamedTuple):
    """How many jobs of a kind are in a state, and since when the oldest could have run."""

    kind: str
    state: JobState
    num_jobs: int
    oldest: datetime


class JobQueue(Protocol):
    """The jobs of all projects, for the workers alone. Rows it returns are locked, unless told."""

    async def due(self, kinds: Collection[str]) -> Job | None:
        """The job that comes next; nobody else gets it.

        By priority, then of the project with the fewest running jobs, then the one that has been
        due for longest.
        """

    async def lock(self, claim: Claim) -> Job:
        """The job of a claim. Raises LeaseLost."""

    async def lock_all(self, claims: Collection[Claim]) -> list[Job]:
        """The jobs of those claims that count; the others are lost."""

    async def orphans(
        self, kinds: Collection[str], owner: str, limit: int, *, is_alone: bool
    ) -> list[Job]:
        """Running jobs of other owners whose leases ran out, not locked; alone: of all others."""

    async def held(self, owner: str) -> list[Job]:
        """The running jobs of an owner, not locked."""

    async def save(self, job: Job) -> None:
        """Keep what has changed of a locked job."""

    async def renew(self, owner: str, lease: timedelta) -> None:
        """Let the owner's leases run anew from now on. Jobs that somebody has locked are left."""

    async def census(self) -> list[JobCount]:
        """How many jobs there are, not locked."""


class ProjectRepository(Protocol):
    """The rows of projects."""

    async def add(self, project: Project) -> None:
        """Keep a new project. Raises ProjectExists."""

    async def get(self, project_id: str, *, locked: bool = False) -> Project:
        """Raises ProjectNotFound. Of a locked project nobody else changes the row until the end of
        the transaction."""

    async def page(self, window: Window, *, with_archived: bool) -> list[Project]:
        """The projects of a window."""

    async def update(self, project: Project) -> None:
        """Keep what has changed of a locked project: whether it is archived."""


class KeyRepository(Protocol):
    """The rows of API keys."""

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""

    async def get(self, key_id: str) -> ApiKey:
        """Raises ApiKeyNotFound."""

    async def find(self, sha256: str) -> PresentedKey | None:
        """The key with this hash."""

    async def page(self, window: Window, project: str, *, with_revoked: bool) -> list[ApiKey]:
        """The keys of a window; `project` empty: of all."""

    async def revoke(self, key_id: str, now: datetime) -> ApiKey:
        """End a key; one that was revoked stays as it was. Raises ApiKeyNotFound."""

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Remember when a key was last asked for."""


class UsageRepository(Protocol):
    """The rows of usage."""

    async def add(self, report: UsageReport, now: datetime) -> None:
        """Add a report to the sums, unless that was done before."""

    async def page(self, query: UsageQuery, after: str, limit: int) -> list[UsageSum]:
        """Sums by time, project and model, beyond the cursor `after`; empty: from the first."""


ADAPTERS_TOPIC: Final = "adapters"
"""What is announced when the registry of adapters changes, or a frontend reports."""


class AdapterRepository(Protocol):
    """The rows of adapters. An adapter is named by its id or by its name."""

    async def add(self, project: str, adapter: Adapter) -> None:
        """Keep a new adapter."""

    async def get(self, project: str, adapter: str) -> Adapter:
        """Raises AdapterNotFound."""

    async def lock(self, project: str, adapter: str) -> Adapter:
        """As `get`; until the end of the transaction nobody else changes it."""

    async def find(self, project: str, name: str) -> Adapter | None:
        """The one of this name, locked."""

    async def count(self, project: str) -> int:
        """How many there are."""

    async def page(self, project: str, window: Window) -> list[Adapter]:
        """The adapters of a window."""

    async def update(self, project: str, adapter: Adapter) -> None:
        """Keep what has changed of a locked adapter."""

    async def delete(self, project: str, adapter_id: str) -> None:
        """Forget an adapter; its bytes are the caller's to delete."""

    async def reports(self, project: str, adapter_id: str, since: datetime) -> list[AdapterReport]:
        """What frontends have said of it since a time."""


class DesiredRepository(Protocol):
    """What every frontend should have, over all projects: for our own services alone."""

    async def next_revision(self) -> int:
        """A number above all before. Whoever changes the registry takes one first: then changes
        are committed in the order of their numbers."""

    async def revision(self) -> int:
        """The newest number."""

    async def state(self) -> DesiredState:
        """Everything."""

    async def blob_of(self, sha256: str) -> tuple[str, int] | None:
        """The key and size of the bytes of a registered digest."""

    async def replace_reports(self, frontend: str, reports: Sequence[AdapterReport]) -> None:
        """Keep what a frontend says, in place of what it said."""


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
