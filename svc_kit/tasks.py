"""The end of asyncio tasks: their errors reach whoever waits for them, or nobody, but never the
event loop, which logs "Task exception was never retrieved"."""

import asyncio
from collections.abc import Callable
from typing import IO, Any, TypeVar

Result = TypeVar("Result")
File = TypeVar("File", bound=IO[Any])


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


async def open_in_thread(open_file: Callable[[], File]) -> File:
    """Open a file in a thread. If the caller is cancelled meanwhile, it is closed as soon as it is
    open."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_file))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
