"""Uploads: parts are stored separately and concatenated to a file on completion."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from corral.control.v1 import upload_service_pb2 as pb

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, PART, UPLOAD
from control_svc.base.resource import Methods
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.transaction import (
    Transaction,
    read_transaction,
    write_transaction,
)
from control_svc.files import proto as convert
from control_svc.files.model import (
    UPLOAD_TTL,
    Completion,
    FileLimits,
    NewUpload,
    PartTotals,
    Upload,
    UploadPart,
    UploadState,
    UploadWithFile,
    check_file_size,
    check_purpose,
    max_part_bytes,
    new_file,
)
from control_svc.files.queries import FileQueries, UploadQueries
from control_svc.files.service import delete_if_rejected
from svc_kit.errors import (
    BlobMissing,
    ChecksumMismatch,
    FileNotFound,
    MissingField,
    UploadNotPending,
)
from svc_kit.fair_semaphore import FairSemaphore

CREATE = "CreateUpload"


@dataclass(frozen=True)
class Uploads(Methods[UploadWithFile]):
    service = pb.DESCRIPTOR.services_by_name["UploadService"]
    message, noun, plural = convert.UPLOAD, "an upload", "uploads"

    blobs: BlobStore
    limits: FileLimits
    """Of uploaded files."""
    part_bytes: int
    """Limit of a part."""
    transfers: FairSemaphore
    """Of the bytes of files, by project."""
    _locks: MutableMapping[tuple[str, str], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )
    """Locks of completions, by project and upload id."""

    @write_transaction
    async def CreateUpload(
        self, tx: Transaction, request: pb.CreateUploadRequest
    ) -> UploadWithFile:
        """Create an upload.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge or RequestIdReused.
        """
        new = convert.NEW_UPLOAD.from_message(request)
        new.check(self.limits.limit_for(new.purpose))
        upload = self._new_upload(new)
        record = IdempotencyRecord.of(CREATE, new.request_id, upload.id, upload.created_at, new)
        upload_id = await record_request(tx, record)
        if upload_id != upload.id:
            return await self._with_file(tx, upload_id)
        await UploadQueries(tx).add(upload)
        return UploadWithFile(upload)

    @read_transaction
    async def GetUpload(
        self, tx: Transaction, request: pb.GetUploadRequest | pb.CompleteUploadRequest
    ) -> UploadWithFile:
        """Return an upload with its file. Raises UploadNotFound."""
        return await self._with_file(tx, request.upload_id)

    async def AddUploadPart(
        self, project: str, requests: AsyncIterator[pb.AddUploadPartRequest]
    ) -> pb.AddUploadPartResponse:
        """Store the bytes of a stream as a part.

        Raises UploadNotFound, UploadNotPending, TooLong, RequestTooLarge, MissingField if the part
        is empty, or StorageFailed.
        """
        async with self.transfers.reserve(1, project):
            upload_id = await convert.read_upload_id(requests)
            part = await self._add_part(project, upload_id, convert.read_chunks(requests))
        return pb.AddUploadPartResponse(part=convert.PART.to_message(part))

    async def _add_part(
        self, project: str, upload_id: str, chunks: AsyncIterator[bytes]
    ) -> UploadPart:

        async def read(tx: Transaction) -> tuple[Upload, PartTotals]:
            upload = await UploadQueries(tx).get(upload_id)
            return upload, await UploadQueries(tx).part_totals(upload_id)

        upload, stored = await self.transactions.of(project).read(read)
        upload.check_pending(self.clock())
        limit = max_part_bytes(upload, stored, self.part_bytes)
        async with self.blobs.create() as sink:
            async for chunk in chunks:
                check_file_size(sink.size_bytes + len(chunk), limit)
                await sink.write(chunk)
            if not sink.size_bytes:
                raise MissingField(field="chunk")
            blob = await sink.commit()
        part = UploadPart(
            id=self.ids.new(PART),
            upload_id=upload_id,
            size_bytes=blob.size_bytes,
            blob_key=blob.key,
            created_at=self.clock(),
        )

        async def add(tx: Transaction) -> None:
            queries = UploadQueries(tx)
            upload = await queries.lock(upload_id)
            upload.check_pending(part.created_at)
            # Other parts may have been added while this one was received.
            stored = await queries.part_totals(upload_id)
            check_file_size(part.size_bytes, max_part_bytes(upload, stored, self.part_bytes))
            await queries.add_part(part)

        async with delete_if_rejected(self.blobs, blob):
            await self.transactions.of(project).write(add)
        return part

    async def CompleteUpload(
        self, project: str, request: pb.CompleteUploadRequest
    ) -> UploadWithFile:
        """Concatenate parts to a file. Can be repeated with the same completion.

        Raises UploadNotFound, UploadNotPending, MissingField, TooLong, InvalidField, SizeMismatch,
        ChecksumMismatch or StorageFailed. A failed completion does not change the upload.
        """
        completion, upload_id = Completion(list(request.part_ids), request.md5), request.upload_id
        completion.check()
        # Serialize concurrent completions, each of which would write a copy of the whole file.
        lock = self._locks.setdefault((project, upload_id), asyncio.Lock())
        try:
            async with self.transfers.reserve(1, project), lock:
                return await self._complete(project, upload_id, completion)
        except (UploadNotPending, BlobMissing):
            # The same completion may have succeeded before, or in another process meanwhile.
            current = await self.GetUpload(project, request)
            if current.upload.completion == completion.fingerprint():
                return current
            current.upload.check_pending(self.clock())
            raise

    async def CancelUpload(self, project: str, request: pb.CancelUploadRequest) -> UploadWithFile:
        """Cancel an upload and delete its parts. Raises UploadNotFound or UploadNotPending."""
        now, upload_id = self.clock(), request.upload_id

        async def cancel(tx: Transaction) -> tuple[Upload, list[str]]:
            queries = UploadQueries(tx)
            cancelled = (await queries.lock(upload_id)).cancel(now)
            await queries.update(cancelled)
            return cancelled, await queries.delete_parts(upload_id)

        upload, blob_keys = await self.transactions.of(project).delete(cancel)
        await self.blobs.delete(blob_keys)
        return UploadWithFile(upload)

    async def _complete(
        self, project: str, upload_id: str, completion: Completion
    ) -> UploadWithFile:
        async def read(tx: Transaction) -> tuple[Upload, list[UploadPart]]:
            queries = UploadQueries(tx)
            return await queries.get(upload_id), await queries.parts(upload_id)

        upload, stored = await self.transactions.of(project).read(read)
        upload.check_pending(self.clock())
        blob = await self._concatenate(completion.select(upload, stored), completion.md5.lower())
        file_id, now = self.ids.new(FILE), self.clock()
        file = new_file(file_id, upload.filename, upload.purpose, blob, upload.ttl, now)

        async def finish(tx: Transaction) -> tuple[UploadWithFile, list[str]]:
            queries = UploadQueries(tx)
            locked = await queries.lock(upload_id)
            completed = locked.complete(file.id, completion.fingerprint(), file.created_at)
            await FileQueries(tx).add(file)
            await queries.update(completed)
            blob_keys = await queries.delete_parts(upload_id)
            return UploadWithFile(completed, file), blob_keys

        async with delete_if_rejected(self.blobs, blob):
            result, blob_keys = await self.transactions.of(project).write(finish)
        await self.blobs.delete(blob_keys)
        return result

    async def _concatenate(self, parts: Sequence[UploadPart], md5: str) -> Blob:
        """Write the parts to one blob. Raises ChecksumMismatch or StorageFailed."""
        digest = hashlib.md5(usedforsecurity=False)
        async with self.blobs.create() as sink:
            for part in parts:
                async for chunk in self.blobs.read(part.blob_key, 0, part.size_bytes):
                    if md5:
                        digest.update(chunk)
                    await sink.write(chunk)
            if md5 and digest.hexdigest() != md5:
                raise ChecksumMismatch(field="md5")
            return await sink.commit()

    async def _with_file(self, tx: Transaction, upload_id: str) -> UploadWithFile:
        now = self.clock()
        upload = (await UploadQueries(tx).get(upload_id)).with_expiry(now)
        if upload.file_id is None:
            return UploadWithFile(upload)
        try:
            file = await FileQueries(tx).get(upload.file_id, now)
        except FileNotFound:
            return UploadWithFile(upload)
        return UploadWithFile(upload, file)

    def _new_upload(self, new: NewUpload) -> Upload:
        now = self.clock()
        return Upload(
            id=self.ids.new(UPLOAD),
            filename=new.filename,
            purpose=check_purpose(new.purpose),
            size_bytes=new.size_bytes,
            mime_type=new.mime_type,
            ttl=new.ttl,
            state=UploadState.PENDING,
            created_at=now,
            expires_at=now + UPLOAD_TTL,
        )
