"""Reads what refers to blobs, and works on many blobs at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from control_svc.db.tables import SecretRow
from control_svc.schema import BLOB_COLUMNS, BlobReference, read_references

ROWS_AT_ONCE: Final = 500
_CONCURRENT_BLOBS: Final = 8


async def read_secret(session: AsyncSession | AsyncConnection, name: str) -> bytes | None:
    """A shared secret of the installation; None if there is none."""
    query = select(SecretRow.value).where(SecretRow.name == name)
    return (await session.execute(query)).scalar_one_or_none()


References = list[BlobReference]
_Query = Callable[[AsyncSession | AsyncConnection], Awaitable[References]]
ItemT = TypeVar("ItemT")


async def reference_groups(
    read: Callable[[_Query], Awaitable[References]],
) -> AsyncIterator[References]:
    """All references to blobs in groups of `ROWS_AT_ONCE`; `read` runs a query."""
    for column in BLOB_COLUMNS:
        last = ""
        while group := await read(
            lambda session, column=column, last=last: read_references(  # type: ignore[misc]
                session, column, last, ROWS_AT_ONCE
            )
        ):
            yield group
            last = group[-1].key


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
