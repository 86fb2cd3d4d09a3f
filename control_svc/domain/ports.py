"""What the use cases need from the outside: repositories, transactions and a store of bytes.

Methods of a repository take the project first and find nothing of another one. Only what operators
look after (projects, keys, usage) and what keeps the house, `Housekeeping`, looks across projects;
no caller without the scope admin reaches it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

Clock = Callable[[], datetime]
"""The time, with its zone."""
ResultT = TypeVar("ResultT")


class Dropped(NamedTuple):
    """Rows that are gone, and the keys of their bytes, which are the caller's to delete."""

    num_rows: int
    blob_keys: Sequence[str]


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
