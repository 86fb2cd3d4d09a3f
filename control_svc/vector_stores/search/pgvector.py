"""Adds pgvector's column to the index of chunks, also if the extension was installed later.

Searches use the column once it is NOT NULL, that is, once all chunks have their vectors in it.
"""

import logging
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_svc.vector_stores.search.chunk_index import HAS_COLUMN, HAS_VECTORS, encode_vector
from control_svc.vector_stores.search.chunk_queries import decode_vector

_log = logging.getLogger(__name__)
_ROWS_AT_ONCE: Final = 1000
_IS_AVAILABLE: Final = sa.text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
_CREATE_EXTENSION: Final = sa.text("CREATE EXTENSION IF NOT EXISTS vector")
_ADD_COLUMN: Final = sa.text("ALTER TABLE vector_chunk_index ADD COLUMN embedding vector")
_MISSING: Final = sa.text(
    "SELECT c.project, c.entry, c.number, c.vector FROM vector_chunks AS c"
    " JOIN vector_chunk_index AS i ON i.entry = c.entry AND i.number = c.number"
    " WHERE (c.project, c.entry, c.number) > (:project, :entry, :number) AND i.embedding IS NULL"
    " ORDER BY c.project, c.entry, c.number LIMIT :limit"
)
_FILL: Final = sa.text(
    "UPDATE vector_chunk_index SET embedding = CAST(CAST(:embedding AS text) AS vector)"
    " WHERE entry = :entry AND number = :number"
)
_DELETE_ORPHANS: Final = sa.text(
    "DELETE FROM vector_chunk_index AS i WHERE i.embedding IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM vector_chunks AS c WHERE c.entry = i.entry AND c.number = i.number)"
)
_SET_NOT_NULL: Final = sa.text("ALTER TABLE vector_chunk_index ALTER COLUMN embedding SET NOT NULL")


async def add_vector_column(engine: AsyncEngine) -> None:
    """Create and fill the column, if the database has pgvector and this role may create it.

    Rows are filled in transactions of `_ROWS_AT_ONCE`; an interrupted call is continued by the next
    one. After an error vectors are compared in memory. `engine` is `Database.migrator`.
    """
    if engine.dialect.name != "postgresql":
        return
    try:
        if await _add_column(engine):
            num_filled = 0
            while num_rows := await _fill(engine):  # again, for rows of older transactions
                num_filled += num_rows
            await _complete(engine)
            _log.info("pgvector's column of the index of chunks has %d vectors", num_filled)
    except DBAPIError as error:
        _log.warning("vectors are compared in memory: pgvector's column: %s", error.orig)


async def _complete(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(_DELETE_ORPHANS)
        await connection.execute(_SET_NOT_NULL)


async def _add_column(engine: AsyncEngine) -> bool:
    """Create the column; return whether there are rows to fill."""
    async with engine.begin() as connection:
        if (await connection.execute(HAS_VECTORS)).first() is not None:
            return False
        if (await connection.execute(HAS_COLUMN)).first() is None:
            if not await _create_extension(connection):
                return False
            await connection.execute(_ADD_COLUMN)
    return True


async def _create_extension(connection: AsyncConnection) -> bool:
    if (await connection.execute(_IS_AVAILABLE)).first() is None:
        return False
    try:
        async with connection.begin_nested():
            await connection.execute(_CREATE_EXTENSION)
    except DBAPIError as error:  # the role may not create it
        _log.info("vectors are compared in memory: pgvector cannot be created (%s)", error.orig)
        return False
    return True


async def _fill(engine: AsyncEngine) -> int:
    """Fill the missing rows, in the order of their keys; return how many there were."""
    key, count = {"project": "", "entry": "", "number": 0}, 0
    while True:
        async with engine.begin() as connection:
            missing = await connection.execute(_MISSING, {**key, "limit": _ROWS_AT_ONCE})
            rows = [dict(row) for row in missing.mappings()]
            if not rows:
                return count
            for row in rows:
                row["embedding"] = encode_vector(decode_vector(row["vector"]))
            await connection.execute(_FILL, rows)
        key = {name: rows[-1][name] for name in key}
        count += len(rows)
