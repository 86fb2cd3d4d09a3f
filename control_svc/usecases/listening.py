"""Waiting for a notice that something has changed."""

import asyncio
from contextlib import suppress


async def noticed(changed: asyncio.Event, at_most_s: float) -> bool:
    """Return at the next notice, or after so many seconds: one may get lost. Whether one came.

    `changed` is what `Notices.listen` gives; whoever looks after this has missed nothing since.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await changed.wait()
    was_noticed = changed.is_set()
    changed.clear()
    return was_noticed
