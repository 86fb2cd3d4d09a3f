"""The end of asyncio tasks: their errors reach whoever waits for them, or nobody, but never the
event loop, which logs "Task exception was never retrieved"."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """A done callback for tasks whose waiters may be gone, and with them who the error is for."""
    if not task.cancelled():
        task.exception()


async def end_tasks(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait for their end. Errors that were not raised before are ignored."""
    for task in tasks:
        task.add_done_callback(retrieve_exception)
        task.cancel()
    await asyncio.wait(tasks)


async def run_in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a thread, as `asyncio.to_thread`; whoever is cancelled first waits for its
    end, so that it does not write to what its caller has released."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(call)
    finally:
        await asyncio.wait((call,))
