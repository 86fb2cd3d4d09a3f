"""The interface of blob stores, which store immutable bytes under generated keys."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

_log = logging.getLogger(__name__)
KEY: Final = re.compile("[0-9a-f]{32}")
"""The form of keys. Files and objects with other names belong to others."""
HOLDER: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
"""The form of the id of a backup, which holds a suspension of deletions."""


@dataclass(frozen=True)
class Blob:
    """A blob that is stored durably."""

    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredKey:
    """A key in the store, complete or not, and the time of the last write to it."""

    key: str
    touched_at: datetime


class BlobSink(Protocol):
    """A blob that is being written."""

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""

    async def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises StorageFailed, possibly for an earlier chunk."""

    async def sha256(self) -> str:
        """The digest of the bytes so far, in lower-case hex. Raises StorageFailed."""

    async def commit(self) -> Blob:
        """Store the blob durably under its key. Raises StorageFailed."""


class BlobStore(Protocol):
    """A store of immutable blobs under keys that it generates."""

    def create(self, key: str | None = None) -> AbstractAsyncContextManager[BlobSink]:
        """Begin a new blob. Unless committed, it is removed when the context is left.

        A restore gives the `key`; otherwise it is generated.
        """

    def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a range in chunks. Raises BlobMissing."""

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs; missing ones are ignored. While a backup suspends deletions, nothing is
        deleted: the sweeper finds the blobs later.
        """

    async def suspend_deletions(self, holder: str, duration_s: float) -> None:
        """Suspend all deletions, of every process, for so long; 0 ends it for this holder."""

    async def is_deletion_suspended(self) -> bool:
        """Whether deletions are suspended."""

    async def record_backup(self, time: datetime) -> None:
        """Store the time of the newest complete backup. Raises StorageFailed."""

    async def last_backup(self) -> datetime | None:
        """The time of the newest complete backup; None without one. Raises StorageFailed."""

    async def installation(self) -> str | None:
        """The id of the database that references the blobs; None if there is none yet."""

    def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Yield all keys in the store, in groups."""


async def run_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that continues even if the caller is cancelled repeatedly."""
    await asyncio.shield(asyncio.ensure_future(work))


def suspension_end(duration_s: float) -> str:
    """The content of a suspension: the time of its end."""
    return (datetime.now(UTC) + timedelta(seconds=duration_s)).isoformat()


def read_time(content: str) -> datetime | None:
    """The time of this content; None if it is something else."""
    try:
        time = datetime.fromisoformat(content)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def read_suspension(name: str, content: str) -> datetime | None:
    """When the suspension of this name ends; None for what others have stored.

    That of a backup whose content is damaged does not end: a running backup may need the bytes.
    """
    end = read_time(content)
    if end is None and HOLDER.fullmatch(name):
        _log.warning("suspensions/%s is damaged: nothing is deleted until it is removed", name)
        return datetime.max.replace(tzinfo=UTC)
    return end


def is_future(end: datetime | None) -> bool:
    """Whether a suspension has not ended."""
    return end is not None and end > datetime.now(UTC)
