"""Reads what refers to blobs, and works on many blobs at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from control_svc.db.tables import BLOB, SecretRow
from control_svc.slices import BLOB_COLUMNS

ROWS_AT_ONCE: Final = 500
_CONCURRENT_BLOBS: Final = 8


async def read_secret(session: AsyncSession | AsyncConnection, name: str) -> bytes | None:
    """A shared secret of the installation; None if there is none."""
    query = sa.select(SecretRow.value).where(SecretRow.name == name)
    return (await session.execute(query)).scalar_one_or_none()


class BlobReference(NamedTuple):
    """A row that refers to a blob."""

    table: str
    project: str
    object_id: str
    key: str
    size_bytes: int
    sha256: str
    """Empty for a part of an upload."""


References = list[BlobReference]
_Query = Callable[[AsyncSession | AsyncConnection], Awaitable[References]]
ItemT = TypeVar("ItemT")


async def reference_groups(
    read: Callable[[_Query], Awaitable[References]],
) -> AsyncIterator[References]:
    """All references to blobs in groups of `ROWS_AT_ONCE`; `read` runs a query."""
    for column in BLOB_COLUMNS:
        table, (size, digest) = column.table, column.info[BLOB]
        sha256 = table.c[digest] if digest else sa.literal("")
        found = (sa.literal(table.name), table.c.project, table.c.id, column, table.c[size], sha256)
        query = sa.select(*found).order_by(column).limit(ROWS_AT_ONCE)
        last = ""
        while group := await read(partial(_references, query.where(column > last))):
            yield group
            last = group[-1].key


async def _references(query: sa.Select[Any], session: AsyncSession | AsyncConnection) -> References:
    return [BlobReference(*row) for row in await session.execute(query)]


async def for_each(items: Sequence[ItemT], work: Callable[[ItemT], Awaitable[None]]) -> None:
    """Run the work for each blob, some at a time. Raises the first error."""
    slots = asyncio.Semaphore(_CONCURRENT_BLOBS)

    async def run(item: ItemT) -> None:
        async with slots:
            await work(item)

    tasks = [asyncio.create_task(run(item)) for item in items]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
