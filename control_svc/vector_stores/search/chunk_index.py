"""The database's index of chunks: FTS5 on SQLite; text search and, where available, pgvector on
PostgreSQL.

It is a table of each database's own kind, which no mapped class describes.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from control_svc.inference.embeddings import Vector
from control_svc.vector_stores.model import StoreFile
from control_svc.vector_stores.search.model import ChunkKey, Lookup, NewChunk
from control_svc.vector_stores.search.ranking import search_terms

TABLE: Final = "vector_chunk_index"


class ChunkIndex(Protocol):
    """The table, in one transaction."""

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        """Index passages."""

    async def drop(self, entry: str, first: int, end: int) -> None:
        """Forget the passages of an entry with these numbers."""

    async def by_words(self, lookup: Lookup, words: Sequence[str], limit: int) -> list[ChunkKey]:
        """Passages that have any of the words, those with most of them first."""

    async def by_vector(self, lookup: Lookup, vector: Vector, limit: int) -> list[ChunkKey] | None:
        """The passages nearest to a vector; None: there is no column of vectors."""


def chunk_index(session: AsyncSession) -> ChunkIndex:
    """The table of the session's database."""
    if session.get_bind().dialect.name == "sqlite":
        return SqliteChunkIndex(session)
    return PostgresChunkIndex(session)


class SqliteChunkIndex:
    """A full text table of FTS5, ordered by BM25."""

    _ADD: Final = text(
        "INSERT INTO vector_chunk_index (store, entry, number, words)"
        " VALUES (:store, :entry, :number, :words)"
    )
    _DROP: Final = text(
        "DELETE FROM vector_chunk_index WHERE rowid IN (SELECT rowid FROM vector_chunk_index"
        " WHERE vector_chunk_index MATCH :match AND number >= :first AND number < :end)"
    )
    _BY_WORDS: Final = text(
        "SELECT i.entry, i.number FROM vector_chunk_index AS i"
        " JOIN vector_store_files AS f ON f.project = :project AND f.entry = i.entry"
        " AND f.state = 'completed' WHERE vector_chunk_index MATCH :match"
        " AND (:entries IS NULL OR i.entry IN (SELECT value FROM json_each(:entries)))"
        " ORDER BY bm25(vector_chunk_index, 0, 0, 0, 1), i.rowid LIMIT :limit"
    )

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        """Index passages."""
        rows = [
            {
                "store": file.store_id,
                "entry": file.entry,
                "number": chunk.number,
                "words": " ".join(search_terms(chunk.text)),
            }
            for chunk in chunks
        ]
        await self._session.execute(self._ADD, rows)

    async def drop(self, entry: str, first: int, end: int) -> None:
        """Forget the passages of an entry with these numbers."""
        values = {"match": f'entry : "{entry}"', "first": first, "end": end}
        await self._session.execute(self._DROP, values)

    async def by_words(self, lookup: Lookup, words: Sequence[str], limit: int) -> list[ChunkKey]:
        """Passages that have any of the words, by BM25."""
        entries = None if lookup.entries is None else json.dumps(list(lookup.entries))
        values = {
            "project": lookup.project,
            "match": f"store : ({_any_of(lookup.store_ids)}) AND words : ({_any_of(words)})",
            "entries": entries,
            "limit": limit,
        }
        return [ChunkKey(*row) for row in await self._session.execute(self._BY_WORDS, values)]

    async def by_vector(self, lookup: Lookup, vector: Vector, limit: int) -> list[ChunkKey] | None:
        """There is no column of vectors."""
        return None


def _any_of(words: Sequence[str]) -> str:
    """Words have letters, digits, underscores and hyphens alone: quotes are all they need."""
    return " OR ".join(f'"{word}"' for word in words)


class PostgresChunkIndex:
    """Text search vectors under a GIN index, the store among their words; and pgvector."""

    _ADD: Final = text(
        "INSERT INTO vector_chunk_index (entry, number, words)"
        " VALUES (:entry, :number, array_to_tsvector(CAST(:words AS text[])))"
    )
    _ADD_WITH_VECTORS: Final = text(
        "INSERT INTO vector_chunk_index (entry, number, words, embedding) VALUES (:entry, :number,"
        " array_to_tsvector(CAST(:words AS text[])), CAST(CAST(:embedding AS text) AS vector))"
    )
    _DROP: Final = text(
        "DELETE FROM vector_chunk_index WHERE entry = :entry AND number >= :first AND number < :end"
    )
    _BY_WORDS: Final = text(
        "SELECT i.entry, i.number FROM vector_chunk_index AS i"
        " JOIN vector_store_files AS f ON f.project = :project AND f.entry = i.entry"
        " AND f.state = 'completed' AND f.store_id = ANY(CAST(:stores AS text[]))"
        " WHERE i.words @@ CAST(CAST(:match AS text) AS tsquery)"
        " AND (CAST(:entries AS text[]) IS NULL OR i.entry = ANY(CAST(:entries AS text[])))"
        " ORDER BY ts_rank(i.words, CAST(CAST(:wanted AS text) AS tsquery)) DESC,"
        " i.entry, i.number LIMIT :limit"
    )
    _BY_VECTOR: Final = text(
        "SELECT i.entry, i.number FROM vector_chunk_index AS i"
        " JOIN vector_store_files AS f ON f.project = :project AND f.entry = i.entry"
        " AND f.state = 'completed' AND f.store_id = ANY(CAST(:stores AS text[]))"
        " WHERE (CAST(:entries AS text[]) IS NULL OR i.entry = ANY(CAST(:entries AS text[])))"
        " ORDER BY i.embedding <#> CAST(CAST(:vector AS text) AS vector),"
        " i.entry, i.number LIMIT :limit"
    )
    _HAS_VECTORS: Final = text(
        "SELECT 1 FROM pg_attribute WHERE attrelid = 'vector_chunk_index'::regclass"
        " AND attname = 'embedding' AND NOT attisdropped"
    )

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        """Index passages."""
        rows: list[dict[str, Any]] = [
            {
                "entry": file.entry,
                "number": chunk.number,
                "words": sorted({file.store_id, *search_terms(chunk.text)}),
            }
            for chunk in chunks
        ]
        if not await self._has_vectors():
            await self._session.execute(self._ADD, rows)
            return
        for row, chunk in zip(rows, chunks, strict=True):
            row["embedding"] = _written(chunk.vector)
        await self._session.execute(self._ADD_WITH_VECTORS, rows)

    async def drop(self, entry: str, first: int, end: int) -> None:
        """Forget the passages of an entry with these numbers."""
        await self._session.execute(self._DROP, {"entry": entry, "first": first, "end": end})

    async def by_words(self, lookup: Lookup, words: Sequence[str], limit: int) -> list[ChunkKey]:
        """Passages that have any of the words, by how many they have."""
        stores, wanted = _alternatives(lookup.store_ids), _alternatives(words)
        values = {"match": f"({stores}) & ({wanted})", "wanted": wanted, **_scope(lookup, limit)}
        return [ChunkKey(*row) for row in await self._session.execute(self._BY_WORDS, values)]

    async def by_vector(self, lookup: Lookup, vector: Vector, limit: int) -> list[ChunkKey] | None:
        """The passages nearest to a vector, exactly: all of the stores' are compared."""
        if not await self._has_vectors():
            return None
        values = {"vector": _written(vector), **_scope(lookup, limit)}
        return [ChunkKey(*row) for row in await self._session.execute(self._BY_VECTOR, values)]

    async def _has_vectors(self) -> bool:
        return (await self._session.execute(self._HAS_VECTORS)).first() is not None


def _scope(lookup: Lookup, limit: int) -> dict[str, Any]:
    return {
        "project": lookup.project,
        "stores": list(lookup.store_ids),
        "entries": None if lookup.entries is None else list(lookup.entries),
        "limit": limit,
    }


def _alternatives(words: Sequence[str]) -> str:
    return " | ".join(f"'{word}'" for word in words)


def _written(vector: Vector) -> str:
    """As pgvector reads it."""
    return json.dumps(vector.tolist(), separators=(",", ":"))
