"""The sweeper: deletes expired rows of all projects, and blobs that no row refers to."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from control_svc.blobs.store import BlobStore
from control_svc.db.cleanup import CleanupStep
from control_svc.db.transaction import Clock, CrossProjectTransaction, CrossProjectTransactions
from svc_kit.logs import log_errors

_log = logging.getLogger(__name__)
_FIRST_ROUND_S: Final = 10.0


class SweepResult(NamedTuple):
    """What one round deleted."""

    expired: int
    """Number of rows."""
    orphans: int
    """Number of blobs without a row."""


@dataclass(frozen=True)
class Sweeper:
    """Runs the cleanup steps of all slices and deletes unreferenced blobs."""

    transactions: CrossProjectTransactions
    blobs: BlobStore
    clock: Clock
    grace: timedelta
    """Age from which a blob without a row is an orphan; longer than the longest call."""
    steps: Sequence[CleanupStep]
    """In the order in which they run."""
    blob_columns: Sequence[sa.Column[Any]]
    """All columns with blob keys."""

    async def run(self, interval_s: float) -> None:
        """Sweep every `interval_s` seconds until cancelled; a failed round is logged.

        The first round is a few seconds after the start, which has enough to do.
        """
        wait_s = min(interval_s, _FIRST_ROUND_S)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = interval_s
            with log_errors(_log, "sweeping failed"):
                swept = await self.sweep()
                if any(swept):
                    _log.info("swept", extra={"fields": swept._asdict()})

    async def sweep(self) -> SweepResult:
        """Run one round. Orphans go first: a full disk needs their space before rows can go."""
        now = self.clock()
        num_orphans = await self._delete_orphans(now)
        return SweepResult(sum([await self._run(step, now) for step in self.steps]), num_orphans)

    async def _run(self, step: CleanupStep, now: datetime) -> int:
        total = 0
        while (deleted := await self.transactions.delete(lambda tx: step(tx, now))).num_rows:
            await self.blobs.delete(deleted.blob_keys)
            total += deleted.num_rows
        return total

    async def _delete_orphans(self, now: datetime) -> int:
        total = 0
        if await self.blobs.is_deletion_suspended():
            return total
        async for group in self.blobs.keys():
            old = {stored.key for stored in group if stored.touched_at <= now - self.grace}
            orphans = await find_orphans(self.transactions, self.blob_columns, old)
            await self.blobs.delete(orphans)
            total += len(orphans)
        return total


async def find_orphans(
    transactions: CrossProjectTransactions,
    blob_columns: Sequence[sa.Column[Any]],
    keys: Collection[str],
) -> set[str]:
    """Those of the keys that no row refers to."""

    async def find_referenced(tx: CrossProjectTransaction) -> set[str]:
        queries = [sa.select(column).where(column.in_(keys)) for column in blob_columns]
        return {key for query in queries for key in await tx.session.scalars(query)}

    return set(keys) - await transactions.read(find_referenced) if keys else set()
