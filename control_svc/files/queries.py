"""SQL of files and uploads."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import FILE, UPLOAD, id_batches, is_id
from control_svc.base.object_queries import ObjectQueries
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.cleanup import ROWS_AT_ONCE, Deleted, delete_some
from control_svc.db.tables import read_row, row_values
from control_svc.db.transaction import CrossProjectTransaction, Queries
from control_svc.files.model import File, FilePurpose, PartTotals, Upload, UploadPart, UploadState
from control_svc.files.tables import FileRow, UploadPartRow, UploadRow
from svc_kit.errors import DomainError, FileNotFound, UploadNotFound


class FileQueries(Queries):
    async def add(self, file: File) -> None:
        await self._insert(FileRow, asdict(file))

    async def get(self, file_id: str, now: datetime, field: str = "id") -> File:
        """Return a file. Raises FileNotFound if it does not exist or has expired.

        `field` is the field of the request that has the id.
        """
        row = None
        if is_id(file_id, FILE):  # databases reject some characters of malformed ids
            row = await self._session.get(FileRow, (self._project, file_id))
        if row is None or _file(row).is_expired(now):
            raise FileNotFound(file=file_id, field=field)
        return _file(row)

    async def find(self, uses: Iterable[tuple[str, str]], now: datetime) -> dict[str, File]:
        """Return files by id, for pairs of a field of the request and the id that it has.

        Raises FileNotFound for the first that does not exist or has expired, naming its field.
        """
        fields: dict[str, str] = {}
        for field, file_id in uses:
            fields.setdefault(file_id, field)
        files: dict[str, File] = {}
        for ids in id_batches(fields):
            query = self._select(FileRow, FileRow.id.in_(ids), _is_unexpired(now))
            files |= {row.id: _file(row) for row in await self._session.scalars(query)}
        for file_id, field in fields.items():
            if file_id not in files:
                raise FileNotFound(file=file_id, field=field)
        return files

    async def page(self, window: Window, purpose: FilePurpose | None, now: datetime) -> list[File]:
        """Return the unexpired files of a window; `purpose` None matches any."""
        query = self._select(FileRow, _is_unexpired(now))
        if purpose is not None:
            query = query.where(FileRow.purpose == purpose.value)
        rows = await self._session.scalars(apply_window(query, FileRow.id, window))
        return restore_order([_file(row) for row in rows], window)

    async def delete(self, file_id: str, now: datetime) -> File:
        """Delete the row of a file and return the file. Raises FileNotFound.

        The caller deletes the blob.
        """
        row = None
        if is_id(file_id, FILE):
            row = await self._session.scalar(
                self._delete(FileRow, FileRow.id == file_id, _is_unexpired(now)).returning(FileRow)
            )
        if row is None:
            raise FileNotFound(file=file_id)
        return _file(row)


def _is_unexpired(now: datetime) -> ColumnElement[bool]:
    return sa.or_(FileRow.expires_at.is_(None), FileRow.expires_at > now)


def _file(row: FileRow) -> File:
    return read_row(File, row, purpose=FilePurpose(row.purpose))


class UploadQueries(ObjectQueries[UploadRow, Upload]):
    table = UploadRow
    prefix = UPLOAD

    async def add_part(self, part: UploadPart) -> None:
        await self._insert(UploadPartRow, asdict(part))

    async def part_totals(self, upload_id: str) -> PartTotals:
        """Return the number and the total size of the stored parts."""
        row = await self._session.execute(
            sa.select(
                sa.func.count(), sa.func.coalesce(sa.func.sum(UploadPartRow.size_bytes), 0)
            ).where(self._mine(UploadPartRow), UploadPartRow.upload_id == upload_id)
        )
        num_parts, size_bytes = row.one()
        return PartTotals(num_parts, int(size_bytes))  # PostgreSQL sums to a Decimal

    async def parts(self, upload_id: str) -> list[UploadPart]:
        """Return the parts, oldest first."""
        rows = await self._session.scalars(
            self._select(UploadPartRow, UploadPartRow.upload_id == upload_id).order_by(
                UploadPartRow.id
            )
        )
        return [read_row(UploadPart, row) for row in rows]

    async def delete_parts(self, upload_id: str) -> list[str]:
        """Delete the rows of all parts. Return their blob keys; the caller deletes the blobs."""
        keys = await self._session.scalars(
            self._delete(UploadPartRow, UploadPartRow.upload_id == upload_id).returning(
                UploadPartRow.blob_key
            )
        )
        return list(keys)

    def _not_found(self, object_id: str) -> DomainError:
        return UploadNotFound(upload=object_id)

    def _constants(self, value: Upload) -> dict[str, Any]:
        return row_values(UploadRow, value)

    def _values(self, value: Upload) -> dict[str, Any]:
        return {"state": value.state, "file_id": value.file_id, "completion": value.completion}

    def _object(self, row: UploadRow) -> Upload:
        purpose, state = FilePurpose(row.purpose), UploadState(row.state)
        return read_row(Upload, row, purpose=purpose, state=state)


async def delete_expired_files(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Delete files that have expired. A step of the sweeper."""
    keys = await delete_some(tx, FileRow, FileRow.expires_at <= now, returning=FileRow.blob_key)
    return Deleted(len(keys), keys)


async def expire_uploads(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Mark pending uploads past their deadline as expired and delete their parts. A step of the
    sweeper.
    """
    late = (
        sa.select(UploadRow.project, UploadRow.id)
        .where(UploadRow.state == UploadState.PENDING.value, UploadRow.expires_at <= now)
        .limit(ROWS_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    expired = await tx.session.execute(
        sa.update(UploadRow)
        .where(sa.tuple_(UploadRow.project, UploadRow.id).in_(late))
        .values(state=UploadState.EXPIRED.value)
        .returning(UploadRow.project, UploadRow.id)
    )
    uploads = [tuple(upload) for upload in expired]
    keys = await tx.session.scalars(
        sa.delete(UploadPartRow)
        .where(sa.tuple_(UploadPartRow.project, UploadPartRow.upload_id).in_(uploads))
        .returning(UploadPartRow.blob_key)
    )
    return Deleted(len(uploads), keys.all())
