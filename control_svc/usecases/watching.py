"""An object as it is, and again after each change, for callers that follow it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from control_svc.domain.ports import Notices

ObjectT = TypeVar("ObjectT")


async def follow(
    notices: Notices,
    topic: str,
    read: Callable[[], Awaitable[ObjectT]],
    is_final: Callable[[ObjectT], bool],
    interval_s: float,
) -> AsyncGenerator[ObjectT, None]:
    """The object whenever it is another, until it is final; raises what `read` raises.

    `interval_s` is how long a notice that got lost is missed.
    """
    with notices.listen(topic) as changed:
        seen: ObjectT | None = None
        while seen is None or not is_final(seen):
            changed.clear()
            found = await read()
            if found != seen:
                yield found
                seen = found
            if not is_final(found):
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await changed.wait()
