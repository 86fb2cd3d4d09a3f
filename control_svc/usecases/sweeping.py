"""The sweeper: what has expired goes, and bytes that no row names go too.

A file's bytes are stored before its row, so a crash between the two leaves bytes without a row,
never a row without bytes. What is younger than the grace may be on its way to a row.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from control_svc.domain import usage
from control_svc.domain.job_ports import JOBS_TOPIC
from control_svc.domain.jobs import DEAD_KEPT_FOR, DONE_KEPT_FOR, JobState
from control_svc.domain.ports import BlobStore, Clock, Dropped, StoredKey
from control_svc.domain.requests import REMEMBERED_FOR
from control_svc.storage.repositories.housekeeping import SqlHousekeeping
from control_svc.storage.repositories.responses import SqlResponses
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.archives import Archives
from control_svc.usecases.batches import CLOSING_KIND, KIND
from control_svc.usecases.vector_sweeping import sweep_vectors
from svc_kit.errors import DomainError

_log = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 500
RESPONSES_AT_ONCE: Final = 50
"""Each takes its items and events along."""


class Swept(NamedTuple):
    """What one round found."""

    expired: int
    """Files and uploads whose time had come."""
    orphans: int
    """Bytes without a row."""


class Sweeper:
    """Removes what nobody can see any more."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        clock: Clock,
        grace: timedelta,
        streams_kept_for: timedelta,
        archives: Archives,
    ) -> None:
        """`grace` is the age from which bytes without a row are orphans: longer than any call.

        `streams_kept_for` is how long a stream can be read once it has ended.
        """
        self._transactions = transactions
        self._blobs = blobs
        self._clock = clock
        self._grace = grace
        self._streams_kept_for = streams_kept_for
        self._archives = archives

    async def run(self, interval_s: float) -> None:
        """Sweep now and then until cancelled; a round that fails is tried again at the next."""
        while True:
            try:
                swept = await self.sweep()
            except DomainError as error:
                _log.warning("sweeping failed: %s", error)
            except Exception:  # nobody else hears of it, and the next round may do better
                _log.exception("sweeping failed")
            else:
                if any(swept):
                    _log.info("swept", extra={"fields": swept._asdict()})
            await asyncio.sleep(interval_s)

    async def sweep(self) -> Swept:
        """One round; orphans first, because on a full disk rows can go only once there is room."""
        now = self._clock()
        num_orphans = await self._drop_orphans(now)
        expired = await self._drop(
            lambda tx: SqlHousekeeping(tx).drop_expired_files(now, ROWS_AT_ONCE)
        )
        expired += await self._drop(
            lambda tx: SqlHousekeeping(tx).expire_uploads(now, ROWS_AT_ONCE)
        )
        await self._transactions.write(_hurry_late_batches)
        await sweep_vectors(self._transactions, now)
        await self._forget(now)
        return Swept(expired, num_orphans)

    async def _drop(self, drop: Callable[[Transaction], Awaitable[Dropped]]) -> int:
        total, dropped = 0, await self._transactions.write(drop)
        while dropped.num_rows:
            await self._blobs.delete(dropped.blob_keys)
            total += dropped.num_rows
            dropped = await self._transactions.write(drop)
        return total

    async def _forget(self, now: datetime) -> None:
        """What nobody asks for any more: events of ended streams, ended jobs, lines of ended
        batches, requests, reports of usage."""
        ended_before = now - self._streams_kept_for
        await self._until_none(
            lambda tx: SqlHousekeeping(tx).sweep_streams(ended_before, ROWS_AT_ONCE)
        )
        await self._until_none(lambda tx: self._drop_responses(tx, now))
        for state, kept_for in ((JobState.DONE, DONE_KEPT_FOR), (JobState.DEAD, DEAD_KEPT_FOR)):
            await self._until_none(_forget_jobs(state, now - kept_for))
        # After the dead jobs: one that begins again needs its lines.
        failed_before = now - DEAD_KEPT_FOR
        await self._until_none(
            lambda tx: SqlHousekeeping(tx).drop_batch_lines(failed_before, ROWS_AT_ONCE)
        )
        before = now - REMEMBERED_FOR
        await self._until_none(lambda tx: SqlHousekeeping(tx).forget_requests(before, ROWS_AT_ONCE))
        added_before = now - usage.REMEMBERED_FOR
        await self._until_none(
            lambda tx: SqlHousekeeping(tx).forget_usage_reports(added_before, ROWS_AT_ONCE)
        )

    async def _drop_responses(self, tx: Transaction, now: datetime) -> int:
        expired = await SqlResponses(tx).drop_expired(now, RESPONSES_AT_ONCE)
        for each in expired:
            if each.is_start:
                await self._archives.forget(tx, each.project, each.id)
        return len(expired)

    async def _until_none(self, forget: Callable[[Transaction], Awaitable[int]]) -> None:
        while await self._transactions.write(forget):
            pass  # each round is a transaction of its own

    async def _drop_orphans(self, now: datetime) -> int:
        total = 0
        async for group in self._blobs.keys():
            orphans = await self._orphans(group, now)
            await self._blobs.delete(orphans)
            total += len(orphans)
        return total

    async def _orphans(self, group: Sequence[StoredKey], now: datetime) -> set[str]:
        old = [stored.key for stored in group if stored.touched_at <= now - self._grace]
        if not old:
            return set()
        return await self._transactions.read(lambda tx: SqlHousekeeping(tx).unreferenced(old))


async def _hurry_late_batches(tx: Transaction) -> None:
    """Batches that waited behind others until their windows closed need not wait to be ended."""
    now = await tx.now()
    if await SqlHousekeeping(tx).hurry_late_batches(KIND, CLOSING_KIND, now):
        tx.announce(JOBS_TOPIC)


def _forget_jobs(state: JobState, before: datetime) -> Callable[[Transaction], Awaitable[int]]:
    return lambda tx: SqlHousekeeping(tx).forget_jobs(state, before, ROWS_AT_ONCE)
