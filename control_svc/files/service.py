"""CRUD of files. Bytes are stored as they arrive; the file is visible once it is complete."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from corral.control.v1 import file_service_pb2 as pb

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE
from control_svc.base.pagination import Page
from control_svc.base.resource import Methods
from control_svc.blobs.store import Blob, BlobSink, BlobStore
from control_svc.db.transaction import (
    DeleteHook,
    Transaction,
    delete_transaction,
    read_transaction,
)
from control_svc.files import proto as convert
from control_svc.files.model import (
    File,
    FileLimits,
    NewFile,
    check_file_size,
    check_purpose,
    new_file,
)
from control_svc.files.queries import FileQueries
from svc_kit import errors
from svc_kit.fair_semaphore import FairSemaphore

CREATE = "CreateFile"


@dataclass(frozen=True)
class Files(Methods[File]):
    service = pb.DESCRIPTOR.services_by_name["FileService"]
    message, noun, plural = convert.FILE, "a file", "files"
    default_page = max_page = 10_000

    blobs: BlobStore
    limits: FileLimits
    transfers: FairSemaphore
    """Of the bytes of files, by project."""
    on_delete: Sequence[DeleteHook] = ()
    """Remove references to a deleted file, in its transaction."""

    async def CreateFile(self, project: str, requests: AsyncIterator[pb.CreateFileRequest]) -> File:
        """Store a file from a stream of bytes and at least one header; the last header applies.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge, SizeMismatch,
        ChecksumMismatch, RequestIdReused or StorageFailed. A broken stream stores nothing.
        """
        async with self.transfers.reserve(1, project):
            return await self._create(project, convert.read_pieces(requests))

    async def _create(self, project: str, pieces: AsyncIterator[NewFile | bytes]) -> File:
        async with self.blobs.create() as sink:
            header = await self._receive(pieces, sink)
            header.check_bytes(sink.size_bytes, await sink.sha256())
            blob = await sink.commit()
        purpose, now = check_purpose(header.purpose), self.clock()
        file = new_file(self.ids.new(FILE), header.filename, purpose, blob, header.ttl, now)
        request = IdempotencyRecord.of(
            CREATE,
            header.request_id,
            file.id,
            file.created_at,
            file.filename,
            file.purpose,
            header.ttl,
            file.sha256,
        )

        async def add(tx: Transaction) -> File:
            file_id = await record_request(tx, request)
            if file_id != file.id:
                return await FileQueries(tx).get(file_id, file.created_at)
            await FileQueries(tx).add(file)
            return file

        async with delete_if_rejected(self.blobs, blob):
            stored = await self.transactions.of(project).write(add)
        if stored.id != file.id:
            await self.blobs.delete([blob.key])
        return stored

    @read_transaction
    async def GetFile(
        self, tx: Transaction, request: pb.GetFileRequest | pb.DownloadFileRequest
    ) -> File:
        """Return a file. Raises FileNotFound."""
        return await FileQueries(tx).get(request.file_id, self.clock())

    @read_transaction
    async def ListFiles(self, tx: Transaction, request: pb.ListFilesRequest) -> Page[File]:
        """List the project's files, or those of a purpose. Raises OutOfRange or InvalidField."""
        purpose = convert.PURPOSES.decode_optional(request.purpose, "purpose")
        window = self.window(tx, request, FILE, purpose or "")
        return window.page(await FileQueries(tx).page(window, purpose, self.clock()))

    async def DeleteFile(self, project: str, request: pb.DeleteFileRequest) -> None:
        """Delete a file and its bytes, and remove it from all vector stores.

        Downloads in progress may finish. Raises FileNotFound.
        """
        file = await self._delete_rows(project, request.file_id)
        await self.blobs.delete([file.blob_key])

    @delete_transaction
    async def _delete_rows(self, tx: Transaction, file_id: str) -> File:
        file = await FileQueries(tx).delete(file_id, self.clock())
        for hook in self.on_delete:
            await hook(tx, file_id)
        return file

    async def DownloadFile(
        self, project: str, request: pb.DownloadFileRequest
    ) -> AsyncGenerator[pb.DownloadFileResponse, None]:
        """Stream a file and the bytes of a range of it.

        Raises FileNotFound, RangeNotSatisfiable, or BlobMissing if the bytes are lost.
        """
        length = request.length if request.HasField("length") else None
        async with self.transfers.reserve(1, project):
            file = await self.GetFile(project, request)
            if request.offset > file.size_bytes:
                raise errors.RangeNotSatisfiable(field="offset", size=file.size_bytes)
            remaining = file.size_bytes - request.offset
            count = remaining if length is None else min(length, remaining)
            chunks = self._read(project, request, file, count)
            # Read first: lost bytes are an error, not a file that breaks off.
            first = await anext(chunks, b"")
            yield pb.DownloadFileResponse(file=self.to_message(file))
            if first:
                yield pb.DownloadFileResponse(chunk=first)
            async for chunk in chunks:
                yield pb.DownloadFileResponse(chunk=chunk)

    async def _read(
        self, project: str, request: pb.DownloadFileRequest, file: File, length: int
    ) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.blobs.read(file.blob_key, request.offset, length):
                yield chunk
        except errors.BlobMissing:
            # Raises FileNotFound if the file has been deleted meanwhile; else its blob is lost.
            await self.GetFile(project, request)
            raise

    async def _receive(self, pieces: AsyncIterator[NewFile | bytes], sink: BlobSink) -> NewFile:
        """Write the bytes and return the last header, applying the limits known at each point."""
        header: NewFile | None = None
        limit = self.limits.limit_for(None)
        async for piece in pieces:
            if isinstance(piece, bytes):
                check_file_size(sink.size_bytes + len(piece), limit)
                await sink.write(piece)
            else:
                piece.check(self.limits)
                header, limit = piece, self.limits.limit_for(piece.purpose)
                check_file_size(sink.size_bytes, limit)
        if header is None:
            raise errors.MissingField(field="header")
        return header


REJECTIONS = (
    errors.AdapterExists,
    errors.AdapterNotFound,
    errors.FileNotFound,
    errors.RequestIdReused,
    errors.RequestTooLarge,
    errors.StorageFailed,
    errors.TooLong,
    errors.TooManyAdapters,
    errors.UploadNotFound,
    errors.UploadNotPending,
)
"""Errors raised inside a transaction, so that certainly nothing was committed. After other errors
the commit may have succeeded; the sweeper deletes unreferenced blobs later."""


@asynccontextmanager
async def delete_if_rejected(blobs: BlobStore, blob: Blob) -> AsyncIterator[None]:
    """Delete `blob` if the transaction that references it is rejected, and re-raise the error."""
    try:
        yield
    except REJECTIONS:
        await blobs.delete([blob.key])
        raise
