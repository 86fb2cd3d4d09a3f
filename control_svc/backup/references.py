"""Reads what refers to blobs, and works on many blobs at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from control_svc.db.tables import SecretRow
from control_svc.schema import BLOB_COLUMNS, BlobReference, read_references

ROWS_AT_ONCE: Final = 500
_CONCURRENT_BLOBS: Final = 8


async def read_secret(session: AsyncSession, name: str) -> bytes | None:
    """A shared secret of the installation; None if there is none."""
    row = await session.get(SecretRow, name)
    return None if row is None else row.value


References = list[BlobReference]


async def reference_groups(
    read: Callable[[Callable[[AsyncSession], Awaitable[References]]], Awaitable[References]],
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


async def for_each(
    references: References, work: Callable[[BlobReference], Awaitable[None]]
) -> None:
    """Run the work for each blob, some at a time. Raises the first error."""
    slots = asyncio.Semaphore(_CONCURRENT_BLOBS)

    async def run(reference: BlobReference) -> None:
        async with slots:
            await work(reference)

    tasks = [asyncio.create_task(run(reference)) for reference in references]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
