"""Writes the output and error files of a batch; they become visible with the end of the batch.

Each attempt writes blobs of its own. Those of an attempt that was overtaken have no row and are
swept.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

from control_svc.base.ids import FILE, IdSource
from control_svc.batches.lines import EndedLine, text_of
from control_svc.batches.model import Batch
from control_svc.batches.queries import READ_AT_ONCE, BatchLineQueries, BatchQueries
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.model import File, FilePurpose, expiry_of
from control_svc.files.queries import FileQueries
from control_svc.jobs.handler import JobContext


class BatchWriter:
    """Writes the output and the errors of batches that have closed."""

    def __init__(self, transactions: Transactions, blobs: BlobStore, ids: IdSource) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._ids = ids

    async def write(self, batch: Batch, context: JobContext) -> None:
        """End the batch, with its files where it has any. Raises StorageFailed or LeaseLost."""
        project = context.claim.project
        output = await self._bytes(project, batch, "output") if batch.has_begun else None
        errors = await self._bytes(project, batch, "error") if batch.has_begun else None

        async def finish(tx: Transaction) -> None:
            now = await tx.now()
            found = await BatchQueries(tx).lock(project, batch.id)
            files = [
                None if blob is None else self._new_file(batch, blob, what, now)
                for blob, what in ((output, "output"), (errors, "error"))
            ]
            for file in filter(None, files):
                await FileQueries(tx).add(project, file)
            finished = found.finish(_id_of(files[0]), _id_of(files[1]), now)
            await BatchQueries(tx).update(project, finished)
            tx.announce(batch.id)

        await context.finish(finish)

    async def _bytes(self, project: str, batch: Batch, what: str) -> Blob | None:
        """The bytes of the file of one kind; None: no line belongs there."""
        async with self._blobs.create() as sink:
            async for text in self._lines(project, batch, completed=what == "output"):
                await sink.write(text)
            if not sink.size_bytes:
                return None
            return await sink.commit()

    async def _lines(self, project: str, batch: Batch, *, completed: bool) -> AsyncIterator[bytes]:
        after = 0
        while lines := await self._transactions.read(
            _next_lines(project, batch.id, completed=completed, after=after)
        ):
            for line in lines:
                yield text_of(batch.id, line) + b"\n"
            after = lines[-1].number

    def _new_file(self, batch: Batch, blob: Blob, what: str, now: datetime) -> File:
        return File(
            id=self._ids.new(FILE),
            filename=f"{batch.id}_{what}.jsonl",
            purpose=FilePurpose.BATCH_OUTPUT,
            size_bytes=blob.size_bytes,
            sha256=blob.sha256,
            blob_key=blob.key,
            created_at=now,
            expires_at=expiry_of(FilePurpose.BATCH_OUTPUT, batch.output_ttl, now),
        )


def _next_lines(
    project: str, batch_id: str, *, completed: bool, after: int
) -> Callable[[Transaction], Awaitable[list[EndedLine]]]:
    return lambda tx: BatchLineQueries(tx).ended(
        project, batch_id, completed=completed, after=after, most=READ_AT_ONCE
    )


def _id_of(file: File | None) -> str | None:
    return None if file is None else file.id
