"""The sweeper: deletes what has expired, over all projects, and blobs that no row names."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Row, delete, or_, select, tuple_, update

from control_svc.adapters.queries import AdapterRow
from control_svc.base.idempotency import RETENTION, RequestRow
from control_svc.batches.model import FINAL_STATES, BatchState
from control_svc.batches.service import CLOSING_KIND, KIND
from control_svc.batches.tables import BatchLineRow, BatchRow
from control_svc.blobs.store import BlobStore, StoredKey
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.event_log.model import StreamState
from control_svc.event_log.queries import StreamChunkRow, StreamRow
from control_svc.files.model import UploadState
from control_svc.files.tables import FileRow, UploadPartRow, UploadRow
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.jobs.model import DEAD_KEPT_FOR, DONE_KEPT_FOR, JOBS_TOPIC, JobState
from control_svc.jobs.queries import JobRow
from control_svc.projects import usage
from control_svc.projects.usage import UsageReportRow
from control_svc.responses.queries import ResponseQueries
from control_svc.vector_stores.service import sweep_vectors
from svc_kit.errors import DomainError


class DeletedRows(NamedTuple):
    """Rows that are gone, and the keys of their bytes, which are the caller's to delete."""

    num_rows: int
    blob_keys: Sequence[str]


class CleanupQueries:
    """SQL of the sweeper, over all projects. Rows that another process is sweeping are skipped."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def drop_expired_files(self, now: datetime, limit: int) -> DeletedRows:
        """Forget files that have expired."""
        expired = (
            select(FileRow.project, FileRow.id)
            .where(FileRow.expires_at <= now)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        keys = await self._session.scalars(
            delete(FileRow)
            .where(tuple_(FileRow.project, FileRow.id).in_(expired))
            .returning(FileRow.blob_key)
        )
        found = list(keys)
        return DeletedRows(len(found), found)

    async def expire_uploads(self, now: datetime, limit: int) -> DeletedRows:
        """Turn late uploads to expired and forget their parts."""
        late = (
            select(UploadRow.project, UploadRow.id)
            .where(UploadRow.state == UploadState.PENDING.value, UploadRow.expires_at <= now)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        uploads = (
            await self._session.execute(
                update(UploadRow)
                .where(tuple_(UploadRow.project, UploadRow.id).in_(late))
                .values(state=UploadState.EXPIRED.value)
                .returning(UploadRow.project, UploadRow.id)
            )
        ).all()
        keys = await self._session.scalars(
            delete(UploadPartRow)
            .where(
                tuple_(UploadPartRow.project, UploadPartRow.upload_id).in_(
                    [tuple(upload) for upload in uploads]
                )
            )
            .returning(UploadPartRow.blob_key)
        )
        return DeletedRows(len(uploads), list(keys))

    async def delete_requests(self, before: datetime, limit: int) -> int:
        """Forget requests carried out before a time; how many there were."""
        old = (
            select(RequestRow.project, RequestRow.method, RequestRow.request_id)
            .where(RequestRow.created_at < before)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        key = tuple_(RequestRow.project, RequestRow.method, RequestRow.request_id)
        forgotten = await self._session.scalars(
            delete(RequestRow).where(key.in_(old)).returning(RequestRow.request_id)
        )
        return len(forgotten.all())

    async def delete_jobs(self, state: JobState, before: datetime, limit: int) -> int:
        """Forget jobs that ended so before a time; how many there were."""
        old = (
            select(JobRow.project, JobRow.id)
            .where(JobRow.state == state, JobRow.ended_at < before)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        forgotten = await self._session.scalars(
            delete(JobRow).where(tuple_(JobRow.project, JobRow.id).in_(old)).returning(JobRow.id)
        )
        return len(forgotten.all())

    async def delete_usage_reports(self, before: datetime, limit: int) -> int:
        """Forget the ids of reports added before a time; how many there were."""
        old = (
            select(UsageReportRow.id)
            .where(UsageReportRow.added_at < before)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        forgotten = await self._session.scalars(
            delete(UsageReportRow).where(UsageReportRow.id.in_(old)).returning(UsageReportRow.id)
        )
        return len(forgotten.all())

    async def hurry_late_batches(self, kind: str, hurried_kind: str, now: datetime) -> int:
        """Give waiting jobs another kind where the window of their batch has closed; how many."""
        late = select(BatchRow.project, BatchRow.id).where(
            BatchRow.state.in_([BatchState.VALIDATING.value, BatchState.IN_PROGRESS.value]),
            BatchRow.expires_at <= now,
        )
        waiting = (
            select(JobRow.project, JobRow.id)
            .where(
                JobRow.state == JobState.QUEUED,
                JobRow.kind == kind,
                tuple_(JobRow.project, JobRow.subject).in_(late),
            )
            .with_for_update(skip_locked=True)
        )
        hurried = await self._session.scalars(
            update(JobRow)
            .where(tuple_(JobRow.project, JobRow.id).in_(waiting))
            .values(kind=hurried_kind, run_after=now)
            .returning(JobRow.id)
        )
        return len(hurried.all())

    async def drop_batch_lines(self, before: datetime, limit: int) -> int:
        """Forget lines of batches that have ended; how many there were. Of those that failed
        without files, lines are kept until they failed before a time."""
        line = tuple_(BatchLineRow.project, BatchLineRow.batch_id, BatchLineRow.number)
        some = (
            select(BatchLineRow.project, BatchLineRow.batch_id, BatchLineRow.number)
            .join(
                BatchRow,
                (BatchRow.project == BatchLineRow.project) & (BatchRow.id == BatchLineRow.batch_id),
            )
            .where(
                BatchRow.state.in_([state.value for state in FINAL_STATES]),
                or_(
                    BatchRow.state != BatchState.FAILED.value,
                    BatchRow.output_file_id.is_not(None),
                    BatchRow.error_file_id.is_not(None),
                    BatchRow.failed_at < before,
                ),
            )
            .limit(limit)
            .with_for_update(skip_locked=True, of=BatchLineRow)
        )
        dropped = await self._session.scalars(
            delete(BatchLineRow).where(line.in_(some)).returning(BatchLineRow.number)
        )
        return len(dropped.all())

    async def sweep_streams(self, before: datetime, limit: int) -> int:
        """Forget the events of streams that ended before a time, about as many chunks of them; how
        many streams there were."""
        old = await self._session.execute(
            select(StreamRow.project, StreamRow.id, StreamRow.num_chunks)
            .where(StreamRow.state == StreamState.ENDED, StreamRow.ended_at < before)
            .order_by(StreamRow.ended_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        keys = _worth(old, limit)
        chunk = tuple_(StreamChunkRow.project, StreamChunkRow.stream_id)
        await self._session.execute(delete(StreamChunkRow).where(chunk.in_(keys)))
        await self._session.execute(
            update(StreamRow)
            .where(tuple_(StreamRow.project, StreamRow.id).in_(keys))
            .values(state=StreamState.SWEPT)
        )
        return len(keys)

    async def unreferenced(self, keys: Collection[str]) -> set[str]:
        """Those of the keys that no row names."""
        left = set(keys)
        for column in (FileRow.blob_key, UploadPartRow.blob_key, AdapterRow.blob_key):
            left.difference_update(
                await self._session.scalars(select(column).where(column.in_(left)))
            )
        return left


def _worth(streams: Iterable[Row[str, str, int]], limit: int) -> list[tuple[str, str]]:
    """The first streams with about so many chunks together; at least one, if there is one."""
    keys: list[tuple[str, str]] = []
    total = 0
    for project, stream_id, num_chunks in streams:
        if keys and total + num_chunks > limit:
            break
        keys.append((project, stream_id))
        total += num_chunks
    return keys


_log = logging.getLogger(__name__)
ROWS_AT_ONCE: Final = 500
RESPONSES_AT_ONCE: Final = 50
"""Each takes its items and events along."""


class SweepResult(NamedTuple):
    """What one round found."""

    expired: int
    """Files and uploads whose time had come."""
    orphans: int
    """Bytes without a row."""


class Sweeper:
    """Deletes expired rows and unreferenced blobs."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        clock: Clock,
        grace: timedelta,
        streams_kept_for: timedelta,
        prefix_cleanup: PrefixCleanup,
    ) -> None:
        """`grace` is the age from which bytes without a row are orphans: longer than any call.

        `streams_kept_for` is how long a stream can be read once it has ended.
        """
        self._transactions = transactions
        self._blobs = blobs
        self._clock = clock
        self._grace = grace
        self._streams_kept_for = streams_kept_for
        self._prefix_cleanup = prefix_cleanup

    async def run(self, interval_s: float) -> None:
        """Sweep now and then until cancelled; a round that fails is tried again at the next."""
        while True:
            try:
                swept = await self.sweep()
            except DomainError as error:
                _log.warning("sweeping failed: %s", error)
            except Exception:  # logged only: the next round may succeed
                _log.exception("sweeping failed")
            else:
                if any(swept):
                    _log.info("swept", extra={"fields": swept._asdict()})
            await asyncio.sleep(interval_s)

    async def sweep(self) -> SweepResult:
        """One round; orphans first, because on a full disk rows can go only once there is room."""
        now = self._clock()
        num_orphans = await self._drop_orphans(now)
        expired = await self._drop(
            lambda tx: CleanupQueries(tx).drop_expired_files(now, ROWS_AT_ONCE)
        )
        expired += await self._drop(lambda tx: CleanupQueries(tx).expire_uploads(now, ROWS_AT_ONCE))
        await self._transactions.write(_hurry_late_batches)
        await sweep_vectors(self._transactions, now)
        await self._forget(now)
        return SweepResult(expired, num_orphans)

    async def _drop(self, drop: Callable[[Transaction], Awaitable[DeletedRows]]) -> int:
        total, dropped = 0, await self._transactions.write(drop)
        while dropped.num_rows:
            await self._blobs.delete(dropped.blob_keys)
            total += dropped.num_rows
            dropped = await self._transactions.write(drop)
        return total

    async def _forget(self, now: datetime) -> None:
        """Delete events of ended streams, ended jobs, lines of ended batches, idempotency records
        and usage reports.
        """
        ended_before = now - self._streams_kept_for
        await self._until_none(
            lambda tx: CleanupQueries(tx).sweep_streams(ended_before, ROWS_AT_ONCE)
        )
        await self._until_none(lambda tx: self._drop_responses(tx, now))
        for state, kept_for in ((JobState.DONE, DONE_KEPT_FOR), (JobState.DEAD, DEAD_KEPT_FOR)):
            await self._until_none(_delete_jobs(state, now - kept_for))
        # After the dead jobs: one that begins again needs its lines.
        failed_before = now - DEAD_KEPT_FOR
        await self._until_none(
            lambda tx: CleanupQueries(tx).drop_batch_lines(failed_before, ROWS_AT_ONCE)
        )
        before = now - RETENTION
        await self._until_none(lambda tx: CleanupQueries(tx).delete_requests(before, ROWS_AT_ONCE))
        added_before = now - usage.RETENTION
        await self._until_none(
            lambda tx: CleanupQueries(tx).delete_usage_reports(added_before, ROWS_AT_ONCE)
        )

    async def _drop_responses(self, tx: Transaction, now: datetime) -> int:
        expired = await ResponseQueries(tx).drop_expired(now, RESPONSES_AT_ONCE)
        for each in expired:
            if each.is_start:
                await self._prefix_cleanup.enqueue(tx, each.project, each.id)
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
        return await self._transactions.read(lambda tx: CleanupQueries(tx).unreferenced(old))


async def _hurry_late_batches(tx: Transaction) -> None:
    """Batches that waited behind others until their windows closed need not wait to be ended."""
    now = await tx.now()
    if await CleanupQueries(tx).hurry_late_batches(KIND, CLOSING_KIND, now):
        tx.announce(JOBS_TOPIC)


def _delete_jobs(state: JobState, before: datetime) -> Callable[[Transaction], Awaitable[int]]:
    return lambda tx: CleanupQueries(tx).delete_jobs(state, before, ROWS_AT_ONCE)
