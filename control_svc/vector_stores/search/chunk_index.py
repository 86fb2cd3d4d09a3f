"""The database's index of chunks: FTS5 on SQLite; text search and, where available, pgvector on
PostgreSQL.

The table differs between databases, so there is no mapped class.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import sqlalchemy as sa

from control_svc.db.transaction import Transaction
from control_svc.inference.embeddings import Vector
from control_svc.vector_stores.model import StoreFile
from control_svc.vector_stores.search.model import ChunkKey, NewChunk, SearchScope
from control_svc.vector_stores.search.ranking import search_terms

TABLE: Final = "vector_chunk_index"
HAS_COLUMN: Final = sa.text(
    "SELECT 1 FROM pg_attribute WHERE attrelid = 'vector_chunk_index'::regclass"
    " AND attname = 'embedding' AND NOT attisdropped"
)
HAS_VECTORS: Final = sa.text(f"{HAS_COLUMN} AND attnotnull")
"""Whether all rows have their vectors in pgvector's column."""


class ChunkIndex(Protocol):
    """The index, in one transaction."""

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        """Index chunks."""

    async def delete(self, entry: str, first: int, end: int) -> None:
        """Delete the chunks of an entry with numbers from `first` to `end` - 1."""

    async def search_words(
        self, scope: SearchScope, words: Sequence[str], limit: int
    ) -> list[ChunkKey]:
        """Find chunks that contain any of the words, best first."""

    async def search_vector(
        self, scope: SearchScope, vector: Vector, limit: int
    ) -> list[ChunkKey] | None:
        """Find the chunks nearest to a vector; None if the index has no vectors."""


def chunk_index(tx: Transaction) -> ChunkIndex:
    if tx.session.get_bind().dialect.name == "sqlite":
        return SqliteChunkIndex(tx)
    return PostgresChunkIndex(tx)


class SqliteChunkIndex:
    """An FTS5 table, ranked by BM25."""

    _ADD: Final = sa.text(
        "INSERT INTO vector_chunk_index (store, entry, number, words)"
        " VALUES (:store, :entry, :number, :words)"
    )
    _DELETE: Final = sa.text(
        "DELETE FROM vector_chunk_index WHERE rowid IN (SELECT rowid FROM vector_chunk_index"
        " WHERE vector_chunk_index MATCH :match AND number >= :first AND number < :end)"
    )
    _SEARCH_WORDS: Final = sa.text(
        "SELECT i.entry, i.number FROM vector_chunk_index AS i"
        " JOIN vector_store_files AS f ON f.project = :project AND f.entry = i.entry"
        " AND f.state = 'completed' WHERE vector_chunk_index MATCH :match"
        " AND (:entries IS NULL OR i.entry IN (SELECT value FROM json_each(:entries)))"
        " ORDER BY bm25(vector_chunk_index, 0, 0, 0, 1), i.rowid LIMIT :limit"
    )

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._project = tx.project

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
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

    async def delete(self, entry: str, first: int, end: int) -> None:
        """Delete the chunks of an entry with numbers from `first` to `end` - 1."""
        values = {"match": f'entry : "{entry}"', "first": first, "end": end}
        await self._session.execute(self._DELETE, values)

    async def search_words(
        self, scope: SearchScope, words: Sequence[str], limit: int
    ) -> list[ChunkKey]:
        """Find chunks that contain any of the words, by BM25."""
        entries = None if scope.entries is None else json.dumps(list(scope.entries))
        values = {
            "project": self._project,
            "match": f"store : ({_match_any(scope.store_ids)}) AND words : ({_match_any(words)})",
            "entries": entries,
            "limit": limit,
        }
        return [ChunkKey(*row) for row in await self._session.execute(self._SEARCH_WORDS, values)]

    async def search_vector(
        self, scope: SearchScope, vector: Vector, limit: int
    ) -> list[ChunkKey] | None:
        """Return None: SQLite has no vectors."""
        return None


def _match_any(words: Sequence[str]) -> str:
    """Words consist of letters, digits, underscores and hyphens, so quoting them is enough."""
    return " OR ".join(f'"{word}"' for word in words)


class PostgresChunkIndex:
    """A tsvector column with a GIN index, which includes the store id, and a pgvector column."""

    _ADD: Final = sa.text(
        "INSERT INTO vector_chunk_index (entry, number, words)"
        " VALUES (:entry, :number, array_to_tsvector(CAST(:words AS text[])))"
    )
    _ADD_WITH_VECTORS: Final = sa.text(
        "INSERT INTO vector_chunk_index (entry, number, words, embedding) VALUES (:entry, :number,"
        " array_to_tsvector(CAST(:words AS text[])), CAST(CAST(:embedding AS text) AS vector))"
    )
    _DELETE: Final = sa.text(
        "DELETE FROM vector_chunk_index WHERE entry = :entry AND number >= :first AND number < :end"
    )
    _SEARCH: Final = (
        "SELECT i.entry, i.number FROM vector_chunk_index AS i"
        " JOIN vector_store_files AS f ON f.project = :project AND f.entry = i.entry"
        " AND f.state = 'completed' AND f.store_id = ANY(CAST(:stores AS text[]))"
    )
    _IN_ENTRIES: Final = "i.entry = ANY(CAST(:entries AS text[]))"
    _WITH_WORDS: Final = "i.words @@ CAST(CAST(:match AS text) AS tsquery)"
    _BY_WORDS: Final = "ts_rank(i.words, CAST(CAST(:words AS text) AS tsquery)) DESC"
    _BY_VECTOR: Final = "i.embedding <#> CAST(CAST(:vector AS text) AS vector)"
    # A plan for any parameters assumes ten entries: 500 ms instead of 50 with 1,500 of them.
    _PLAN_FOR_PARAMETERS: Final = sa.text("SET LOCAL plan_cache_mode = force_custom_plan")

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session
        self._project = tx.project

    async def add(self, file: StoreFile, chunks: Sequence[NewChunk]) -> None:
        rows: list[dict[str, Any]] = [
            {
                "entry": file.entry,
                "number": chunk.number,
                "words": sorted({file.store_id, *search_terms(chunk.text)}),
            }
            for chunk in chunks
        ]
        if not await self._is_true(HAS_COLUMN):
            await self._session.execute(self._ADD, rows)
            return
        for row, chunk in zip(rows, chunks, strict=True):
            row["embedding"] = encode_vector(chunk.vector)
        await self._session.execute(self._ADD_WITH_VECTORS, rows)

    async def delete(self, entry: str, first: int, end: int) -> None:
        """Delete the chunks of an entry with numbers from `first` to `end` - 1."""
        await self._session.execute(self._DELETE, {"entry": entry, "first": first, "end": end})

    async def search_words(
        self, scope: SearchScope, words: Sequence[str], limit: int
    ) -> list[ChunkKey]:
        """Find chunks that contain any of the words, by ts_rank."""
        stores, any_word = _tsquery_any(scope.store_ids), _tsquery_any(words)
        values = {
            "match": f"({stores}) & ({any_word})",
            "words": any_word,
        }
        return await self._search(scope, (self._WITH_WORDS,), self._BY_WORDS, values, limit)

    async def search_vector(
        self, scope: SearchScope, vector: Vector, limit: int
    ) -> list[ChunkKey] | None:
        """Find the chunks nearest to a vector by an exact scan; None without pgvector."""
        if not await self._is_true(HAS_VECTORS):
            return None
        values = {"vector": encode_vector(vector)}
        return await self._search(scope, (), self._BY_VECTOR, values, limit)

    async def _search(
        self,
        scope: SearchScope,
        conditions: tuple[str, ...],
        order: str,
        values: Mapping[str, str],
        limit: int,
    ) -> list[ChunkKey]:
        parameters = {
            **values,
            "project": self._project,
            "stores": list(scope.store_ids),
            "limit": limit,
        }
        if scope.entries is not None:
            await self._session.execute(self._PLAN_FOR_PARAMETERS)
            conditions = (*conditions, self._IN_ENTRIES)
            parameters["entries"] = list(scope.entries)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = sa.text(f"{self._SEARCH}{where} ORDER BY {order}, i.entry, i.number LIMIT :limit")
        return [ChunkKey(*row) for row in await self._session.execute(query, parameters)]

    async def _is_true(self, query: sa.TextClause) -> bool:
        return (await self._session.execute(query)).first() is not None


def _tsquery_any(words: Sequence[str]) -> str:
    return " | ".join(f"'{word}'" for word in words)


def encode_vector(vector: Vector) -> str:
    """Encode a vector for pgvector."""
    return json.dumps(vector.tolist(), separators=(",", ":"))
