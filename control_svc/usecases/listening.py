"""Waiting for a notice that something has changed."""

import asyncio
from contextlib import suppress


async def noticed(changed: asyncio.Event, at_most_s: float) -> None:
    """Return at the next notice, or after so many seconds: one may get lost.

    `changed` is what `Notices.listen` gives; whoever looks after this has missed nothing since.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await changed.wait()
    changed.clear()
