"""Tasks whose errors nobody waits for: `svc_kit/tasks.py` and what uses it."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import NoReturn

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from control_svc.db.notifications import LocalNotifications
from control_svc.db.transaction import CrossProjectTransactions
from gateway.calls import ComposedCall
from inference_svc.adapter_sync.reconciler import SharedLookup
from svc_kit.errors import UpstreamUnavailable
from svc_kit.off_loop import ConversionTurns
from svc_kit.tasks import end_tasks, open_in_thread, retrieve_exception


class Work:
    """Fails once it may, after its caller has gone."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def fail(self) -> NoReturn:
        """Raise what callers can get."""
        self.started.set()
        await self.gate.wait()
        raise UpstreamUnavailable(service="inference")

    async def leave(self, caller: Awaitable[object]) -> None:
        """Cancel a caller of the work while it runs, then let the work fail."""
        task = asyncio.ensure_future(caller)
        await self.started.wait()
        task.cancel()
        self.gate.set()
        await asyncio.wait([task])


async def drop_task(work: Work) -> None:
    """As a sender of pings, or the worker of a socket."""
    asyncio.create_task(work.fail()).add_done_callback(retrieve_exception)
    work.gate.set()


async def drop_composed_call(work: Work) -> None:
    ComposedCall(work.fail())
    work.gate.set()


async def leave_lookup(work: Work) -> None:
    """Of adapters, which others may wait for too."""
    await work.leave(SharedLookup(work.fail).get())


async def leave_conversion(work: Work) -> None:
    """A thread goes on without its caller."""
    loop, gate = asyncio.get_running_loop(), threading.Event()

    def fail() -> NoReturn:
        loop.call_soon_threadsafe(work.started.set)
        gate.wait()
        raise ValueError

    await work.leave(ConversionTurns().call(fail))
    gate.set()


async def leave_transaction(work: Work) -> None:
    """It runs to its end, and may find then that its job belongs to another worker."""
    engine = create_async_engine("sqlite+aiosqlite://")
    transactions = CrossProjectTransactions(engine, engine, LocalNotifications())
    await work.leave(transactions.read(lambda _: work.fail()))
    await transactions.close()
    await engine.dispose()


async def end_failing_task(work: Work) -> None:
    """One that fails when it is cancelled, and one that had failed before."""

    async def fail_at_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    failed, running = asyncio.create_task(work.fail()), asyncio.create_task(fail_at_end())
    await work.started.wait()
    work.gate.set()
    await asyncio.wait([failed])
    await end_tasks(failed, running)


@pytest.mark.parametrize(
    "leave",
    [
        drop_task,
        drop_composed_call,
        leave_lookup,
        leave_conversion,
        leave_transaction,
        end_failing_task,
    ],
)
async def test_errors_that_nobody_waits_for_are_not_those_of_the_loop(
    leave: Callable[[Work], Awaitable[None]],
) -> None:
    """It would log each as "Task exception was never retrieved"."""
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    await leave(Work())
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    del others
    await asyncio.sleep(0)  # callbacks of tasks that had ended before
    gc.collect()

    assert problems == []


async def test_a_file_whose_opener_has_gone_is_closed() -> None:
    """A thread cannot be cancelled while it opens one."""
    loop, gate = asyncio.get_running_loop(), threading.Event()
    begun, closed = asyncio.Event(), asyncio.Event()

    class File(BytesIO):
        def close(self) -> None:
            super().close()
            closed.set()

    file = File()

    def open_slowly() -> File:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()
        return file

    caller = asyncio.create_task(open_in_thread(open_slowly))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert not closed.is_set()
    gate.set()

    await closed.wait()
