"""Reads the input file of a batch once, validates every line and inserts them as rows."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from control_svc.batches.lines import LineChecker, LineLimits, LineSplitter, NewLine, RawLine
from control_svc.batches.model import Batch, LineProblem
from control_svc.batches.queries import BatchLineQueries, BatchQueries
from control_svc.blobs.store import BlobMissing, BlobStore
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.model import File
from control_svc.files.queries import FileQueries
from control_svc.jobs.handler import JobContext
from svc_kit.errors import FileNotFound

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 4 << 20
"""How much is checked by a thread, and stored in a transaction, at a time; a line may be more."""


class BatchReader:
    """Checks and stores the lines of batches."""

    def __init__(self, transactions: Transactions, blobs: BlobStore, limits: LineLimits) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._limits = limits

    async def read(self, batch: Batch, context: JobContext) -> Batch:
        """The batch with its lines, in progress; or failed; or still cancelling."""
        await drop_lines(batch, context)
        checker = LineChecker(batch.endpoint, self._limits)
        try:
            await self._store_lines(batch, context, checker)
        except (FileNotFound, BlobMissing):
            message = f"The file {batch.input_file_id} does not exist any more."
            checker.problems = [LineProblem("file_not_found", message, "input_file_id")]
        problems, project = tuple(checker.problems), context.claim.project

        async def decide(tx: Transaction) -> Batch:
            now = await tx.now()
            found = await BatchQueries(tx).lock(project, batch.id)
            decided = (
                found.refuse(problems, now)
                if problems
                else found.begin(checker.model, checker.num_lines, now)
            )
            await BatchQueries(tx).update(project, decided)
            tx.announce(batch.id)
            return decided

        return await context.write(decide, progress=True)

    async def _store_lines(self, batch: Batch, context: JobContext, checker: LineChecker) -> None:
        splitter = LineSplitter(self._limits.line_bytes)
        group: list[RawLine] = []
        group_bytes = 0
        file = await self._transactions.read(lambda tx: _input_of(tx, context.claim.project, batch))
        # Closed at once, also where this is broken off: it has a file open.
        async with aclosing(self._blobs.read(file.blob_key, 0, file.size_bytes)) as chunks:
            async for chunk in chunks:
                # By a thread: a chunk of newlines alone is a million lines.
                for line in await asyncio.to_thread(list, splitter.feed(chunk)):
                    group.append(line)
                    group_bytes += len(line.text or b"")
                    if len(group) >= _LINES_AT_ONCE or group_bytes >= _BYTES_AT_ONCE:
                        await self._store(batch, context, checker, group)
                        group, group_bytes = [], 0
                if checker.is_done or context.cancelled.is_set():
                    break
        await self._store(batch, context, checker, [*group, *splitter.finish()])
        checker.finish()

    async def _store(
        self, batch: Batch, context: JobContext, checker: LineChecker, group: Sequence[RawLine]
    ) -> None:
        good: list[NewLine] = await asyncio.to_thread(checker.check, group)
        if good and not checker.problems:
            await context.write(
                lambda tx: BatchLineQueries(tx).add(context.claim.project, batch.id, good)
            )


async def _input_of(tx: Transaction, project: str, batch: Batch) -> File:
    return await FileQueries(tx).get(project, batch.input_file_id, await tx.now())


async def drop_lines(batch: Batch, context: JobContext) -> None:
    """Forget all lines of a batch, some in each transaction."""
    while await context.write(
        lambda tx: BatchLineQueries(tx).drop(context.claim.project, batch.id, _LINES_AT_ONCE)
    ):
        pass
