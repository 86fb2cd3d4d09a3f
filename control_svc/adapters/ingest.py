"""Reads the bytes of a new adapter from a stream, a file of the project or an operator's folder.

Bytes are collected in a file that no other process can change, validated in a sandboxed child
process, and copied to the blob store from there.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control_svc.adapters.model import NewAdapter
from control_svc.base.private_file import temporary_file
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.transaction import Clock, Transactions
from control_svc.files.model import File, check_file_size
from control_svc.files.queries import FileQueries
from model_files.adapter_facts import AdapterFacts
from model_files.sandbox_jobs import READ_ADAPTER
from svc_kit.errors import (
    AdapterInvalid,
    BlobMissing,
    ChecksumMismatch,
    InvalidField,
    MissingField,
)
from svc_kit.local_files import AllowedFolders, PrivateFile, disk_errors
from svc_kit.sandbox.jobs import JobFailed, JobRunner
from svc_kit.tasks import open_in_thread

_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class AdapterBytes:
    """Receives, validates and stores the files of adapters."""

    transactions: Transactions
    blobs: BlobStore
    jobs: JobRunner
    folders: AllowedFolders
    """The only ones in which paths are resolved."""
    scratch: Path
    """The folder of temporary files."""
    limit: int
    """Maximum size of an adapter in bytes."""
    clock: Clock

    @asynccontextmanager
    async def receive(
        self, project: str, pieces: AsyncIterator[NewAdapter | bytes]
    ) -> AsyncIterator[tuple[NewAdapter, PrivateFile]]:
        """Receive an adapter; its file is deleted at the end of the `async with` block.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge, FileNotFound,
        ChecksumMismatch or StorageFailed.
        """
        async with temporary_file(self.scratch) as file:
            new = await self._read_stream(pieces, file)
            if new.file_id:
                await self._copy_file(project, new.file_id, file)
            elif new.path:
                await self._copy_path(new.path, file)
            if not file.size_bytes:
                raise MissingField(field="file")
            if new.sha256.lower() not in ("", file.digest):
                raise ChecksumMismatch(field="sha256")
            with disk_errors():
                await asyncio.to_thread(file.flush)
            yield new, file

    async def validate(self, name: str, file: PrivateFile) -> AdapterFacts:
        """Validate the file of the adapter `name`. Raises AdapterInvalid."""
        try:
            facts = await self.jobs.run(READ_ADAPTER, {"adapter": str(file.path)}, key=file.digest)
        except JobFailed as failed:
            raise AdapterInvalid(adapter=name, problem=failed.problem) from None
        return AdapterFacts(**facts)

    async def store(self, file: PrivateFile) -> Blob:
        """Copy the file to the blob store. Raises StorageFailed."""
        async with self.blobs.create() as sink:
            async for block in _blocks(file.path):
                await sink.write(block)
            return await sink.commit()

    async def _read_stream(
        self, pieces: AsyncIterator[NewAdapter | bytes], file: PrivateFile
    ) -> NewAdapter:
        new: NewAdapter | None = None
        async for piece in pieces:
            if isinstance(piece, bytes):
                await self._write(file, piece)
            else:
                piece.check()
                new = piece
        if new is None:
            raise MissingField(field="header")
        source = new.file_id or new.path
        if source and file.size_bytes:
            field = "file_id" if new.file_id else "path"
            raise InvalidField(field=field, problem="cannot be combined with bytes")
        return new

    async def _copy_file(self, project: str, file_id: str, file: PrivateFile) -> None:
        source = await self._file(project, file_id)
        check_file_size(source.size_bytes, self.limit)
        try:
            async for chunk in self.blobs.read(source.blob_key, 0, source.size_bytes):
                await self._write(file, chunk)
        except BlobMissing:
            # Raises FileNotFound if the file has been deleted meanwhile; else its blob is lost.
            await self._file(project, file_id)
            raise

    async def _file(self, project: str, file_id: str) -> File:
        now = self.clock()
        return await self.transactions.of(project).read(
            lambda tx: FileQueries(tx).get(file_id, now)
        )

    async def _copy_path(self, path: str, file: PrivateFile) -> None:
        source = await asyncio.to_thread(self.folders.find, "path", path)
        async for block in _blocks(source):
            await self._write(file, block)

    async def _write(self, file: PrivateFile, block: bytes) -> None:
        check_file_size(file.size_bytes + len(block), self.limit)
        with disk_errors():
            await asyncio.to_thread(file.write, block)


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    with disk_errors(), await open_in_thread(lambda: path.open("rb")) as source:
        while block := await asyncio.to_thread(source.read, _BLOCK_BYTES):
            yield block
