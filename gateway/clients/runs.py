"""Runs as the routes see them: typed calls as a caller, and runs that are begun and followed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc.aio
from corral.control.v1 import run_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub

from gateway.auth import Caller, Credentials
from gateway.calls import StreamCall
from gateway.clients.control import SERVICE, ControlCalls
from svc_kit.errors import DomainError

WatchCall = StreamCall[pb.WatchRunResponse]


class RunClient(ControlCalls):
    """Runs over one channel. The deadline of those that are followed is `transfer_timeout_s`."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = RunServiceStub(channel)

    async def create(self, request: pb.CreateRunRequest, caller: Caller) -> run_pb2.Run:
        """Begin a run."""
        return (await self._ask(self._stub.CreateRun, request, caller)).run

    async def create_with_thread(
        self, request: pb.CreateThreadAndRunRequest, caller: Caller
    ) -> run_pb2.Run:
        """Begin a thread and a run on it."""
        return (await self._ask(self._stub.CreateThreadAndRun, request, caller)).run

    async def get(self, thread_id: str, run_id: str, caller: Caller) -> run_pb2.Run:
        """One run."""
        request = pb.GetRunRequest(thread_id=thread_id, run_id=run_id)
        return (await self._ask(self._stub.GetRun, request, caller)).run

    async def page(self, request: pb.ListRunsRequest, caller: Caller) -> pb.ListRunsResponse:
        """A page of runs."""
        return await self._ask(self._stub.ListRuns, request, caller)

    async def update(self, request: pb.UpdateRunRequest, caller: Caller) -> run_pb2.Run:
        """Change a run's metadata."""
        return (await self._ask(self._stub.UpdateRun, request, caller)).run

    async def cancel(self, thread_id: str, run_id: str, caller: Caller) -> run_pb2.Run:
        """End a run."""
        request = pb.CancelRunRequest(thread_id=thread_id, run_id=run_id)
        return (await self._ask(self._stub.CancelRun, request, caller)).run

    async def submit(
        self, request: pb.SubmitToolOutputsRequest, caller: Caller
    ) -> pb.SubmitToolOutputsResponse:
        """Give a run what its calls gave."""
        return await self._ask(self._stub.SubmitToolOutputs, request, caller)

    async def step(
        self, thread_id: str, run_id: str, step_id: str, caller: Caller
    ) -> run_pb2.RunStep:
        """One step."""
        request = pb.GetRunStepRequest(thread_id=thread_id, run_id=run_id, step_id=step_id)
        return (await self._ask(self._stub.GetRunStep, request, caller)).step

    async def steps(
        self, request: pb.ListRunStepsRequest, caller: Caller
    ) -> pb.ListRunStepsResponse:
        """A page of a run's steps."""
        return await self._ask(self._stub.ListRunSteps, request, caller)

    def watch(self, request: pb.WatchRunRequest, caller: Caller) -> WatchCall:
        """Follow a run."""
        call = self._stub.WatchRun(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return StreamCall(call, SERVICE)


class FollowedRun:
    """The `Calls` of a run that is begun, or gone on with, and then followed.

    A client that goes away stops the following, never the run.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[pb.WatchRunRequest]],
        watch: Callable[[pb.WatchRunRequest], WatchCall],
    ) -> None:
        """`begin` says what is to be followed."""
        self._begin = begin
        self._watch = watch
        self._opening: asyncio.Task[pb.WatchRunRequest] | None = None
        self._call: WatchCall | None = None
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Returns when the run is begun, and its first event is there."""
        self._opening = asyncio.ensure_future(self._begin())
        try:
            request = await self._opening
        except asyncio.CancelledError:
            if self._stopped is not None:
                raise self._stopped from None
            raise
        self._call = self._watch(request)
        await self._call.open()

    async def __aiter__(self) -> AsyncIterator[tuple[int, pb.WatchRunResponse]]:
        """The events, all numbered 0."""
        if self._call is not None:
            async for event in self._call:
                yield event

    def stop(self, error: DomainError) -> None:
        """Cancels the following."""
        if self._stopped is not None:
            return
        self._stopped = error
        if self._call is not None:
            self._call.stop(error)
        elif self._opening is not None:
            self._opening.cancel()
