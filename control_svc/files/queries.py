"""SQL of files and uploads."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy import delete, func, insert, or_, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import FILE, UPLOAD, is_id
from control_svc.base.pagination import Window
from control_svc.db.cleanup import ROWS_AT_ONCE, Deleted, delete_some
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FilePurpose, PartTotals, Upload, UploadPart, UploadState
from control_svc.files.tables import FileRow, UploadPartRow, UploadRow
from svc_kit.errors import FileNotFound, UploadNotFound


class FileQueries:
    """Files in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, file: File) -> None:
        """Insert a file."""
        await self._session.execute(insert(FileRow).values(project=project, **asdict(file)))

    async def get(self, project: str, file_id: str, now: datetime) -> File:
        """Return a file. Raises FileNotFound if it does not exist or has expired."""
        _check_form(file_id)
        row = await self._session.get(FileRow, (project, file_id))
        if row is None or _file(row).is_expired(now):
            raise FileNotFound(file=file_id)
        return _file(row)

    async def page(
        self, project: str, window: Window, purpose: FilePurpose | None, now: datetime
    ) -> list[File]:
        """Return the unexpired files of a window; `purpose` None matches any."""
        query = select(FileRow).where(FileRow.project == project, _is_unexpired(now))
        if purpose is not None:
            query = query.where(FileRow.purpose == purpose.value)
        newest_first, after = window.newest_first, window.after
        query = query.order_by(FileRow.id.desc() if newest_first else FileRow.id)
        if after:
            query = query.where(FileRow.id < after if newest_first else FileRow.id > after)
        return [_file(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def delete(self, project: str, file_id: str, now: datetime) -> File:
        """Delete the row of a file and return the file. Raises FileNotFound.

        The caller deletes the blob.
        """
        _check_form(file_id)
        row = await self._session.scalar(
            delete(FileRow)
            .where(FileRow.project == project, FileRow.id == file_id, _is_unexpired(now))
            .returning(FileRow)
        )
        if row is None:
            raise FileNotFound(file=file_id)
        return _file(row)


def _check_form(file_id: str) -> None:
    """Raise FileNotFound for a malformed id: a database may reject its characters."""
    if not is_id(file_id, FILE):
        raise FileNotFound(file=file_id)


def _is_unexpired(now: datetime) -> ColumnElement[bool]:
    return or_(FileRow.expires_at.is_(None), FileRow.expires_at > now)


def _file(row: FileRow) -> File:
    return File(
        id=row.id,
        filename=row.filename,
        purpose=FilePurpose(row.purpose),
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        blob_key=row.blob_key,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


class UploadQueries:
    """Uploads and their parts in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, upload: Upload) -> None:
        """Insert an upload."""
        await self._session.execute(insert(UploadRow).values(project=project, **asdict(upload)))

    async def get(self, project: str, upload_id: str) -> Upload:
        """Return an upload. Raises UploadNotFound."""
        return await self._get(project, upload_id, locked=False)

    async def lock(self, project: str, upload_id: str) -> Upload:
        """Like `get`, and lock the row until the end of the transaction."""
        return await self._get(project, upload_id, locked=True)

    async def update(self, project: str, upload: Upload) -> None:
        """Update the state and the file of a locked upload."""
        await self._session.execute(
            update(UploadRow)
            .where(UploadRow.project == project, UploadRow.id == upload.id)
            .values(state=upload.state.value, file_id=upload.file_id, completion=upload.completion)
        )

    async def add_part(self, project: str, part: UploadPart) -> None:
        """Insert a part."""
        await self._session.execute(insert(UploadPartRow).values(project=project, **asdict(part)))

    async def part_totals(self, project: str, upload_id: str) -> PartTotals:
        """Return the number and the total size of the stored parts."""
        row = await self._session.execute(
            select(func.count(), func.coalesce(func.sum(UploadPartRow.size_bytes), 0)).where(
                UploadPartRow.project == project, UploadPartRow.upload_id == upload_id
            )
        )
        num_parts, size_bytes = row.one()
        return PartTotals(num_parts, int(size_bytes))  # PostgreSQL sums to a Decimal

    async def parts(self, project: str, upload_id: str) -> list[UploadPart]:
        """Return the parts, oldest first."""
        rows = await self._session.scalars(
            select(UploadPartRow)
            .where(UploadPartRow.project == project, UploadPartRow.upload_id == upload_id)
            .order_by(UploadPartRow.id)
        )
        return [_part(row) for row in rows]

    async def delete_parts(self, project: str, upload_id: str) -> list[str]:
        """Delete the rows of all parts. Return their blob keys; the caller deletes the blobs."""
        keys = await self._session.scalars(
            delete(UploadPartRow)
            .where(UploadPartRow.project == project, UploadPartRow.upload_id == upload_id)
            .returning(UploadPartRow.blob_key)
        )
        return list(keys)

    async def _get(self, project: str, upload_id: str, *, locked: bool) -> Upload:
        if not is_id(upload_id, UPLOAD):
            # A database may reject the characters of a malformed id.
            raise UploadNotFound(upload=upload_id)
        key = (project, upload_id)
        row = await self._session.get(UploadRow, key, with_for_update=locked)
        if row is None:
            raise UploadNotFound(upload=upload_id)
        return _upload(row)


def _upload(row: UploadRow) -> Upload:
    return Upload(
        id=row.id,
        filename=row.filename,
        purpose=FilePurpose(row.purpose),
        size_bytes=row.size_bytes,
        mime_type=row.mime_type,
        ttl=row.ttl,
        state=UploadState(row.state),
        created_at=row.created_at,
        expires_at=row.expires_at,
        file_id=row.file_id,
        completion=row.completion,
    )


def _part(row: UploadPartRow) -> UploadPart:
    return UploadPart(
        id=row.id,
        upload_id=row.upload_id,
        size_bytes=row.size_bytes,
        blob_key=row.blob_key,
        created_at=row.created_at,
    )


async def delete_expired_files(tx: Transaction, now: datetime) -> Deleted:
    """Delete files that have expired. A step of the sweeper."""
    keys = await delete_some(tx, FileRow, FileRow.expires_at <= now, returning=FileRow.blob_key)
    return Deleted(len(keys), keys)


async def expire_uploads(tx: Transaction, now: datetime) -> Deleted:
    """Mark pending uploads past their deadline as expired and delete their parts. A step of the
    sweeper.
    """
    late = (
        select(UploadRow.project, UploadRow.id)
        .where(UploadRow.state == UploadState.PENDING.value, UploadRow.expires_at <= now)
        .limit(ROWS_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    expired = await tx.session.execute(
        update(UploadRow)
        .where(tuple_(UploadRow.project, UploadRow.id).in_(late))
        .values(state=UploadState.EXPIRED.value)
        .returning(UploadRow.project, UploadRow.id)
    )
    uploads = [tuple(upload) for upload in expired]
    keys = await tx.session.scalars(
        delete(UploadPartRow)
        .where(tuple_(UploadPartRow.project, UploadPartRow.upload_id).in_(uploads))
        .returning(UploadPartRow.blob_key)
    )
    return Deleted(len(uploads), keys.all())
