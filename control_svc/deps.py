"""Dependencies from which the slices are built: settings, database, blobs, streams, channels."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import grpc.aio

from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageTokens
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.s3 import Credentials, S3Blobs, open_bucket
from control_svc.blobs.store import BlobStore
from control_svc.config import ControlSettings
from control_svc.db import transaction
from control_svc.db.engine import Database
from control_svc.db.notifications import Notifications
from control_svc.db.transaction import Clock, CrossProjectTransactions, Transactions
from control_svc.event_log.group_commit import GroupCommitter
from control_svc.event_log.reader import GroupReader, StreamReader
from control_svc.event_log.tail_cache import Tails
from control_svc.files.content import FileContents
from control_svc.inference.models import Models, RpcModels
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.inference.turn_client import RpcTurnClient, TokenCounter
from control_svc.inference.turns import TurnClient
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
class Deps:
    """Settings and shared resources of all slices."""

    settings: ControlSettings
    database: Database
    blobs: BlobStore
    contents: FileContents
    """The files of prompts."""
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
        """The transactions of the database."""
        return self.database.transactions

    @property
    def across_projects(self) -> CrossProjectTransactions:
        """The transactions of the database across projects."""
        return self.database.across_projects

    @property
    def notifications(self) -> Notifications:
        """The notifications of the database."""
        return self.database.notifications


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


def build_prefix_cleanup(deps: Deps) -> PrefixCleanup:
    """Build the cleanup of cached prefixes, which needs the service token."""
    return PrefixCleanup(deps.ids, is_used=deps.token is not None)


class ModelParts(NamedTuple):
    """Clients of the inference service: turns, models, and the counter of prompt tokens."""

    turns: TurnClient
    models: Models
    counter: TokenCounter


def model_parts(deps: Deps, turn_timeout_s: float) -> ModelParts:
    """Build the clients of the inference service."""
    client = RpcTurnClient(deps.inference, deps.token, deps.contents, timeout_s=turn_timeout_s)
    return ModelParts(client, RpcModels(deps.inference, deps.token), client)
