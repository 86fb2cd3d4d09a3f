"""The interface of blob stores: immutable bytes under generated keys."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


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


async def run_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that continues when its caller is cancelled, also repeatedly."""
    await asyncio.shield(asyncio.ensure_future(work))
