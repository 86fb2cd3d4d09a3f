"""The gRPC servicer of runs."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1 import run_service_pb2_grpc as rpc

from control_svc.base.proto import Context, caller_project, changed_fields, page_request
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.limits.buckets import RateLimits
from control_svc.runs.model import ToolOutput
from control_svc.runs.proto import NEW_RUN, NEW_RUN_THREAD, RUN, STEP
from control_svc.runs.service import Runs
from svc_kit.rpc.interceptors import accept_call


class RunServicer(rpc.RunServiceServicer):
    """Runs over gRPC."""

    def __init__(self, runs: Runs, limits: RateLimits) -> None:
        self._runs = runs
        self._limits = limits

    async def CreateRun(
        self, request: pb.CreateRunRequest, context: Context
    ) -> pb.CreateRunResponse:
        """Create a run."""
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        run = await self._runs.create(caller_project(), request.thread_id, new)
        limits = await self._limits.of_caller(run.settings.model)
        return pb.CreateRunResponse(run=RUN.to_message(run), rate_limits=limits)

    async def CreateThreadAndRun(
        self, request: pb.CreateThreadAndRunRequest, context: Context
    ) -> pb.CreateThreadAndRunResponse:
        """Create a thread and a run on it."""
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        run = await self._runs.create_with_thread(
            caller_project(), NEW_RUN_THREAD.from_message(request), new
        )
        limits = await self._limits.of_caller(run.settings.model)
        return pb.CreateThreadAndRunResponse(run=RUN.to_message(run), rate_limits=limits)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        """Return a run."""
        run = await self._runs.get(caller_project(), request.thread_id, request.run_id)
        return pb.GetRunResponse(run=RUN.to_message(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """List the runs of a thread."""
        page = await self._runs.page(caller_project(), request.thread_id, page_request(request))
        return pb.ListRunsResponse(
            runs=map(RUN.to_message, page.items), next_page_token=page.next_token
        )

    async def UpdateRun(
        self, request: pb.UpdateRunRequest, context: Context
    ) -> pb.UpdateRunResponse:
        """Change the metadata of a run."""
        changed = changed_fields(request, ("metadata",))
        metadata = dict(request.metadata) if changed else None
        run = await self._runs.update(caller_project(), request.thread_id, request.run_id, metadata)
        return pb.UpdateRunResponse(run=RUN.to_message(run))

    async def CancelRun(
        self, request: pb.CancelRunRequest, context: Context
    ) -> pb.CancelRunResponse:
        """Cancel a run."""
        run = await self._runs.cancel(caller_project(), request.thread_id, request.run_id)
        return pb.CancelRunResponse(run=RUN.to_message(run))

    async def SubmitToolOutputs(
        self, request: pb.SubmitToolOutputsRequest, context: Context
    ) -> pb.SubmitToolOutputsResponse:
        """Submit the outputs of a run's calls."""
        result = await self._runs.submit(
            caller_project(),
            request.thread_id,
            request.run_id,
            [ToolOutput(output.call_id, output.output) for output in request.outputs],
            request.request_id,
        )
        return pb.SubmitToolOutputsResponse(
            run=RUN.to_message(result.run),
            last_event=result.last_event,
            rate_limits=await self._limits.of_caller(result.run.settings.model),
        )

    async def GetRunStep(
        self, request: pb.GetRunStepRequest, context: Context
    ) -> pb.GetRunStepResponse:
        """Return a step."""
        step = await self._runs.step(
            caller_project(), request.thread_id, request.run_id, request.step_id
        )
        return pb.GetRunStepResponse(step=STEP.to_message(step))

    async def ListRunSteps(
        self, request: pb.ListRunStepsRequest, context: Context
    ) -> pb.ListRunStepsResponse:
        """List the steps of a run."""
        page = await self._runs.steps(
            caller_project(), request.thread_id, request.run_id, page_request(request)
        )
        return pb.ListRunStepsResponse(
            steps=map(STEP.to_message, page.items), next_page_token=page.next_token
        )

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Stream the events of a run."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        watching = self._runs.watch(caller_project(), request.thread_id, request.run_id, after)
        async with aclosing(watching) as groups:
            async for group in groups:
                if not group:
                    await accept_call(context)
                for event in group:
                    yield event
