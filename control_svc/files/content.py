"""Reads whole files into memory, for prompts that refer to them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from control_svc.blobs.store import BlobStore
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.files.model import File
from control_svc.files.queries import FileQueries
from dialects.shared.media import FileReference, MediaBudget, StoredFile
from svc_kit.errors import BlobMissing
from svc_kit.fair_semaphore import FairSemaphore

_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Limit of all files that are in memory."""


class FileContents:
    """Reads files for prompts, with limits for each prompt and for the process."""

    def __init__(self, transactions: Transactions, blobs: BlobStore, clock: Clock) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._clock = clock
        self._memory = FairSemaphore(_MEMORY_BYTES)

    @asynccontextmanager
    async def open(
        self, project: str, references: Sequence[FileReference]
    ) -> AsyncIterator[Mapping[str, StoredFile]]:
        """Yield the files by id. Waits for its turn while too many others are in memory.

        Raises FileNotFound and TooLong, with the field of the reference, StorageFailed and
        BlobMissing.
        """
        files = await self._find(project, references) if references else {}
        size = sum(file.size_bytes for file in files.values())
        async with self._memory.reserve(size, project):
            fields = {file_id: field for field, file_id in references}
            yield {
                file_id: StoredFile(file.filename, await self._read(project, file, fields[file_id]))
                for file_id, file in files.items()
            }

    async def _find(self, project: str, references: Sequence[FileReference]) -> dict[str, File]:
        budget = MediaBudget()

        async def find(tx: Transaction) -> dict[str, File]:
            files = await FileQueries(tx).find(references, self._clock())
            for field, file_id in references:
                budget.add(field, files[file_id].size_bytes)
            return files

        return await self._transactions.of(project).read(find)

    async def _read(self, project: str, file: File, field: str) -> bytes:
        try:
            chunks = self._blobs.read(file.blob_key, 0, file.size_bytes)
            return b"".join([chunk async for chunk in chunks])
        except BlobMissing:
            # Raises FileNotFound if the file has been deleted meanwhile; else its blob is lost.
            await self._transactions.of(project).read(
                lambda tx: FileQueries(tx).get(file.id, self._clock(), field)
            )
            raise
