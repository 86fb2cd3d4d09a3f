"""Memory and time of large JSON bodies, which projects get in turn.

A large body reserves memory before it is read, until its response has ended. It is parsed and
converted in a thread, one body at a time, so that other requests are not delayed.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from starlette.types import Scope

from svc_kit.errors import QueueFull
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.tasks import retrieve_exception

UNRESERVED_BYTES: Final = 256 * 1024
"""Smaller bodies reserve no memory."""
_RESERVATION: Final = "corral.reservation"
_PAUSED_AFTER_S: Final = 0.02
_PAUSE_FACTOR: Final = 3
"""Native code does not release Python's lock. After a step that may have delayed others, they have
the process for this multiple of its time."""
_MAX_PAUSE_S: Final = 1.0
Result = TypeVar("Result")


class LargeBodies:
    """The large bodies of all requests. A project holds at most half of `memory_bytes`."""

    def __init__(self, memory_bytes: int, wait_s: float) -> None:
        """`wait_s`: how long a body waits for memory."""
        self._memory = FairSemaphore(memory_bytes, client_limit=memory_bytes // 2)
        self._memory_bytes = memory_bytes
        self._wait_s = wait_s
        self._turns = FairSemaphore(1)

    async def reserve(self, scope: Scope, num_bytes: int) -> None:
        """Reserve memory for the body of a request until `release`. Raises QueueFull."""
        project = project_var.get()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._memory.acquire(num_bytes, project)
        except TimeoutError:
            limit = self._memory_bytes // 2
            raise QueueFull(bound="bytes of large requests", depth=limit, limit=limit) from None
        scope[_RESERVATION] = (self._memory, num_bytes, project)

    async def convert(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a thread, in the project's turn, which lasts until the thread has
        ended, also if the caller is cancelled."""
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


def release(scope: Scope) -> None:
    """Release what the body of a request reserved, if any."""
    if (reserved := scope.pop(_RESERVATION, None)) is not None:
        memory, num_bytes, project = reserved
        memory.release(num_bytes, project)


large_body: Final[ContextVar[LargeBodies | None]] = ContextVar("large_body", default=None)
"""Where the body of the running request is converted, if it is large."""


async def convert(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that parses or converts the request's body: at once if that is small."""
    bodies = large_body.get()
    if bodies is None:
        return function(*arguments)
    return await bodies.convert(function, *arguments)
