"""The end of asyncio tasks: their errors reach whoever waits for them, or nobody, but never the
event loop, which logs "Task exception was never retrieved"."""

import asyncio
from typing import Any


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
