"""grpc.aio's server, without its death by the name of a method.

grpc.aio decodes the name of a method that is not registered as UTF-8 in the loop that accepts all
calls; a name with other bytes, from any caller, ends that loop and so the server. Here calls of
methods that are not registered never come to it: they go to a function that needs no name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # has no stubs

Refuse = Callable[[grpc.aio.ServicerContext[Any, Any]], Awaitable[None]]
"""Ends a call with an error."""


class _MethodLoop(cygrpc.AioServer):  # type: ignore[misc]  # has no stubs
    refuse: Refuse
    refusing: asyncio.Semaphore | None = None
    """Bounds the refusals that run, which gRPC's limit of calls does not see."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Overrides gRPC's: a future of the next call of a method; None is any other method."""
        if method is not None:
            future: asyncio.Future[Any] = super()._make_request_call_future(method)
            return future
        return asyncio.create_task(self._refuse_others())

    async def _refuse_others(self) -> None:
        """Refuse calls of other methods. Raises gRPC's error when the server stops."""
        loop = asyncio.get_running_loop()
        running: set[asyncio.Task[None]] = set()

        def end(task: asyncio.Task[None]) -> None:
            running.discard(task)
            if self.refusing is not None:
                self.refusing.release()

        while True:
            if self.refusing is not None:
                await self.refusing.acquire()
            call = await self._request_call()
            context = cygrpc._ServicerContext(call, None, None, loop)
            ending = cygrpc._schedule_rpc_coro(self.refuse(context), call, loop, "unknown")
            task = loop.create_task(ending)
            running.add(task)  # the loop has weak references only
            task.add_done_callback(end)


class MethodServer(grpc.aio._server.Server):  # type: ignore[name-defined,misc]  # has no stubs
    """A server of registered methods; it takes no generic handlers."""

    def __init__(
        self,
        *,
        interceptor: grpc.aio.ServerInterceptor,
        refuse: Refuse,
        options: Sequence[tuple[str, int]],
        max_calls: int | None,
    ) -> None:
        """`refuse` gets the calls of all other methods. At most `max_calls` of them, and as
        many of the registered ones, run at once; None: no limit."""
        self._loop = asyncio.get_running_loop()
        self._server = _MethodLoop(self._loop, None, (), (interceptor,), tuple(options), max_calls)
        self._server.refuse = refuse
        if max_calls is not None:
            self._server.refusing = asyncio.Semaphore(max_calls)
