"""The sweeper: deletes expired rows of all projects, and blobs that no row refers to."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from control_svc.blobs.store import BlobStore, StoredKey
from control_svc.db.cleanup import CleanupStep, Deleted
from control_svc.db.transaction import Clock, Transaction, Transactions
from svc_kit.logs import log_errors

_log = logging.getLogger(__name__)


class SweepResult(NamedTuple):
    """What one round deleted."""

    expired: int
    """Number of rows."""
    orphans: int
    """Number of blobs without a row."""


class Sweeper:
    """Runs the cleanup steps of all slices and deletes unreferenced blobs."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        clock: Clock,
        grace: timedelta,
        steps: Sequence[CleanupStep],
        blob_columns: Sequence[InstrumentedAttribute[str]],
    ) -> None:
        """`grace` is the age from which a blob without a row is an orphan; it must exceed the
        longest call. `steps` run in their order. `blob_columns` are all columns with blob keys.
        """
        self._transactions = transactions
        self._blobs = blobs
        self._clock = clock
        self._grace = grace
        self._steps = steps
        self._blob_columns = blob_columns

    async def run(self, interval_s: float) -> None:
        """Sweep every `interval_s` seconds until cancelled; a failed round is logged."""
        while True:
            with log_errors(_log, "sweeping failed"):
                swept = await self.sweep()
                if any(swept):
                    _log.info("swept", extra={"fields": swept._asdict()})
            await asyncio.sleep(interval_s)

    async def sweep(self) -> SweepResult:
        """Run one round. Orphans go first: a full disk needs their space before rows can go."""
        now = self._clock()
        num_orphans = await self._delete_orphans(now)
        return SweepResult(sum([await self._run(step, now) for step in self._steps]), num_orphans)

    async def _run(self, step: CleanupStep, now: datetime) -> int:
        async def delete_rows(tx: Transaction) -> Deleted:
            return await step(tx, now)

        total = 0
        while (deleted := await self._transactions.write(delete_rows)).num_rows:
            await self._blobs.delete(deleted.blob_keys)
            total += deleted.num_rows
        return total

    async def _delete_orphans(self, now: datetime) -> int:
        total = 0
        async for group in self._blobs.keys():
            orphans = await self._orphans(group, now)
            await self._blobs.delete(orphans)
            total += len(orphans)
        return total

    async def _orphans(self, group: Sequence[StoredKey], now: datetime) -> set[str]:
        old = {stored.key for stored in group if stored.touched_at <= now - self._grace}
        if not old:
            return old

        async def find_referenced(tx: Transaction) -> set[str]:
            queries = [select(column).where(column.in_(old)) for column in self._blob_columns]
            return {key for query in queries for key in await tx.session.scalars(query)}

        return old - await self._transactions.read(find_referenced)
