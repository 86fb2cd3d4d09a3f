"""What slices are built from (`Core`), and what each adds to the service (`Slice`)."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc.aio

from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageTokens
from control_svc.base.resource import Served
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.s3 import Credentials, S3Blobs, open_bucket
from control_svc.blobs.store import BlobStore
from control_svc.config import ControlSettings
from control_svc.db import transaction
from control_svc.db.cleanup import CleanupStep
from control_svc.db.engine import Database
from control_svc.db.notifications import Notifications
from control_svc.db.transaction import Clock, CrossProjectTransactions, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.event_log.reader import GroupReader, StreamReader
from control_svc.event_log.tail_cache import Tails
from control_svc.jobs.handler import JobHandler
from control_svc.jobs.service import Retry
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.errors import DomainError, StorageFailed, UpstreamUnavailable
from svc_kit.lifecycle import StartupError, StartupOutage
from svc_kit.local_files import is_shortage
from svc_kit.metrics import StreamMetrics
from svc_kit.sandbox.jobs import JobRunner


@dataclass(frozen=True)
class Streams:
    """The writers and readers of event streams in this process."""

    committer: GroupCommitter
    reader: StreamReader


@asynccontextmanager
async def open_streams(
    settings: ControlSettings, database: Database, metrics: StreamMetrics
) -> AsyncIterator[Streams]:
    """Run the group commit and the group reader while the context is open."""
    tails = Tails()
    committer = GroupCommitter(
        database.across_projects, tails, metrics, lease=timedelta(seconds=settings.jobs.lease_s)
    )
    group_reader = GroupReader(database.across_projects, metrics)
    reader = StreamReader(
        group_reader, tails, database.notifications, metrics, settings.jobs.poll_interval_s
    )
    tasks = [asyncio.create_task(committer.run()), asyncio.create_task(group_reader.run())]
    try:
        yield Streams(committer, reader)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Core:
    """Settings and shared resources of all slices."""

    settings: ControlSettings
    database: Database
    blobs: BlobStore
    sandbox: JobRunner
    streams: Streams
    inference: grpc.aio.Channel
    """To the inference service, which may be unavailable."""
    token: ServiceToken | None
    """Credential for the inference service; None if it serves callers without a key."""
    ids: IdSource
    tokens: PageTokens
    clock: Clock

    @property
    def transactions(self) -> Transactions:
        return self.database.transactions

    @property
    def shared(self) -> tuple[Transactions, IdSource, PageTokens, Clock]:
        """The first arguments of all `Methods`."""
        return self.transactions, self.ids, self.tokens, self.clock

    @property
    def across_projects(self) -> CrossProjectTransactions:
        return self.database.across_projects

    @property
    def notifications(self) -> Notifications:
        return self.database.notifications


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What a slice adds to the service. Its tables need only be imported with it."""

    servicers: Sequence[Served[Any]] = ()
    handlers: Sequence[JobHandler] = ()
    retries: Mapping[str, Retry] = field(default_factory=dict)
    """Retry hooks of dead jobs, by kind; also of kinds that have no handler in this process."""
    cleanup: Sequence[CleanupStep] = ()
    """Steps of the sweeper, in order."""


def data_folder(settings: ControlSettings) -> Path:
    """The folder of the database and the blobs, unless they have a URL."""
    return settings.data_dir / "control"


def database_url(settings: ControlSettings) -> str | None:
    """The URL of the database; None for SQLite in the data folder."""
    url = settings.database_url
    return None if url is None else url.get_secret_value()


def blob_location(settings: ControlSettings) -> tuple[str | None, Credentials, Path]:
    """The URL of the bucket, its credentials, and the folder of blobs if the URL is None."""
    credentials = Credentials(settings.blobs_access_key_id, settings.blobs_secret_access_key)
    return settings.blobs_url, credentials, data_folder(settings) / "blobs"


def open_store(url: str | None, credentials: Credentials, folder: Path) -> FolderBlobs | S3Blobs:
    """Open a blob store without touching it. Raises StartupError for an invalid URL."""
    return FolderBlobs(folder) if url is None else open_bucket(url, credentials)


async def open_blobs(
    url: str | None, credentials: Credentials, folder: Path, installation: str
) -> BlobStore:
    """Open the blob store of the database with this id. Raises StartupError."""
    store = open_store(url, credentials, folder)
    if isinstance(store, S3Blobs):
        await store.claim(installation)
        return store
    try:
        store.prepare()
        store.claim(installation)
    except OSError as error:
        kind = StartupOutage if is_shortage(error) else StartupError
        raise kind(f"cannot store files in {folder}: {error.strerror}") from error
    return store


INSTALLATION: Final = "installation"
"""The name of the secret that is the id of the database."""
SEAL_KEY: Final = "seal_key"
"""The name of the secret that encrypts contents for callers."""


async def shared_secret(database: Database, name: str, num_bytes: int) -> bytes:
    """Return a random secret that all processes on a database share. Raises StartupError."""
    candidate = secrets.token_bytes(num_bytes)
    return await require_for_start(
        database.across_projects.write(lambda tx: transaction.shared_secret(tx, name, candidate))
    )


async def require_for_start(work: Awaitable[ResultT]) -> ResultT:
    """Await work that the service needs to start. Raises StartupError if it fails."""
    try:
        return await work
    except (UpstreamUnavailable, StorageFailed) as error:
        raise StartupOutage(error.message) from error
    except DomainError as error:
        raise StartupError(error.message) from error


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
