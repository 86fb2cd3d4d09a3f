"""Memory of large JSON bodies, and calls that begin, which projects get in turn.

A large body reserves memory before it is read, until its response has ended. Until the call that
it asks for is accepted there are several copies of it. A call that generates, also one without a
large body, delays others until then. So only a few of a project begin at once. A large body is
parsed and converted in a thread, one at a time, so that other requests are not delayed.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from starlette.types import Scope

from svc_kit.errors import QueueFull
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var
from svc_kit.off_loop import ConversionTurns

UNRESERVED_BYTES: Final = 256 * 1024
"""Smaller bodies reserve no memory."""
_BEGINNING_S: Final = 0.5
"""A call that is not accepted so long after it was sent is queued, and delays no others."""
_AT_ONCE: Final = 4
"""Calls of a project that begin at once."""
_HELD: Final = "corral.held_memory"
_ARRIVING: Final = "corral.arriving_memory"
Result = TypeVar("Result")


class LargeBodies:
    """The bodies of all requests. A project holds at most half of `memory_bytes`, and before their
    calls are accepted, four bodies with at most `max_arriving_bytes` together, or one body."""

    def __init__(self, memory_bytes: int, wait_s: float, max_arriving_bytes: int) -> None:
        """`wait_s`: how long a body waits for others of its project."""
        self._memory = FairSemaphore(memory_bytes, client_limit=memory_bytes // 2)
        self._arriving = FairSemaphore(memory_bytes, client_limit=max_arriving_bytes)
        self._max_bytes, self._max_arriving_bytes = memory_bytes // 2, max_arriving_bytes
        self._wait_s = wait_s
        self._turns = ConversionTurns()

    async def reserve(self, scope: Scope, num_bytes: int, *, arrives: bool = True) -> None:
        """Reserve memory for the body of a request until `release`; what `arrives` also begins.
        Raises QueueFull."""
        if arrives:
            await self.begin(scope, num_bytes)
        limit = self._max_bytes
        error = QueueFull(bound="bytes of large requests", depth=limit, limit=limit)
        await self._acquire(self._memory, scope, _HELD, num_bytes, error)

    async def begin(self, scope: Scope, num_bytes: int) -> None:
        """Wait until a request of the project, with so many bytes, may begin. It counts until
        `end_arrival`. Raises QueueFull."""
        if _HELD in scope:  # it has memory, for which others that begin may wait
            return
        size = max(num_bytes, self._max_arriving_bytes // _AT_ONCE)
        error = QueueFull(bound="requests that begin", depth=_AT_ONCE, limit=_AT_ONCE)
        await self._acquire(self._arriving, scope, _ARRIVING, size, error)

    async def _acquire(
        self, semaphore: FairSemaphore, scope: Scope, name: str, size: int, error: QueueFull
    ) -> None:
        project = project_var.get()
        try:
            async with asyncio.timeout(self._wait_s):
                await semaphore.acquire(size, project)
        except TimeoutError:
            raise error from None
        scope[name] = (semaphore, size, project)

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


@contextmanager
def beginning(scope: Scope, *, is_queued: bool = True) -> Iterator[None]:
    """Let others of the project begin when a call is accepted, which is what the block waits for,
    or, if it may be queued, has not been for half a second."""
    loop = asyncio.get_running_loop()
    waiting = loop.call_later(_BEGINNING_S, end_arrival, scope) if is_queued else None
    try:
        yield
    finally:
        if waiting is not None:
            waiting.cancel()
        end_arrival(scope)


def end_arrival(scope: Scope) -> None:
    """Let others of the project begin."""
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
