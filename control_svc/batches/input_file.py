"""Reads the input file of a batch, validates every line, and inserts the lines as rows."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from control_svc.batches.lines import LineChecker, LineLimits, LineSplitter, PendingLine, RawLine
from control_svc.batches.model import Batch, LineProblem
from control_svc.batches.queries import BatchLineQueries, BatchQueries
from control_svc.blobs.store import BlobStore
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.model import File
from control_svc.files.queries import FileQueries
from control_svc.jobs.handler import JobContext
from svc_kit.errors import BlobMissing, FileNotFound

_GROUP_LINES: Final = 500
_GROUP_BYTES: Final = 4 << 20
"""Lines are validated and inserted in groups of about this size."""


class BatchReader:
    """Validates and stores the lines of batches."""

    def __init__(self, transactions: Transactions, blobs: BlobStore, limits: LineLimits) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._limits = limits

    async def read(self, batch: Batch, context: JobContext) -> Batch:
        """Store the lines. Returns the batch: in progress, failed, or still cancelling."""
        await delete_lines(batch, context)
        checker = LineChecker(batch.endpoint, self._limits)
        try:
            await self._read_lines(batch, context, checker)
        except FileNotFound:
            message = f"The file {batch.input_file_id} no longer exists."
            checker.problems = [LineProblem("file_not_found", message, "input_file_id")]
        problems = tuple(checker.problems)

        async def save(tx: Transaction) -> Batch:
            now = await tx.now()
            locked = await BatchQueries(tx).lock(batch.id)
            if problems:
                saved = locked.fail_validation(problems, now)
            else:
                saved = locked.start(checker.model, checker.num_lines, now)
            await BatchQueries(tx).update(saved)
            tx.announce(batch.id)
            return saved

        return await context.write(save, progress=True)

    async def _read_lines(self, batch: Batch, context: JobContext, checker: LineChecker) -> None:
        """Raises FileNotFound if the file is deleted, and BlobMissing if its bytes are lost."""
        try:
            await self._store_lines(batch, context, checker)
        except BlobMissing:
            await self._get_file(batch, context)
            raise

    async def _store_lines(self, batch: Batch, context: JobContext, checker: LineChecker) -> None:
        splitter = LineSplitter(self._limits.line_bytes)
        group: list[RawLine] = []
        group_bytes = 0
        file = await self._get_file(batch, context)
        # Close the file at once, also if this task is cancelled.
        async with aclosing(self._blobs.read(file.blob_key, 0, file.size_bytes)) as chunks:
            async for chunk in chunks:
                # In a thread: a chunk of newlines is up to a million lines.
                for line in await asyncio.to_thread(list, splitter.feed(chunk)):
                    group.append(line)
                    group_bytes += len(line.text or b"")
                    if len(group) >= _GROUP_LINES or group_bytes >= _GROUP_BYTES:
                        await self._store_group(batch, context, checker, group)
                        group, group_bytes = [], 0
                if checker.is_finished or context.cancelled.is_set():
                    break
        await self._store_group(batch, context, checker, [*group, *splitter.flush()])
        checker.finish()

    async def _store_group(
        self, batch: Batch, context: JobContext, checker: LineChecker, group: Sequence[RawLine]
    ) -> None:
        lines: list[PendingLine] = await asyncio.to_thread(checker.check, group)
        if lines and not checker.problems:
            await context.write(lambda tx: BatchLineQueries(tx).add(batch.id, lines))

    async def _get_file(self, batch: Batch, context: JobContext) -> File:
        async def get(tx: Transaction) -> File:
            return await FileQueries(tx).get(batch.input_file_id, await tx.now())

        return await self._transactions.of(context.claim.project).read(get)


async def delete_lines(batch: Batch, context: JobContext) -> None:
    """Delete all lines of a batch, in several transactions."""
    while await context.write(lambda tx: BatchLineQueries(tx).delete(batch.id, _GROUP_LINES)):
        pass
