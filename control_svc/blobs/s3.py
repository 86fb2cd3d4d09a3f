"""Bytes in a bucket of any service that speaks S3.

    PREFIX/KEY             complete: it appears whole, when its upload ends, and never changes
    PREFIX/INSTALLATION    the id of the database whose rows name these bytes

Small bytes are one request. Larger ones go up in parts while they come in; an upload that is given
up is aborted. Only a process that dies leaves parts, which no listing shows and which a lifecycle
rule of the bucket removes. The checksums, retries and signatures are the library's.
"""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pydantic import SecretStr

from control_svc.blobs.store import Blob, BlobMissing, BlobSink, StoredKey, run_shielded
from svc_kit.errors import StorageFailed
from svc_kit.lifecycle import StartupError

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult


_log = logging.getLogger(__name__)
READ_BYTES: Final = 256 * 1024
_LISTED_AT_ONCE: Final = 500
_INSTALLATION: Final = "INSTALLATION"
_KEY: Final = re.compile("[0-9a-f]{32}")
_OPTIONS: Final = {"endpoint", "region"}


class Credentials(NamedTuple):
    """Credentials of the bucket; None means the environment's (AWS_...)."""

    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None


class S3Blobs:
    """A BlobStore under a prefix that no other program writes to."""

    def __init__(self, store: S3Store, name: str) -> None:
        """`name` is used in messages."""
        self._store = store
        self._name = name

    async def claim(self, installation: str) -> None:
        """Bind the prefix to the database with this id. Raises StartupError if it belongs to
        another database or has no owner, or if the bucket cannot be used.
        """
        try:
            found = await self._installation()
            if found is None:
                await self._check_empty(installation)
                with suppress(AlreadyExistsError):
                    text = installation.encode()
                    await obstore.put_async(self._store, _INSTALLATION, text, mode="create")
                found = await self._installation()
        except (BaseError, OSError, ValueError) as error:
            _log.warning("S3 refuses: %s", error)
            raise StartupError(f"cannot keep files in {self._name}: {_reason(error)}") from error
        if found != installation:
            raise StartupError(
                f"{self._name} holds the files of another database: choose another blobs_url, or"
                " the database that belongs to it"
            )

    @asynccontextmanager
    async def create(self) -> AsyncIterator[BlobSink]:
        """Begin new bytes; left without `commit`, also by a cancellation, they are removed."""
        sink = ObjectSink(self._store, secrets.token_hex(16))
        try:
            yield sink
        finally:
            await run_shielded(sink.close())

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a range in chunks. Raises BlobMissing before the first of them."""
        with translated():
            found = await self._open(key, offset, length)
            if not length:
                return
            async for chunk in found.stream(min_chunk_size=READ_BYTES):
                length -= len(chunk)
                yield bytes(chunk)
        if length:
            raise BlobMissing(f"the bytes of {key} end too early")

    async def delete(self, keys: Collection[str]) -> None:
        """Delete; what is not there is no error."""
        if keys:
            with translated(), suppress(FileNotFoundError):
                await obstore.delete_async(self._store, list(keys))

    async def keys(self) -> AsyncIterator[Sequence[StoredKey]]:
        """Everything in the store, in groups; what else lies there is not ours."""
        with translated():
            async for group in obstore.list(self._store, chunk_size=_LISTED_AT_ONCE):
                yield [
                    StoredKey(each["path"], each["last_modified"])
                    for each in group
                    if _KEY.fullmatch(each["path"])
                ]

    async def _open(self, key: str, offset: int, length: int) -> "GetResult":
        """Read a range; an empty one reads nothing, which S3 cannot express."""
        wanted: GetOptions | None = {"range": (offset, offset + length)} if length else None
        try:
            return await obstore.get_async(self._store, key, options=wanted)
        except FileNotFoundError:
            raise BlobMissing(f"there are no bytes under {key}") from None

    async def _installation(self) -> str | None:
        try:
            found = await obstore.get_async(self._store, _INSTALLATION)
        except FileNotFoundError:
            return None
        return bytes(await found.bytes_async()).decode().strip()

    async def _check_empty(self, installation: str) -> None:
        async for group in self.keys():
            if group:
                raise StartupError(
                    f"{self._name} holds files, but does not say of which database: choose another"
                    f" blobs_url, or write {installation} to {_INSTALLATION} there if they are this"
                    " one's"
                )


def open_bucket(url: str, credentials: Credentials) -> S3Blobs:
    """The store of a URL: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Raises StartupError."""
    parsed = urlsplit(url)
    options = dict(parse_qsl(parsed.query))
    if parsed.scheme != "s3" or not parsed.hostname:
        raise StartupError("blobs_url cannot be read; write s3://BUCKET/PREFIX?endpoint=URL")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise StartupError(
            f"blobs_url has options that are not known: {', '.join(unknown)};"
            " there are endpoint and region"
        )
    config: dict[str, Any] = {**options, **_secrets(credentials)}
    endpoint = options.get("endpoint", "")
    try:
        store = S3Store(
            parsed.hostname,
            prefix=parsed.path.strip("/") or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=5),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
            **config,
        )
    except (BaseError, ValueError) as error:
        raise StartupError(f"blobs_url cannot be used: {_reason(error)}") from error
    return S3Blobs(store, f"s3://{parsed.hostname}{parsed.path}")


def _secrets(credentials: Credentials) -> dict[str, str]:
    return {
        name: value.get_secret_value()
        for name, value in credentials._asdict().items()
        if value is not None
    }


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


PART_BYTES: Final = 5 * 1024 * 1024  # the least that S3 takes
_PARTS_AT_ONCE: Final = 2


class _Abandoned(Exception):
    """Makes the library abort a multipart upload."""


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
