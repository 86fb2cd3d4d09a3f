"""Writes the output and error files of a batch. They become visible when the batch ends.

Each attempt writes its own blobs. The sweeper deletes the blobs of attempts that lost their lease,
since no row refers to them.
"""

from collections.abc import AsyncIterator

from control_svc.base.ids import FILE, IdSource
from control_svc.batches.lines import EndedLine
from control_svc.batches.model import Batch
from control_svc.batches.queries import READ_LIMIT, BatchLineQueries, BatchQueries
from control_svc.batches.result_lines import ended_line
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.model import FilePurpose, new_file
from control_svc.files.queries import FileQueries
from control_svc.jobs.handler import JobContext


class BatchWriter:
    """Writes the files of closed batches."""

    def __init__(self, transactions: Transactions, blobs: BlobStore, ids: IdSource) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._ids = ids

    async def write(self, batch: Batch, context: JobContext) -> None:
        """Write the files and end the batch. Raises StorageFailed or LeaseLost."""
        project = context.claim.project
        blobs: dict[str, Blob] = {}
        for name in ("output", "error") if batch.is_validated else ():
            blob = await self._write_blob(project, batch, completed=name == "output")
            if blob is not None:
                blobs[name] = blob

        async def finish(tx: Transaction) -> None:
            now = await tx.now()
            locked = await BatchQueries(tx).lock(batch.id)
            ids: dict[str, str] = {}
            for name, blob in blobs.items():
                ids[name] = self._ids.new(FILE)
                filename, purpose = f"{batch.id}_{name}.jsonl", FilePurpose.BATCH_OUTPUT
                file = new_file(ids[name], filename, purpose, blob, batch.output_ttl, now)
                await FileQueries(tx).add(file)
            finished = locked.finish(ids.get("output"), ids.get("error"), now)
            await BatchQueries(tx).update(finished)
            tx.announce(batch.id)

        await context.finish(finish)

    async def _write_blob(self, project: str, batch: Batch, *, completed: bool) -> Blob | None:
        """Write the lines that completed, or those that did not; None if there are none."""
        async with self._blobs.create() as sink:
            async for text in self._read_lines(project, batch, completed=completed):
                await sink.write(text)
            if not sink.size_bytes:
                return None
            return await sink.commit()

    async def _read_lines(
        self, project: str, batch: Batch, *, completed: bool
    ) -> AsyncIterator[bytes]:
        after = 0

        async def read(tx: Transaction) -> list[EndedLine]:
            return await BatchLineQueries(tx).list_ended(
                batch.id, completed=completed, after=after, limit=READ_LIMIT
            )

        while lines := await self._transactions.of(project).read(read):
            for line in lines:
                yield ended_line(batch, line) + b"\n"
            after = lines[-1].number
