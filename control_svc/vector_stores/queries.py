"""SQL of vector stores, their files and file batches."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
import sqlalchemy as sa

from control_svc.base.ids import (
    FILE,
    VECTOR_STORE,
    VECTOR_STORE_BATCH,
    VECTOR_STORE_ENTRY,
    creation_key,
    is_id,
)
from control_svc.base.object_queries import ObjectQueries
from control_svc.base.pagination import Window, apply_cursors, restore_order
from control_svc.db.cleanup import ROWS_AT_ONCE
from control_svc.db.documents import document_value
from control_svc.db.tables import read_row, row_values
from control_svc.db.transaction import CrossProjectQueries, Queries
from control_svc.files.tables import FileRow
from control_svc.vector_stores.filter_sql import filter_condition
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.model import (
    Chunking,
    FileBatch,
    FileCounts,
    FileProblem,
    FileState,
    ProblemCode,
    StoreFile,
    VectorStore,
)
from control_svc.vector_stores.tables import FileBatchRow, StoreFileRow, VectorStoreRow
from svc_kit.errors import DomainError, VectorStoreFileBatchNotFound, VectorStoreNotFound

_DELETED: Final = FileState.DELETED.value
_REMOVED: Final = (_DELETED, FileState.FAILED.value, FileState.CANCELLED.value)
"""States of files whose chunks can be deleted."""
_NUM_FILES: Final = (
    VectorStoreRow.in_progress
    + VectorStoreRow.completed
    + VectorStoreRow.failed
    + VectorStoreRow.cancelled
)


class VectorStoreQueries(ObjectQueries[VectorStoreRow, VectorStore]):
    """Queries on vector stores in one transaction. The lock of a store is that of its files."""

    table = VectorStoreRow
    prefix = VECTOR_STORE

    async def delete(self, object_id: str) -> None:
        """Delete a locked store and its batches, and mark its files as deleted."""
        await super().delete(object_id)
        await self._session.execute(self._delete(FileBatchRow, FileBatchRow.store_id == object_id))
        await self._mark_files_deleted(object_id)

    async def clear(self, store: VectorStore) -> None:
        """Mark all files of a locked store as deleted, and update the store."""
        await self.update(store.clear())
        await self._mark_files_deleted(store.id)

    async def _mark_files_deleted(self, store_id: str) -> None:
        is_present = (StoreFileRow.store_id == store_id, StoreFileRow.state != _DELETED)
        await self._session.execute(self._update(StoreFileRow, *is_present).values(state=_DELETED))

    def _not_found(self, object_id: str) -> DomainError:
        return VectorStoreNotFound(vector_store=object_id)

    def _values(self, value: VectorStore) -> dict[str, Any]:
        return {
            **row_values(VectorStoreRow, value),
            **row_values(VectorStoreRow, value.counts),
            "attached": orjson.dumps(dict(value.metadata)),
            "expires_at": value.expires_at,
        }

    def _object(self, row: VectorStoreRow) -> VectorStore:
        counts = read_row(FileCounts, row)
        return read_row(VectorStore, row, counts=counts, metadata=orjson.loads(row.attached))


class StoreFileQueries(Queries):
    """Queries on the files of stores. Deleted files are visible to the sweeper only."""

    async def add(self, files: Sequence[StoreFile]) -> None:
        """Insert files of a locked store."""
        await self._insert(StoreFileRow, *map(_file_values, files))

    async def find(self, store_id: str, file_ids: Collection[str]) -> dict[str, StoreFile]:
        """Get those of the files that are in a store, by file id."""
        # Others are not queried: PostgreSQL rejects strings with NUL.
        known = [file_id for file_id in file_ids if is_id(file_id, FILE)]
        query = self._present(store_id).where(StoreFileRow.file_id.in_(known))
        return {row.file_id: _read_file(row) for row in await self._session.scalars(query)}

    async def get(self, entry: str) -> StoreFile | None:
        """Get a file by its entry; None if it has been deleted."""
        row = await self._session.get(StoreFileRow, (self._project, entry), populate_existing=True)
        return None if row is None or row.state == _DELETED else _read_file(row)

    async def update(self, *files: StoreFile) -> None:
        """Update files whose store is locked, with one statement."""
        await self._update_each(StoreFileRow, *map(_file_values, files))

    async def page(
        self,
        store_id: str,
        window: Window,
        batch_id: str | None = None,
        state: FileState | None = None,
    ) -> list[StoreFile]:
        """List the files of a window in the order of addition. Cursors may be removed files."""
        query = self._present(store_id)
        if batch_id is not None:
            query = query.where(StoreFileRow.batch_id == batch_id)
        if state is not None:
            query = query.where(StoreFileRow.state == state.value)
        after = await self._cursor_entry(store_id, window.after)
        before = await self._cursor_entry(store_id, window.before)
        query = apply_cursors(query, StoreFileRow.entry, window, after, before)
        return restore_order(
            [_read_file(row) for row in await self._session.scalars(query)], window
        )

    async def list_in_progress(self, batch_id: str) -> list[StoreFile]:
        query = self._select(
            StoreFileRow,
            StoreFileRow.batch_id == batch_id,
            StoreFileRow.state == FileState.IN_PROGRESS.value,
        )
        return [_read_file(row) for row in await self._session.scalars(query)]

    async def list_stores(self, file_id: str) -> list[str]:
        """List the ids of the stores that contain a file, in order."""
        query = sa.select(StoreFileRow.store_id).where(
            self._mine(StoreFileRow),
            StoreFileRow.file_id == file_id,
            StoreFileRow.state != _DELETED,
        )
        return list(await self._session.scalars(query.order_by(StoreFileRow.store_id)))

    async def delete(self, entry: str) -> None:
        """Delete the row of a deleted file that has no chunks."""
        await self._session.execute(self._delete(StoreFileRow, StoreFileRow.entry == entry))

    async def list_completed(self, store_id: str) -> set[str]:
        return set(await self._session.scalars(self._completed([store_id])))

    async def list_matching(self, store_ids: Collection[str], condition: Filter) -> frozenset[str]:
        """List the entries of completed files whose attributes satisfy a filter."""
        dialect = self._session.get_bind().dialect.name
        attributes = document_value(StoreFileRow.attached, self._session)
        query = self._completed(store_ids).where(filter_condition(condition, attributes, dialect))
        return frozenset(await self._session.scalars(query))

    async def _cursor_entry(self, store_id: str, file_id: str) -> str | None:
        """The entry of a cursor. Approximate once its row is deleted: the creation of the file."""
        if not file_id:
            return None
        last = await self._session.scalar(
            sa.select(sa.func.max(StoreFileRow.entry)).where(
                self._mine(StoreFileRow),
                StoreFileRow.store_id == store_id,
                StoreFileRow.file_id == file_id,
            )
        )
        return last or VECTOR_STORE_ENTRY + creation_key(file_id)

    def _present(self, store_id: str) -> sa.Select[StoreFileRow]:
        """Select the files of a store that are not deleted."""
        query = self._select(
            StoreFileRow, StoreFileRow.store_id == store_id, StoreFileRow.state != _DELETED
        )
        return query.execution_options(populate_existing=True)

    def _completed(self, store_ids: Collection[str]) -> sa.Select[str]:
        return sa.select(StoreFileRow.entry).where(
            self._mine(StoreFileRow),
            StoreFileRow.store_id.in_(store_ids),
            StoreFileRow.state == FileState.COMPLETED.value,
        )


class FileBatchQueries(Queries):
    async def add(self, batch: FileBatch) -> None:
        await self._insert(FileBatchRow, row_values(FileBatchRow, batch))

    async def get(self, store_id: str, batch_id: str) -> FileBatch:
        """Get a batch. Raises VectorStoreFileBatchNotFound."""
        row = None
        if is_id(batch_id, VECTOR_STORE_BATCH):
            row = await self._session.get(
                FileBatchRow, (self._project, batch_id), populate_existing=True
            )
        if row is None or row.store_id != store_id:
            raise VectorStoreFileBatchNotFound(batch=batch_id)
        return read_row(FileBatch, row, counts=await self._counts(batch_id))

    async def cancel(self, batch_id: str, now: datetime) -> None:
        """Store the time of cancellation, unless there is one."""
        await self._session.execute(
            self._update(
                FileBatchRow, FileBatchRow.id == batch_id, FileBatchRow.cancelled_at.is_(None)
            ).values(cancelled_at=now)
        )

    async def _counts(self, batch_id: str) -> FileCounts:
        rows = await self._session.execute(
            sa.select(StoreFileRow.state, sa.func.count())
            .where(
                self._mine(StoreFileRow),
                StoreFileRow.batch_id == batch_id,
                StoreFileRow.state != _DELETED,
            )
            .group_by(StoreFileRow.state)
        )
        return FileCounts(**{state: count for state, count in rows})


class StoreSweepQueries(CrossProjectQueries):
    """The stores of all projects and their files, for the sweeper."""

    async def list_expired(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """List (project, store id) of expired stores that still have files."""
        query = sa.select(VectorStoreRow.project, VectorStoreRow.id).where(
            VectorStoreRow.expires_at <= now, _NUM_FILES > 0
        )
        return [(row.project, row.id) for row in await self._session.execute(query.limit(limit))]

    async def find_orphaned(self) -> tuple[str, str, Sequence[str]] | None:
        """A project, one of its stores, and up to `ROWS_AT_ONCE` ids of files in the store that do
        not exist any more; None if there are none."""
        file = sa.and_(FileRow.project == StoreFileRow.project, FileRow.id == StoreFileRow.file_id)
        place = (StoreFileRow.project, StoreFileRow.store_id)
        query = (
            sa.select(*place, StoreFileRow.file_id)
            .where(StoreFileRow.state != _DELETED, ~sa.exists().where(file))
            .order_by(*place)
            .limit(ROWS_AT_ONCE)
        )
        rows = (await self._session.execute(query)).all()
        if not rows:
            return None
        project, store_id, _ = rows[0]
        return project, store_id, [row.file_id for row in rows if row[:2] == (project, store_id)]

    async def lock_removed(self) -> tuple[str, StoreFile] | None:
        """Lock a removed file that still has rows. Returns its project and the file, or None."""
        row = await self._session.scalar(
            sa.select(StoreFileRow)
            .where(StoreFileRow.state.in_(_REMOVED))
            .where((StoreFileRow.num_chunks > 0) | (StoreFileRow.state == _DELETED))
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return None if row is None else (row.project, _read_file(row))


def _file_values(file: StoreFile) -> dict[str, Any]:
    return {
        **row_values(StoreFileRow, file),
        **row_values(StoreFileRow, file.chunking),
        "attached": orjson.dumps(dict(file.attributes)),
        "problem_code": file.problem and file.problem.code.value,
        "problem_message": file.problem and file.problem.message,
    }


def _read_file(row: StoreFileRow) -> StoreFile:
    problem = None
    if row.problem_code is not None:
        problem = FileProblem(ProblemCode(row.problem_code), row.problem_message or "")
    return read_row(
        StoreFile,
        row,
        chunking=read_row(Chunking, row),
        attributes=orjson.loads(row.attached),
        state=FileState(row.state),
        problem=problem,
    )
