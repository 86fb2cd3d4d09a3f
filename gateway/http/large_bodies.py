"""Memory and time of large JSON bodies, which projects get in turn.

A large body reserves memory before it is read, until its response has ended. Until the call that
it asks for is accepted there are several copies of it, so that a project has few such bodies. It is
parsed and converted in a thread, one body at a time, so that other requests are not delayed.
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
_HELD: Final = "corral.held_memory"
_ARRIVING: Final = "corral.arriving_memory"
Result = TypeVar("Result")


class LargeBodies:
    """The large bodies of all requests. A project holds at most half of `memory_bytes`, and at most
    `max_arriving_bytes`, or one body, before the calls are accepted."""

    def __init__(self, memory_bytes: int, wait_s: float, max_arriving_bytes: int) -> None:
        """`wait_s`: how long a body waits for memory."""
        self._memory = FairSemaphore(memory_bytes, client_limit=memory_bytes // 2)
        self._arriving = FairSemaphore(memory_bytes, client_limit=max_arriving_bytes)
        self._max_bytes, self._max_arriving_bytes = memory_bytes // 2, max_arriving_bytes
        self._wait_s = wait_s
        self._turns = ConversionTurns()

    async def reserve(self, scope: Scope, num_bytes: int, *, arrives: bool = True) -> None:
        """Reserve memory for the body of a request until `release`; what `arrives` also counts as
        arriving until `end_arrival`. Raises QueueFull."""
        project, limit = project_var.get(), self._max_arriving_bytes
        try:
            async with asyncio.timeout(self._wait_s):
                if arrives:
                    await self._arriving.acquire(num_bytes, project)
                    scope[_ARRIVING] = (self._arriving, num_bytes, project)
                limit = self._max_bytes
                await self._memory.acquire(num_bytes, project)
        except TimeoutError:
            raise QueueFull(bound="bytes of large requests", depth=limit, limit=limit) from None
        scope[_HELD] = (self._memory, num_bytes, project)

    def shrink(self, scope: Scope, num_bytes: int) -> None:
        """Keep so much of what a body reserved before its size was known."""
        memory, reserved, project = scope[_HELD]
        memory.release(reserved - num_bytes, project)
        scope[_HELD] = (memory, num_bytes, project)

    async def convert(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a thread, in the project's turn."""
        return await self._turns.call(function, *arguments)


def release(scope: Scope) -> None:
    """Release what the body of a request reserved, if any."""
    end_arrival(scope)
    _release(scope, _HELD)


def end_arrival(scope: Scope) -> None:
    """Let others of the project arrive: the request's call is accepted."""
    _release(scope, _ARRIVING)


def _release(scope: Scope, name: str) -> None:
    if (reserved := scope.pop(name, None)) is not None:
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
