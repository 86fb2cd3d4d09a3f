"""One object on its way into a bucket."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from control_svc.domain.ports import Blob
from svc_kit.errors import StorageFailed

_log = logging.getLogger(__name__)

PART_BYTES: Final = 5 * 1024 * 1024  # the least that S3 takes
_PARTS_AT_ONCE: Final = 2


class _Abandoned(Exception):
    """Ends the upload of bytes that nobody wants any more: the library aborts it."""


class ObjectSink:
    """One object on its way. Parts are handed over one at a time; the next one waits for it."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._is_abandoned = False
        self._is_committed = False
        self._sending: asyncio.Task[object] | None = None

    @property
    def size_bytes(self) -> int:
        """How much has been written."""
        return self._size_bytes

    async def write(self, chunk: bytes) -> None:
        """Append. Raises StorageFailed, perhaps for an earlier chunk."""
        self._gathered.append(chunk)
        self._gathered_bytes += len(chunk)
        self._size_bytes += len(chunk)
        if self._gathered_bytes >= PART_BYTES:
            part = await self._take()
            if self._sending is None:
                self._sending = asyncio.create_task(self._put_parts())
            await self._hand_over(part)

    async def sha256(self) -> str:
        """The digest of what has been written."""
        if self._gathered_bytes:
            self._gathered = [await self._take()]
        return self._digest.hexdigest()

    async def commit(self) -> Blob:
        """Send the rest and have the object appear."""
        digest = await self.sha256()
        rest = b"".join(self._gathered)
        if self._sending is None:
            self._sending = asyncio.create_task(self._put(rest))
        else:
            await self._hand_over(rest)
            await self._hand_over(None)
        with translated():
            await asyncio.shield(self._sending)
        self._is_committed = True
        return Blob(self._key, self._size_bytes, digest)

    async def close(self) -> None:
        """Abort what was not committed, and remove it where that came too late."""
        if self._sending is None or self._is_committed:
            return
        self._is_abandoned = True
        with suppress(asyncio.QueueFull):
            self._parts.put_nowait(None)
        await asyncio.wait([self._sending])
        if self._sending.exception() is None:
            with translated():
                await obstore.delete_async(self._store, [self._key])

    async def _take(self) -> bytes:
        """What is gathered, hashed, in one piece."""
        chunks, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return await asyncio.to_thread(self._join, chunks)

    def _join(self, chunks: Sequence[bytes]) -> bytes:
        part = b"".join(chunks)
        self._digest.update(part)
        return part

    async def _hand_over(self, part: bytes | None) -> None:
        """Wait until there is room for a part. Raises StorageFailed where the upload has failed."""
        if self._sending is None:
            return
        putting = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait([putting, self._sending], return_when=asyncio.FIRST_COMPLETED)
            if self._sending.done():
                with translated():
                    await self._sending
        finally:
            putting.cancel()

    async def _put(self, content: bytes) -> object:
        return await obstore.put_async(self._store, self._key, content, use_multipart=False)

    async def _put_parts(self) -> object:
        return await obstore.put_async(
            self._store,
            self._key,
            self._taken_parts(),
            chunk_size=PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    async def _taken_parts(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None and not self._is_abandoned:
            yield part
        if self._is_abandoned:
            raise _Abandoned


@contextmanager
def translated() -> Iterator[None]:
    """Raises StorageFailed where the service fails, refuses or cannot be reached.

    What the service answered may name its addresses and ours, so only the log has it.
    """
    try:
        yield
    except (BaseError, OSError) as error:
        _log.warning("S3 failed: %s", error)
        raise StorageFailed(problem="the object store does not answer as it should") from error
