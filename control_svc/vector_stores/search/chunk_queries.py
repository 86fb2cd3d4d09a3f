"""SQL of chunks."""

from collections.abc import Collection, Sequence
from datetime import datetime

import numpy as np
import orjson
from sqlalchemy import and_, delete, insert, or_, select, tuple_
from sqlalchemy.sql import ColumnElement

from control_svc.db.transaction import Transaction
from control_svc.files.tables import FileRow
from control_svc.inference.embeddings import Vector, Vectors
from control_svc.vector_stores.model import FileState, StoreFile
from control_svc.vector_stores.search.chunk_index import chunk_index
from control_svc.vector_stores.search.model import ChunkKey, NewChunk, Passage
from control_svc.vector_stores.tables import ChunkRow, StoreFileRow

_STORED = np.dtype("<f2")


class ChunkQueries:
    """The rows of passages, and what the database finds them by."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._index = chunk_index(tx.session)
        self.by_words = self._index.by_words
        self.by_vector = self._index.by_vector

    async def add(self, file: StoreFile, project: str, chunks: Sequence[NewChunk]) -> None:
        """Keep passages of a file in progress."""
        await self._session.execute(
            insert(ChunkRow),
            [
                {
                    "project": project,
                    "entry": file.entry,
                    "number": chunk.number,
                    "text": chunk.text,
                    "vector": chunk.vector.astype(_STORED).tobytes(),
                }
                for chunk in chunks
            ],
        )
        await self._index.add(file, chunks)

    async def drop(self, project: str, entry: str, limit: int) -> int:
        """Forget passages of a file, the last ones first; how many there were."""
        last = (
            select(ChunkRow.number)
            .where(*_of(project, entry))
            .order_by(ChunkRow.number.desc())
            .limit(limit)
        )
        numbers = (await self._session.scalars(last)).all()
        if numbers:
            await self._index.drop(entry, numbers[-1], numbers[0] + 1)
            await self._session.execute(
                delete(ChunkRow).where(*_of(project, entry), ChunkRow.number >= numbers[-1])
            )
        return len(numbers)

    async def texts(self, project: str, entry: str, first: int, limit: int) -> list[str]:
        """The texts of a file, from a number on."""
        query = select(ChunkRow.text).where(*_of(project, entry), ChunkRow.number >= first)
        found = await self._session.scalars(query.order_by(ChunkRow.number).limit(limit))
        return list(found)

    async def vectors(self, project: str, entry: str, first: int, limit: int) -> Vectors:
        """The vectors of a file, from a number on."""
        query = select(ChunkRow.vector).where(*_of(project, entry), ChunkRow.number >= first)
        found = await self._session.scalars(query.order_by(ChunkRow.number).limit(limit))
        rows = [_read(vector) for vector in found]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    async def passages(
        self, project: str, keys: Collection[ChunkKey], now: datetime
    ) -> list[Passage]:
        """Those of the passages that can still be found."""
        if not keys:
            return []
        query = (
            select(
                ChunkRow.entry,
                ChunkRow.number,
                FileRow.id,
                FileRow.filename,
                StoreFileRow.attached,
                ChunkRow.text,
                ChunkRow.vector,
            )
            .join(
                StoreFileRow,
                and_(
                    StoreFileRow.project == ChunkRow.project, StoreFileRow.entry == ChunkRow.entry
                ),
            )
            .join(
                FileRow,
                and_(FileRow.project == StoreFileRow.project, FileRow.id == StoreFileRow.file_id),
            )
            .where(
                ChunkRow.project == project,
                tuple_(ChunkRow.entry, ChunkRow.number).in_([tuple(key) for key in keys]),
                StoreFileRow.state == FileState.COMPLETED.value,
                or_(FileRow.expires_at.is_(None), FileRow.expires_at > now),
            )
        )
        return [
            Passage(
                ChunkKey(entry, number),
                file_id,
                filename,
                orjson.loads(attached),
                content,
                _read(vector),
            )
            for entry, number, file_id, filename, attached, content, vector in (
                await self._session.execute(query)
            )
        ]


def _of(project: str, entry: str) -> tuple[ColumnElement[bool], ...]:
    return (ChunkRow.project == project, ChunkRow.entry == entry)


def _read(vector: bytes) -> Vector:
    return np.frombuffer(vector, _STORED).astype(np.float32)
