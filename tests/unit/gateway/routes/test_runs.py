"""Streams of runs that the gateway starts and then follows."""

import asyncio
from typing import Any

import pytest
from corral.control.v1 import run_pb2
from corral.control.v1 import run_service_pb2 as pb

from gateway.calls import StreamCall
from gateway.routes.runs import StartedRun
from svc_kit.errors import CallerCancelled, Draining

RUN = run_pb2.Run(id="run_1", thread_id="thread_1")
EVENT = pb.WatchRunResponse(number=8)


class FakeWatch:
    """A WatchRun call that has one event and then waits until it is cancelled."""

    def __init__(self) -> None:
        self.requests: list[pb.WatchRunRequest] = []
        self.num_cancels = 0
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._events.put_nowait(EVENT)

    def start(self, request: pb.WatchRunRequest) -> StreamCall[pb.WatchRunResponse]:
        self.requests.append(request)
        return StreamCall(self, "control")

    async def read(self) -> Any:
        """Return the event; raise CancelledError once cancelled, as gRPC does."""
        event = await self._events.get()
        if event is None:
            raise asyncio.CancelledError
        return event

    def cancel(self) -> None:
        self.num_cancels += 1
        self._events.put_nowait(None)


@pytest.mark.parametrize(
    ("reply", "after"),
    [
        (pb.CreateRunResponse(run=RUN), 0),
        (pb.CreateThreadAndRunResponse(run=RUN), 0),
        (pb.SubmitToolOutputsResponse(run=RUN, last_event=7), 7),
    ],
)
async def test_a_resumed_run_is_followed_after_its_last_event(reply: Any, after: int) -> None:
    """A new one is followed from its first event."""
    watch = FakeWatch()
    run = StartedRun(lambda: asyncio.sleep(0, reply), watch.start)
    await run.open()
    events = aiter(run)

    assert await anext(events) == (0, EVENT)
    assert watch.requests == [
        pb.WatchRunRequest(thread_id="thread_1", run_id="run_1", after=after or None)
    ]
    run.stop(Draining())
    run.stop(CallerCancelled())
    with pytest.raises(Draining):
        await anext(events)
    assert watch.num_cancels == 1


@pytest.mark.parametrize("has_started", [False, True])
async def test_a_run_that_is_stopped_while_it_starts_is_not_followed(has_started: bool) -> None:
    watch, started = FakeWatch(), asyncio.get_running_loop().create_future()
    opening = asyncio.create_task((run := StartedRun(lambda: _result(started), watch.start)).open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if has_started:
        started.set_result(pb.CreateRunResponse(run=RUN))
        await asyncio.sleep(0)
    run.stop(Draining())

    with pytest.raises(Draining):
        await opening
    assert watch.requests == []


async def test_a_cancelled_task_is_not_taken_for_a_stopped_run() -> None:
    """The cancellation is passed on."""
    started = asyncio.get_running_loop().create_future()
    opening = asyncio.create_task(StartedRun(lambda: _result(started), FakeWatch().start).open())
    await asyncio.sleep(0)
    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening


async def _result(future: "asyncio.Future[Any]") -> Any:
    return await future
