"""What every part of the control service stands on."""

import asyncio
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc.aio

from control_svc.assembly.streams import Streams
from control_svc.config import ControlSettings
from control_svc.domain.ids import IdSource
from control_svc.domain.listing import PageTokens
from control_svc.domain.ports import BlobStore, Clock, Notices
from control_svc.storage.database import Database
from control_svc.storage.repositories.housekeeping import SqlHousekeeping
from control_svc.storage.unit_of_work import Transactions
from svc_kit.auth import ServiceToken
from svc_kit.errors import DomainError
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.startup import StartupError

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Ground:
    """The settings, and what is opened once for all parts."""

    settings: ControlSettings
    database: Database
    blobs: BlobStore
    sandbox: JobRunner
    streams: Streams
    inference: grpc.aio.Channel
    """To the inference service, which need not be there."""
    token: ServiceToken | None
    """Presented to it; None: it serves callers without a key."""
    ids: IdSource
    tokens: PageTokens
    clock: Clock

    @property
    def transactions(self) -> Transactions:
        """Units of work on the database."""
        return self.database.transactions

    @property
    def notices(self) -> Notices:
        """What has changed."""
        return self.database.notices


def data_folder(settings: ControlSettings) -> Path:
    """Where the service keeps what has no URL."""
    return settings.data_dir / "control"


async def shared_secret(database: Database, name: str, num_bytes: int) -> bytes:
    """What all processes on a database share, made by the first of them. Raises StartupError."""
    candidate = secrets.token_bytes(num_bytes)
    return await or_no_start(
        database.transactions.write(lambda tx: SqlHousekeeping(tx).secret(name, candidate))
    )


async def or_no_start(work: Awaitable[ResultT]) -> ResultT:
    """Work without which the service cannot start. Raises StartupError."""
    try:
        return await work
    except DomainError as error:
        raise StartupError(error.message) from error


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task of the service's own and see it end."""
    task.cancel()
    await asyncio.wait([task])
