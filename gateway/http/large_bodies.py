"""Memory and time of large JSON bodies, which projects get in turn.

A large body reserves memory before it is read, until its response has ended. It is parsed and
converted in a thread, one body at a time, so that other requests are not delayed.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from starlette.types import Scope

from svc_kit.errors import QueueFull
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.off_loop import ConversionTurns

UNRESERVED_BYTES: Final = 256 * 1024
"""Smaller bodies reserve no memory."""
_RESERVATION: Final = "corral.reservation"
Result = TypeVar("Result")


class LargeBodies:
    """The large bodies of all requests. A project holds at most half of `memory_bytes`."""

    def __init__(self, memory_bytes: int, wait_s: float) -> None:
        """`wait_s`: how long a body waits for memory."""
        self._memory = FairSemaphore(memory_bytes, client_limit=memory_bytes // 2)
        self._memory_bytes = memory_bytes
        self._wait_s = wait_s
        self._turns = ConversionTurns()

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
        """Call a function in a thread, in the project's turn."""
        return await self._turns.call(function, *arguments)


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
