"""Runs conversions whose time grows with the request in threads, in which others take turns."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.tasks import retrieve_exception

_MANY: Final = 500
"""Items that take a few milliseconds."""
_PAUSED_AFTER_S: Final = 0.02
_PAUSE_FACTOR: Final = 3
"""Native code does not release Python's lock. After a step that may have delayed others, they have
the process for this multiple of its time."""
_MAX_PAUSE_S: Final = 1.0
Result = TypeVar("Result")
Argument = TypeVar("Argument")


async def off_loop(
    num_items: int, function: Callable[[Argument], Result], argument: Argument
) -> Result:
    """Call a function of an argument with `num_items`: at once for few, else in a thread."""
    if num_items <= _MANY:
        return function(argument)
    return await asyncio.to_thread(function, argument)


class ConversionTurns:
    """Calls functions in threads, one at a time, for projects in turn."""

    def __init__(self) -> None:
        self._turns = FairSemaphore(1)

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the project's turn, which lasts until the thread has ended, also if
        the caller is cancelled."""
        project = project_var.get()
        await self._turns.acquire(1, project)
        started = time.monotonic()

        def end_turn(call: asyncio.Future[Result]) -> None:
            retrieve_exception(call)
            duration_s = time.monotonic() - started
            pause_s = duration_s * _PAUSE_FACTOR if duration_s > _PAUSED_AFTER_S else 0.0
            loop = asyncio.get_running_loop()
            loop.call_later(min(pause_s, _MAX_PAUSE_S), self._turns.release, 1, project)

        call = asyncio.create_task(asyncio.to_thread(function, *arguments))
        call.add_done_callback(end_turn)
        return await asyncio.shield(call)
