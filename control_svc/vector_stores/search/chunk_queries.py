"""SQL of chunks."""

from collections.abc import Collection, Sequence
from datetime import datetime

import numpy as np
import orjson
import sqlalchemy as sa
from sqlalchemy.sql import ColumnElement

from control_svc.db.transaction import Queries, Transaction
from control_svc.files.tables import FileRow
from control_svc.inference.embeddings import Vector, Vectors
from control_svc.vector_stores.model import FileState, StoreFile
from control_svc.vector_stores.search.chunk_index import chunk_index
from control_svc.vector_stores.search.model import Chunk, ChunkKey, NewChunk
from control_svc.vector_stores.tables import ChunkRow, StoreFileRow

_STORED_TYPE = np.dtype("<f2")


class ChunkQueries(Queries):
    """Queries on chunks and their index in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self._index = chunk_index(tx)
        self.search_words = self._index.search_words
        self.search_vector = self._index.search_vector

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        rows = [
            {
                "entry": file.entry,
                "number": chunk.number,
                "text": chunk.text,
                "vector": chunk.vector.astype(_STORED_TYPE).tobytes(),
            }
            for chunk in chunks
        ]
        await self._insert(ChunkRow, *rows)
        await self._index.add(file, chunks)

    async def delete(self, entry: str, limit: int) -> int:
        """Delete at most `limit` chunks of a file, last ones first. Returns how many there were."""
        last = (
            sa.select(ChunkRow.number)
            .where(*self._in_file(entry))
            .order_by(ChunkRow.number.desc())
            .limit(limit)
        )
        numbers = (await self._session.scalars(last)).all()
        if numbers:
            await self._index.delete(entry, numbers[-1], numbers[0] + 1)
            await self._session.execute(
                sa.delete(ChunkRow).where(*self._in_file(entry), ChunkRow.number >= numbers[-1])
            )
        return len(numbers)

    async def list_texts(self, entry: str, first: int, limit: int) -> list[str]:
        """List the texts of a file's chunks, from number `first`."""
        query = sa.select(ChunkRow.text).where(*self._in_file(entry), ChunkRow.number >= first)
        return list(await self._session.scalars(query.order_by(ChunkRow.number).limit(limit)))

    async def list_vectors(self, entry: str, first: int, limit: int) -> Vectors:
        """List the vectors of a file's chunks, from number `first`, as rows."""
        query = sa.select(ChunkRow.vector).where(*self._in_file(entry), ChunkRow.number >= first)
        vectors = await self._session.scalars(query.order_by(ChunkRow.number).limit(limit))
        rows = [decode_vector(vector) for vector in vectors]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    async def get_searchable(self, keys: Collection[ChunkKey], now: datetime) -> list[Chunk]:
        """Get those of the chunks whose files are completed and neither deleted nor expired."""
        if not keys:
            return []
        query = (
            sa.select(
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
                sa.and_(
                    StoreFileRow.project == ChunkRow.project, StoreFileRow.entry == ChunkRow.entry
                ),
            )
            .join(
                FileRow,
                sa.and_(
                    FileRow.project == StoreFileRow.project, FileRow.id == StoreFileRow.file_id
                ),
            )
            .where(
                self._mine(ChunkRow),
                sa.tuple_(ChunkRow.entry, ChunkRow.number).in_([tuple(key) for key in keys]),
                StoreFileRow.state == FileState.COMPLETED.value,
                sa.or_(FileRow.expires_at.is_(None), FileRow.expires_at > now),
            )
        )
        return [
            Chunk(
                ChunkKey(entry, number),
                file_id,
                filename,
                orjson.loads(attached),
                content,
                decode_vector(vector),
            )
            for entry, number, file_id, filename, attached, content, vector in (
                await self._session.execute(query)
            )
        ]

    def _in_file(self, entry: str) -> tuple[ColumnElement[bool], ...]:
        return (self._mine(ChunkRow), ChunkRow.entry == entry)


def decode_vector(vector: bytes) -> Vector:
    return np.frombuffer(vector, _STORED_TYPE).astype(np.float32)
