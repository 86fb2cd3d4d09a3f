"""Uploads: parts are stored one by one; completion concatenates them to a file."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, PART, UPLOAD, IdSource
from control_svc.blobs.store import Blob, BlobMissing, BlobStore
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.files.model import (
    LIFETIME,
    Completion,
    File,
    FileLimits,
    NewUpload,
    PartTotals,
    Upload,
    UploadPart,
    UploadState,
    check_purpose,
    expiry_of,
    max_part_bytes,
)
from control_svc.files.queries import FileQueries, UploadQueries
from control_svc.files.service import delete_if_rejected
from svc_kit.errors import ChecksumMismatch, FileNotFound, MissingField, UploadNotPending

CREATE = "CreateUpload"


class UploadWithFile(NamedTuple):
    """An upload, and the file it has become where that still exists."""

    upload: Upload
    file: File | None = None


class Uploads:
    """What callers do with uploads."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        ids: IdSource,
        limits: FileLimits,
        part_bytes: int,
        clock: Clock,
    ) -> None:
        """`limits` are those of files that come in parts, `part_bytes` that of one part."""
        self._transactions = transactions
        self._blobs = blobs
        self._ids = ids
        self._limits = limits
        self._part_bytes = part_bytes
        self._clock = clock
        self._joining: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Locks by project and upload, for the completion."""

    async def create(self, project: str, described: NewUpload) -> UploadWithFile:
        """Announce a file.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge or RequestIdReused.
        """
        described.check(self._limits.of(described.purpose))
        upload = self._new_upload(described)
        request = IdempotencyRecord.of(
            CREATE, described.request_id, upload.id, upload.created_at, described
        )

        async def add(tx: Transaction) -> UploadWithFile:
            created = await record_request(tx, project, request)
            if created != upload.id:
                return await self._with_file(tx, project, created)
            await UploadQueries(tx).add(project, upload)
            return UploadWithFile(upload)

        return await self._transactions.write(add)

    async def get(self, project: str, upload_id: str) -> UploadWithFile:
        """Raises UploadNotFound."""
        return await self._transactions.read(lambda tx: self._with_file(tx, project, upload_id))

    async def add_part(
        self, project: str, upload_id: str, chunks: AsyncIterator[bytes]
    ) -> UploadPart:
        """Store the bytes of a stream as a part.

        Raises UploadNotFound, UploadNotPending, TooLong, RequestTooLarge, MissingField where there
        are no bytes, or StorageFailed.
        """
        upload, taken = await self._transactions.read(
            lambda tx: _with_taken(tx, project, upload_id)
        )
        upload.check_pending(self._clock())
        limit = max_part_bytes(upload, taken, self._part_bytes)
        async with self._blobs.create() as sink:
            async for chunk in chunks:
                self._limits.check(sink.size_bytes + len(chunk), limit)
                await sink.write(chunk)
            if not sink.size_bytes:
                raise MissingField(field="chunk")
            blob = await sink.commit()
        part = UploadPart(
            id=self._ids.new(PART),
            upload_id=upload_id,
            size_bytes=blob.size_bytes,
            blob_key=blob.key,
            created_at=self._clock(),
        )

        async def add(tx: Transaction) -> None:
            locked = await UploadQueries(tx).lock(project, upload_id)
            locked.check_pending(part.created_at)
            # Others may have come since the bytes began to stream in.
            taken = await UploadQueries(tx).taken(project, upload_id)
            self._limits.check(part.size_bytes, max_part_bytes(locked, taken, self._part_bytes))
            await UploadQueries(tx).add_part(project, part)

        async with delete_if_rejected(self._blobs, blob):
            await self._transactions.write(add)
        return part

    async def complete(
        self, project: str, upload_id: str, completion: Completion
    ) -> UploadWithFile:
        """Make a file of parts.

        Raises UploadNotFound, UploadNotPending, MissingField, TooLong, InvalidField, SizeMismatch,
        ChecksumMismatch or StorageFailed. A completion that fails leaves the upload as it was.
        """
        completion.check()
        # Each would write a copy of the whole file, of which one is kept: who comes second waits.
        lock = self._joining.setdefault((project, upload_id), asyncio.Lock())
        try:
            async with lock:
                return await self._complete(project, upload_id, completion)
        except (UploadNotPending, BlobMissing):
            # The same call may have come before, or be a step ahead and have freed the parts.
            found = await self.get(project, upload_id)
            if found.upload.completion == completion.fingerprint():
                return found
            found.upload.check_pending(self._clock())
            raise

    async def cancel(self, project: str, upload_id: str) -> UploadWithFile:
        """Give an upload up. Raises UploadNotFound or UploadNotPending."""
        now = self._clock()

        async def drop(tx: Transaction) -> tuple[Upload, list[str]]:
            locked = await UploadQueries(tx).lock(project, upload_id)
            cancelled = locked.cancel(now)
            await UploadQueries(tx).update(project, cancelled)
            return cancelled, await UploadQueries(tx).drop_parts(project, upload_id)

        upload, dropped = await self._transactions.write(drop)
        await self._blobs.delete(dropped)
        return UploadWithFile(upload)

    async def _complete(
        self, project: str, upload_id: str, completion: Completion
    ) -> UploadWithFile:
        upload, stored = await self._transactions.read(
            lambda tx: _with_parts(tx, project, upload_id)
        )
        upload.check_pending(self._clock())
        blob = await self._join(completion.select(upload, stored), completion.md5.lower())
        file = self._new_file(upload, blob)

        async def finish(tx: Transaction) -> tuple[UploadWithFile, list[str]]:
            locked = await UploadQueries(tx).lock(project, upload_id)
            done = locked.complete(file.id, completion.fingerprint(), file.created_at)
            await FileQueries(tx).add(project, file)
            await UploadQueries(tx).update(project, done)
            dropped = await UploadQueries(tx).drop_parts(project, upload_id)
            return UploadWithFile(done, file), dropped

        async with delete_if_rejected(self._blobs, blob):
            result, dropped = await self._transactions.write(finish)
        await self._blobs.delete(dropped)
        return result

    async def _join(self, parts: Sequence[UploadPart], md5: str) -> Blob:
        """One blob out of several. Raises ChecksumMismatch or StorageFailed."""
        digest = hashlib.md5(usedforsecurity=False)
        async with self._blobs.create() as sink:
            for part in parts:
                async for chunk in self._blobs.read(part.blob_key, 0, part.size_bytes):
                    if md5:
                        digest.update(chunk)
                    await sink.write(chunk)
            if md5 and digest.hexdigest() != md5:
                raise ChecksumMismatch(field="md5")
            return await sink.commit()

    async def _with_file(self, tx: Transaction, project: str, upload_id: str) -> UploadWithFile:
        now = self._clock()
        upload = (await UploadQueries(tx).get(project, upload_id)).at(now)
        if upload.file_id is None:
            return UploadWithFile(upload)
        try:
            file = await FileQueries(tx).get(project, upload.file_id, now)
        except FileNotFound:
            return UploadWithFile(upload)
        return UploadWithFile(upload, file)

    def _new_upload(self, described: NewUpload) -> Upload:
        now = self._clock()
        return Upload(
            id=self._ids.new(UPLOAD),
            filename=described.filename,
            purpose=check_purpose(described.purpose),
            size_bytes=described.size_bytes,
            mime_type=described.mime_type,
            ttl=described.ttl,
            state=UploadState.PENDING,
            created_at=now,
            expires_at=now + LIFETIME,
        )

    def _new_file(self, upload: Upload, blob: Blob) -> File:
        now = self._clock()
        return File(
            id=self._ids.new(FILE),
            filename=upload.filename,
            purpose=upload.purpose,
            size_bytes=blob.size_bytes,
            sha256=blob.sha256,
            blob_key=blob.key,
            created_at=now,
            expires_at=expiry_of(upload.purpose, upload.ttl, now),
        )


async def _with_taken(tx: Transaction, project: str, upload_id: str) -> tuple[Upload, PartTotals]:
    upload = await UploadQueries(tx).get(project, upload_id)
    return upload, await UploadQueries(tx).taken(project, upload_id)


async def _with_parts(
    tx: Transaction, project: str, upload_id: str
) -> tuple[Upload, list[UploadPart]]:
    upload = await UploadQueries(tx).get(project, upload_id)
    return upload, await UploadQueries(tx).parts(project, upload_id)
