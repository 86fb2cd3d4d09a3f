"""Reads the bytes of a new adapter from a stream, a file of the project or an operator's folder.

Bytes are collected in a file that no other process can change, validated in a sandboxed child, and
stored as validated.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control_svc.adapters.model import NewAdapter
from control_svc.base.private_file import temporary_file
from control_svc.blobs.store import Blob, BlobMissing, BlobStore
from control_svc.db.transaction import Clock, Transactions
from control_svc.files.model import File, FileLimits
from control_svc.files.queries import FileQueries
from model_files.adapter_facts import AdapterFacts
from model_files.sandbox_jobs import READ_ADAPTER
from svc_kit.errors import AdapterInvalid, ChecksumMismatch, InvalidField, MissingField
from svc_kit.local_files import AllowedFolders, PrivateFile, disk_errors
from svc_kit.sandbox.jobs import JobFailed, JobRunner

_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Gathered:
    """A description, and the file that it belongs to."""

    described: NewAdapter
    file: PrivateFile


class AdapterBytes:
    """Gathers, judges and stores the bytes of adapters of at most `limit` bytes."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        jobs: JobRunner,
        folders: AllowedFolders,
        scratch: Path,
        limit: int,
        clock: Clock,
    ) -> None:
        """`folders` are those that paths may lead into; `scratch` is where private files lie."""
        self._transactions = transactions
        self._blobs = blobs
        self._jobs = jobs
        self._folders = folders
        self._scratch = scratch
        self._limit = limit
        self._clock = clock

    @asynccontextmanager
    async def gathered(
        self, project: str, pieces: AsyncIterator[NewAdapter | bytes]
    ) -> AsyncIterator[Gathered]:
        """All bytes of an adapter, for as long as the block runs.

        Raises MissingField, TooLong, InvalidField, OutOfRange, RequestTooLarge, FileNotFound,
        ChecksumMismatch or StorageFailed.
        """
        async with temporary_file(self._scratch) as file:
            described = await self._receive(pieces, file)
            if described.file_id:
                await self._copy_file(project, described.file_id, file)
            elif described.path:
                await self._copy_path(described.path, file)
            if not file.size_bytes:
                raise MissingField(field="file")
            if described.sha256.lower() not in ("", file.digest):
                raise ChecksumMismatch(field="sha256")
            with disk_errors():
                await asyncio.to_thread(file.flush)
            yield Gathered(described, file)

    async def judge(self, gathered: Gathered) -> AdapterFacts:
        """Read and validate the whole file. Raises AdapterInvalid."""
        payload = {"adapter": str(gathered.file.path)}
        try:
            found = await self._jobs.run(READ_ADAPTER, payload, key=gathered.file.digest)
        except JobFailed as failed:
            name = gathered.described.name
            raise AdapterInvalid(adapter=name, problem=failed.problem) from None
        return AdapterFacts(**found)

    async def store(self, file: PrivateFile) -> Blob:
        """The file in the store. Raises StorageFailed."""
        async with self._blobs.create() as sink:
            async for block in _blocks(file.path):
                await sink.write(block)
            return await sink.commit()

    async def _receive(
        self, pieces: AsyncIterator[NewAdapter | bytes], file: PrivateFile
    ) -> NewAdapter:
        described: NewAdapter | None = None
        async for piece in pieces:
            if isinstance(piece, bytes):
                await self._write(file, piece)
            else:
                piece.check()
                described = piece
        if described is None:
            raise MissingField(field="header")
        source = described.file_id or described.path
        if source and file.size_bytes:
            field = "file_id" if described.file_id else "path"
            raise InvalidField(field=field, problem="it cannot stand beside bytes")
        return described

    async def _copy_file(self, project: str, file_id: str, file: PrivateFile) -> None:
        source = await self._file(project, file_id)
        FileLimits.check(source.size_bytes, self._limit)
        try:
            async for chunk in self._blobs.read(source.blob_key, 0, source.size_bytes):
                await self._write(file, chunk)
        except BlobMissing:
            # Deleted between the two reads, which is the caller's doing; or lost, which is not.
            await self._file(project, file_id)
            raise

    async def _file(self, project: str, file_id: str) -> File:
        now = self._clock()
        return await self._transactions.read(lambda tx: FileQueries(tx).get(project, file_id, now))

    async def _copy_path(self, path: str, file: PrivateFile) -> None:
        found = await asyncio.to_thread(self._folders.find, "path", path)
        async for block in _blocks(found):
            await self._write(file, block)

    async def _write(self, file: PrivateFile, block: bytes) -> None:
        FileLimits.check(file.size_bytes + len(block), self._limit)
        with disk_errors():
            await asyncio.to_thread(file.write, block)


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    with disk_errors(), await asyncio.to_thread(path.open, "rb") as source:
        while block := await asyncio.to_thread(source.read, _BLOCK_BYTES):
            yield block
