"""CRUD of files: bytes are stored while they stream in, and visible once complete."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.blobs.store import Blob, BlobMissing, BlobSink, BlobStore
from control_svc.db.transaction import Clock, DeleteHook, Transaction, Transactions
from control_svc.files.model import File, FileLimits, FilePurpose, NewFile, check_purpose, expiry_of
from control_svc.files.queries import FileQueries
from svc_kit.errors import (
    AdapterExists,
    AdapterNotFound,
    FileNotFound,
    InvalidField,
    MissingField,
    OutOfRange,
    RangeNotSatisfiable,
    RequestIdReused,
    RequestTooLarge,
    TooLong,
    TooManyAdapters,
    UploadNotFound,
    UploadNotPending,
)

MAX_PAGE = 10_000
CREATE = "CreateFile"


class Files:
    """What callers do with files."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        ids: IdSource,
        tokens: PageTokens,
        limits: FileLimits,
        clock: Clock,
        on_delete: Sequence[DeleteHook] = (),
    ) -> None:
        """`on_delete` hooks remove what refers to a file that is deleted."""
        self._transactions = transactions
        self._blobs = blobs
        self._ids = ids
        self._tokens = tokens
        self._limits = limits
        self._clock = clock
        self._on_delete = on_delete

    async def create(self, project: str, pieces: AsyncIterator[NewFile | bytes]) -> File:
        """Store the bytes of a stream; its last description counts.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge, SizeMismatch,
        ChecksumMismatch, RequestIdReused or StorageFailed. Nothing is left of a stream that breaks.
        """
        async with self._blobs.create() as sink:
            described = await self._receive(pieces, sink)
            described.check_bytes(sink.size_bytes, await sink.sha256())
            blob = await sink.commit()
        file = self._new_file(described, blob)
        request = IdempotencyRecord.of(
            CREATE,
            described.request_id,
            file.id,
            file.created_at,
            file.filename,
            file.purpose,
            described.ttl,
            file.sha256,
        )

        async def add(tx: Transaction) -> File:
            created = await record_request(tx, project, request)
            if created != file.id:
                return await FileQueries(tx).get(project, created, file.created_at)
            await FileQueries(tx).add(project, file)
            return file

        async with delete_if_rejected(self._blobs, blob):
            stored = await self._transactions.write(add)
        if stored.id != file.id:
            await self._blobs.delete([blob.key])
        return stored

    async def get(self, project: str, file_id: str) -> File:
        """Raises FileNotFound."""
        now = self._clock()
        return await self._transactions.read(lambda tx: FileQueries(tx).get(project, file_id, now))

    async def page(
        self, project: str, page_request: PageRequest, purpose: FilePurpose | None
    ) -> Page[File]:
        """A page of the project's files. Raises OutOfRange or InvalidField."""
        if page_request.after and not is_id(page_request.after, FILE):
            raise InvalidField(field="after", problem="it is not the id of a file")
        binding = (project, "files", purpose or "")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        now = self._clock()
        found = await self._transactions.read(
            lambda tx: FileQueries(tx).page(project, window, purpose, now)
        )
        return self._tokens.page(found, window, page_request, binding)

    async def delete(self, project: str, file_id: str) -> None:
        """Delete a file and its bytes, out of all vector stores too; who reads it now may read to
        its end.

        Raises FileNotFound.
        """
        now = self._clock()

        async def forget(tx: Transaction) -> File:
            file = await FileQueries(tx).delete(project, file_id, now)
            for hook in self._on_delete:
                await hook(tx, project, file_id)
            return file

        file = await self._transactions.write(forget)
        await self._blobs.delete([file.blob_key])

    async def download(
        self, project: str, file_id: str, offset: int, length: int | None
    ) -> tuple[File, AsyncIterator[bytes]]:
        """A file, and the bytes of a range of it.

        Raises FileNotFound, OutOfRange or RangeNotSatisfiable.
        """
        for field, value in (("offset", offset), ("length", length or 0)):
            if value < 0:
                raise OutOfRange(field=field, value=value, minimum=0)
        file = await self.get(project, file_id)
        if offset > file.size_bytes:
            raise RangeNotSatisfiable(field="offset", size=file.size_bytes)
        rest = file.size_bytes - offset
        count = rest if length is None else min(length, rest)
        return file, self._read(project, file, offset, count)

    async def _read(
        self, project: str, file: File, offset: int, length: int
    ) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._blobs.read(file.blob_key, offset, length):
                yield chunk
        except BlobMissing:
            # Deleted between the two reads, which is the caller's doing; or lost, which is not.
            await self.get(project, file.id)
            raise

    async def _receive(self, pieces: AsyncIterator[NewFile | bytes], sink: BlobSink) -> NewFile:
        """Write the bytes, under the limit of what is known of them so far."""
        described: NewFile | None = None
        limit = self._limits.of(None)
        async for piece in pieces:
            if isinstance(piece, bytes):
                self._limits.check(sink.size_bytes + len(piece), limit)
                await sink.write(piece)
            else:
                piece.check(self._limits)
                described, limit = piece, self._limits.of(piece.purpose)
                self._limits.check(sink.size_bytes, limit)
        if described is None:
            raise MissingField(field="header")
        return described

    def _new_file(self, described: NewFile, blob: Blob) -> File:
        purpose, now = check_purpose(described.purpose), self._clock()
        return File(
            id=self._ids.new(FILE),
            filename=described.filename,
            purpose=purpose,
            size_bytes=blob.size_bytes,
            sha256=blob.sha256,
            blob_key=blob.key,
            created_at=now,
            expires_at=expiry_of(purpose, described.ttl, now),
        )


REJECTIONS = (
    AdapterExists,
    AdapterNotFound,
    FileNotFound,
    RequestIdReused,
    RequestTooLarge,
    TooLong,
    TooManyAdapters,
    UploadNotFound,
    UploadNotPending,
)
"""What the work of a transaction raises: nothing was committed. After a database that cannot be
reached, or that is full, nobody knows; those bytes are the sweeper's to judge."""


@asynccontextmanager
async def delete_if_rejected(blobs: BlobStore, blob: Blob) -> AsyncIterator[None]:
    """Delete `blob` if the transaction that would reference it is refused; errors propagate."""
    try:
        yield
    except REJECTIONS:
        await blobs.delete([blob.key])
        raise
