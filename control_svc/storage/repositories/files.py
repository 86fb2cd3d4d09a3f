"""Queries about files."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy import delete, insert, or_, select
from sqlalchemy.sql import ColumnElement

from control_svc.domain.files import File, FilePurpose
from control_svc.domain.ids import FILE, is_id
from control_svc.domain.listing import Window
from control_svc.storage.models import FileRow
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import FileNotFound


class SqlFiles:
    """Files in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, file: File) -> None:
        """Keep a new file."""
        await self._session.execute(insert(FileRow).values(project=project, **asdict(file)))

    async def get(self, project: str, file_id: str, now: datetime) -> File:
        """Raises FileNotFound, also for a file that has expired."""
        _check_form(file_id)
        row = await self._session.get(FileRow, (project, file_id))
        if row is None or _file(row).is_expired(now):
            raise FileNotFound(file=file_id)
        return _file(row)

    async def page(
        self, project: str, window: Window, purpose: FilePurpose | None, now: datetime
    ) -> list[File]:
        """The files of a window that have not expired; `purpose` None: any."""
        query = select(FileRow).where(FileRow.project == project, _is_alive(now))
        if purpose is not None:
            query = query.where(FileRow.purpose == purpose.value)
        if window.newest_first:
            query = query.order_by(FileRow.id.desc())
            beyond = FileRow.id < window.after
        else:
            query = query.order_by(FileRow.id)
            beyond = FileRow.id > window.after
        if window.after:
            query = query.where(beyond)
        return [_file(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def delete(self, project: str, file_id: str, now: datetime) -> File:
        """Forget a file; its bytes are the caller's to delete. Raises FileNotFound."""
        _check_form(file_id)
        row = await self._session.scalar(
            delete(FileRow)
            .where(FileRow.project == project, FileRow.id == file_id, _is_alive(now))
            .returning(FileRow)
        )
        if row is None:
            raise FileNotFound(file=file_id)
        return _file(row)


def _check_form(file_id: str) -> None:
    """What is no id is not asked for: a database may refuse its characters."""
    if not is_id(file_id, FILE):
        raise FileNotFound(file=file_id)


def _is_alive(now: datetime) -> ColumnElement[bool]:
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
