"""Queries about uploads and their parts."""

from dataclasses import asdict

from sqlalchemy import delete, func, insert, select, update

from control_svc.domain.files import FilePurpose
from control_svc.domain.ids import UPLOAD, is_id
from control_svc.domain.uploads import Taken, Upload, UploadPart, UploadState
from control_svc.storage.models import UploadPartRow, UploadRow
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import UploadNotFound


class SqlUploads:
    """The rows of uploads and their parts."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, upload: Upload) -> None:
        """Keep a new upload."""
        await self._session.execute(insert(UploadRow).values(project=project, **asdict(upload)))

    async def get(self, project: str, upload_id: str) -> Upload:
        """Raises UploadNotFound."""
        return await self._get(project, upload_id, locked=False)

    async def lock(self, project: str, upload_id: str) -> Upload:
        """As `get`; until the end of the transaction nobody else changes the upload."""
        return await self._get(project, upload_id, locked=True)

    async def update(self, project: str, upload: Upload) -> None:
        """Keep what has changed of a locked upload: its state and its file."""
        await self._session.execute(
            update(UploadRow)
            .where(UploadRow.project == project, UploadRow.id == upload.id)
            .values(state=upload.state.value, file_id=upload.file_id, completion=upload.completion)
        )

    async def add_part(self, project: str, part: UploadPart) -> None:
        """Keep a new part."""
        await self._session.execute(insert(UploadPartRow).values(project=project, **asdict(part)))

    async def taken(self, project: str, upload_id: str) -> Taken:
        """How many parts there are, and their bytes."""
        row = await self._session.execute(
            select(func.count(), func.coalesce(func.sum(UploadPartRow.size_bytes), 0)).where(
                UploadPartRow.project == project, UploadPartRow.upload_id == upload_id
            )
        )
        num_parts, size_bytes = row.one()
        return Taken(num_parts, int(size_bytes))  # PostgreSQL adds integers up to a decimal

    async def parts(self, project: str, upload_id: str) -> list[UploadPart]:
        """The parts, oldest first."""
        rows = await self._session.scalars(
            select(UploadPartRow)
            .where(UploadPartRow.project == project, UploadPartRow.upload_id == upload_id)
            .order_by(UploadPartRow.id)
        )
        return [_part(row) for row in rows]

    async def drop_parts(self, project: str, upload_id: str) -> list[str]:
        """Forget all parts; the keys of their bytes, which are the caller's to delete."""
        keys = await self._session.scalars(
            delete(UploadPartRow)
            .where(UploadPartRow.project == project, UploadPartRow.upload_id == upload_id)
            .returning(UploadPartRow.blob_key)
        )
        return list(keys)

    async def _get(self, project: str, upload_id: str, *, locked: bool) -> Upload:
        if not is_id(upload_id, UPLOAD):
            # Not asked for: a database may refuse its characters.
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
