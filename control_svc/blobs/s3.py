"""A blob store in a bucket of any service with the S3 API.

    PREFIX/KEY             a complete blob
    PREFIX/INSTALLATION    the id of the database that references the blobs
    PREFIX/LAST_BACKUP     the time of the newest complete backup
    PREFIX/suspensions/NAME    the time until which a backup suspends deletions

Small blobs are one request. Larger ones are multipart uploads, sent while the bytes arrive; an
upload that is not committed is aborted. Only a process that dies leaves parts, which a lifecycle
rule of the bucket should remove. Checksums, retries and signatures are those of obstore.
"""

import asyncio
import errno
import hashlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import S3Store
from pydantic import SecretStr

from control_svc.blobs.store import (
    HOLDER,
    KEY,
    Blob,
    BlobSink,
    StoredKey,
    is_future,
    read_suspension,
    read_time,
    run_shielded,
    suspension_end,
)
from control_svc.urls import parse_bucket_url
from svc_kit.errors import BlobMissing, StorageFailed
from svc_kit.lifecycle import StartupError, StartupOutage

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult


_log = logging.getLogger(__name__)
READ_BYTES: Final = 256 * 1024
_LIST_GROUP: Final = 500
_TEXT_BYTES: Final = 4096
_MAX_SUSPENSIONS: Final = 10_000
_INSTALLATION: Final = "INSTALLATION"
_LAST_BACKUP: Final = "LAST_BACKUP"
_SUSPENSIONS: Final = "suspensions"
_REFUSALS: Final = (
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
    FileNotFoundError,
    ValueError,
)
"""What other settings than these would change: credentials, region, bucket."""


class Credentials(NamedTuple):
    """Credentials of the bucket; None means those of the environment (AWS_...)."""

    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None


class S3Blobs:
    """A BlobStore under a prefix. Objects with other names than its own belong to others."""

    def __init__(self, store: S3Store, name: str) -> None:
        """`name` is used in error messages."""
        self._store = store
        self._name = name

    async def claim(self, installation: str) -> None:
        """Bind the prefix to the database with this id. Raises StartupError if it belongs to
        another database or has no owner, or if the bucket cannot be used.
        """
        try:
            owner = await self._text(_INSTALLATION)
            if owner is None:
                await self._check_empty(installation)
                with suppress(AlreadyExistsError):
                    text = installation.encode()
                    await obstore.put_async(self._store, _INSTALLATION, text, mode="create")
                owner = await self._text(_INSTALLATION)
        except (BaseError, OSError, ValueError) as error:
            _log.warning("S3 failed: %s", error)
            kind = StartupError if isinstance(error, _REFUSALS) else StartupOutage
            raise kind(f"cannot store files in {self._name}: {_reason(error)}") from error
        if owner != installation:
            raise StartupError(
                f"{self._name} holds the files of another database: choose another blobs_url, or"
                " the database that belongs to it"
            )

    async def unclaim(self, installation: str) -> None:
        """Undo `claim`. Raises StorageFailed."""
        with translate_s3_errors(), suppress(FileNotFoundError):
            if await self._text(_INSTALLATION) == installation:
                await obstore.delete_async(self._store, _INSTALLATION)

    @asynccontextmanager
    async def create(self, key: str | None = None) -> AsyncIterator[BlobSink]:
        """Begin a new blob. Unless committed, it is removed when the context is left."""
        sink = ObjectSink(self._store, key or secrets.token_hex(16))
        try:
            yield sink
        finally:
            await run_shielded(sink.close())

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a range in chunks. Raises BlobMissing."""
        with translate_s3_errors():
            result = await self._open(key, offset, length)
            if not length:
                return
            async for chunk in result.stream(min_chunk_size=READ_BYTES):
                length -= len(chunk)
                if length < 0:
                    raise _unexpected(f"{key} is longer than was asked for")
                yield bytes(chunk)
        if length:
            raise BlobMissing(blob=key)  # too short

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs, unless deletions are suspended; missing ones are ignored."""
        own = list(filter(KEY.fullmatch, keys))
        if own and not await self.is_deletion_suspended():
            with translate_s3_errors(), suppress(FileNotFoundError):
                await obstore.delete_async(self._store, own)

    async def suspend_deletions(self, holder: str, duration_s: float) -> None:
        """Suspend all deletions for so long; 0 ends it for this holder. Raises StorageFailed."""
        path = f"{_SUSPENSIONS}/{holder}"
        with translate_s3_errors(), suppress(FileNotFoundError):
            if duration_s:
                await obstore.put_async(self._store, path, suspension_end(duration_s).encode())
            ends = await self._suspension_ends()
            ended = {
                each
                for each, end in ends.items()
                if HOLDER.fullmatch(each.removeprefix(f"{_SUSPENSIONS}/"))
                and end is not None
                and not is_future(end)
            }
            # Its own, and those of killed holders.
            if unused := ended | (set() if duration_s else {path} & ends.keys()):
                await obstore.delete_async(self._store, list(unused))

    async def is_deletion_suspended(self) -> bool:
        """Whether deletions are suspended. Raises StorageFailed."""
        with translate_s3_errors():
            return any(map(is_future, (await self._suspension_ends()).values()))

    async def _suspension_ends(self) -> dict[str, datetime | None]:
        paths: list[str] = []
        async for group in obstore.list(self._store, prefix=_SUSPENSIONS, chunk_size=_LIST_GROUP):
            paths += [each["path"] for each in group]
            if len(paths) > _MAX_SUSPENSIONS:
                raise _unexpected(f"there are more than {_MAX_SUSPENSIONS} suspensions")
        texts = {path: await self._text(path) for path in paths}
        return {
            path: read_suspension(path.removeprefix(f"{_SUSPENSIONS}/"), content)
            for path, content in texts.items()
            if content is not None  # deleted meanwhile
        }

    async def record_backup(self, time: datetime) -> None:
        """Store the time of the newest complete backup. Raises StorageFailed."""
        with translate_s3_errors():
            await obstore.put_async(self._store, _LAST_BACKUP, time.isoformat().encode())

    async def last_backup(self) -> datetime | None:
        """The time of the newest complete backup; None without one. Raises StorageFailed."""
        with translate_s3_errors():
            return read_time(await self._text(_LAST_BACKUP) or "")

    async def installation(self) -> str | None:
        """The id of the database that references the blobs. Raises StorageFailed."""
        with translate_s3_errors():
            return await self._text(_INSTALLATION)

    async def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Yield all keys in the store, in groups. Other objects are ignored."""
        with translate_s3_errors():
            async for group in obstore.list(self._store, chunk_size=_LIST_GROUP):
                yield [
                    StoredKey(each["path"], each["last_modified"])
                    for each in group
                    if KEY.fullmatch(each["path"])
                ]

    async def _open(self, key: str, offset: int, length: int) -> "GetResult":
        # S3 has no empty ranges: the whole object is opened then, and not read.
        options: GetOptions | None = {"range": (offset, offset + length)} if length else None
        try:
            return await obstore.get_async(self._store, key, options=options)
        except FileNotFoundError:
            raise BlobMissing(blob=key) from None

    async def _text(self, path: str) -> str | None:
        try:
            result = await obstore.get_async(self._store, path)
        except FileNotFoundError:
            return None
        if result.meta["size"] > _TEXT_BYTES:
            raise _unexpected(f"{path} is longer than {_TEXT_BYTES} bytes")
        return bytes(await result.bytes_async()).decode(errors="replace").strip()

    async def _check_empty(self, installation: str) -> None:
        async for group in self.keys():
            if group:
                raise StartupError(
                    f"{self._name} holds files of an unknown database: choose another blobs_url,"
                    f" or write {installation} to {_INSTALLATION} there if they belong to this one"
                )


def open_bucket(url: str, credentials: Credentials) -> S3Blobs:
    """Open the store of a URL: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Raises StartupError."""
    try:
        bucket, path, options = parse_bucket_url(url)
    except ValueError as error:
        raise StartupError(str(error)) from None
    config: dict[str, Any] = {**options, **_secrets(credentials)}
    endpoint = options.get("endpoint", "")
    try:
        store = S3Store(
            bucket,
            prefix=path.strip("/") or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=5),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
            **config,
        )
    except (BaseError, ValueError) as error:
        raise StartupError(f"blobs_url cannot be used: {_reason(error)}") from error
    return S3Blobs(store, f"s3://{bucket}{path}")


def _secrets(credentials: Credentials) -> dict[str, str]:
    return {
        name: value.get_secret_value()
        for name, value in credentials._asdict().items()
        if value is not None
    }


def _unexpected(problem: str) -> OSError:
    """The error of a service that answers with what Corral has not written."""
    return OSError(errno.EIO, problem)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


PART_BYTES: Final = 5 * 1024 * 1024  # the minimum of S3
_CONCURRENT_PARTS: Final = 2


class _Aborted(Exception):
    """Makes obstore abort a multipart upload."""


class ObjectSink:
    """An object that is being uploaded. A part is queued once the one before has been taken."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._is_aborted = False
        self._is_committed = False
        self._upload: asyncio.Task[object] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    async def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises StorageFailed, possibly for an earlier chunk."""
        self._buffer.append(chunk)
        self._buffer_bytes += len(chunk)
        self._size_bytes += len(chunk)
        if self._buffer_bytes >= PART_BYTES:
            part = await self._flush_buffer()
            if self._upload is None:
                self._upload = asyncio.create_task(self._put_parts())
            await self._queue_part(part)

    async def sha256(self) -> str:
        """The digest of the bytes so far."""
        if self._buffer_bytes:
            self._buffer = [await self._flush_buffer()]
        return self._digest.hexdigest()

    async def commit(self) -> Blob:
        """Upload the rest and complete the object."""
        digest = await self.sha256()
        rest = b"".join(self._buffer)
        if self._upload is None:
            self._upload = asyncio.create_task(self._put(rest))
        else:
            await self._queue_part(rest)
            await self._queue_part(None)
        with translate_s3_errors():
            await asyncio.shield(self._upload)
        self._is_committed = True
        return Blob(self._key, self._size_bytes, digest)

    async def close(self) -> None:
        """Abort an uncommitted upload; delete the object if it is complete already."""
        if self._upload is None or self._is_committed:
            return
        self._is_aborted = True
        with suppress(asyncio.QueueFull):
            self._parts.put_nowait(None)
        await asyncio.wait([self._upload])
        if self._upload.exception() is None:
            with translate_s3_errors():
                await obstore.delete_async(self._store, [self._key])

    async def _flush_buffer(self) -> bytes:
        """Empty the buffer; join and hash its chunks in a thread."""
        chunks, self._buffer, self._buffer_bytes = self._buffer, [], 0
        return await asyncio.to_thread(self._join, chunks)

    def _join(self, chunks: Sequence[bytes]) -> bytes:
        part = b"".join(chunks)
        self._digest.update(part)
        return part

    async def _queue_part(self, part: bytes | None) -> None:
        """Wait until the queue has room. Raises StorageFailed if the upload has failed."""
        if self._upload is None:
            return
        put = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait([put, self._upload], return_when=asyncio.FIRST_COMPLETED)
            if self._upload.done():
                with translate_s3_errors():
                    await self._upload
        finally:
            put.cancel()

    async def _put(self, content: bytes) -> object:
        return await obstore.put_async(self._store, self._key, content, use_multipart=False)

    async def _put_parts(self) -> object:
        return await obstore.put_async(
            self._store,
            self._key,
            self._queued_parts(),
            chunk_size=PART_BYTES,
            max_concurrency=_CONCURRENT_PARTS,
        )

    async def _queued_parts(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None and not self._is_aborted:
            yield part
        if self._is_aborted:
            raise _Aborted


@contextmanager
def translate_s3_errors() -> Iterator[None]:
    """Raise StorageFailed if the service fails, refuses a request, or cannot be reached.

    The details are only logged, since they may contain internal addresses.
    """
    try:
        yield
    except (BaseError, OSError) as error:
        _log.warning("S3 failed: %s", error)
        raise StorageFailed(problem="the object store returned an error") from error
