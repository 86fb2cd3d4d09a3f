"""Queries over all projects, for the sweeper and the start of the service alone."""

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import Row, delete, insert, or_, select, tuple_, update

from control_svc.domain.batches import FINAL_STATES, BatchState
from control_svc.domain.jobs import JobState
from control_svc.domain.ports import Dropped
from control_svc.domain.streams import StreamState
from control_svc.domain.uploads import UploadState
from control_svc.storage.models import (
    AdapterRow,
    BatchLineRow,
    BatchRow,
    FileRow,
    JobRow,
    RequestRow,
    SecretRow,
    StreamChunkRow,
    StreamRow,
    UploadPartRow,
    UploadRow,
    UsageReportRow,
)
from control_svc.storage.unit_of_work import Transaction


class SqlHousekeeping:
    """What has to be done whoever it belongs to, in one transaction.

    Rows that another control process is sweeping are skipped, not waited for.
    """

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def drop_expired_files(self, now: datetime, limit: int) -> Dropped:
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
        return Dropped(len(found), found)

    async def expire_uploads(self, now: datetime, limit: int) -> Dropped:
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
        return Dropped(len(uploads), list(keys))

    async def forget_requests(self, before: datetime, limit: int) -> int:
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

    async def forget_jobs(self, state: JobState, before: datetime, limit: int) -> int:
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

    async def forget_usage_reports(self, before: datetime, limit: int) -> int:
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

    async def secret(self, name: str, candidate: bytes) -> bytes:
        """The installation's secret of a name; the candidate, where it has none yet."""
        row = await self._session.get(SecretRow, name)
        if row is not None:
            return row.value
        await self._session.execute(insert(SecretRow).values(name=name, value=candidate))
        return candidate


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
