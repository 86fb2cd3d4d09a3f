"""The RPCs of runs and their steps."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from corral.control.v1 import run_service_pb2 as pb

from control_svc.base.pagination import Page
from control_svc.base.proto import changed_fields, page_request
from control_svc.base.resource import Methods
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.limits.buckets import RateLimits
from control_svc.runs.model import Run, ToolOutput
from control_svc.runs.proto import NEW_RUN, NEW_RUN_THREAD, RUN, STEP
from control_svc.runs.service import Runs


@dataclass(frozen=True)
class RunServicer(Methods[Run]):
    """Runs. Each method raises the errors of the operation that it calls."""

    service = pb.DESCRIPTOR.services_by_name["RunService"]
    message, noun, plural = RUN, "a run", "runs"

    runs: Runs
    limits: RateLimits

    async def CreateRun(self, project: str, request: pb.CreateRunRequest) -> pb.CreateRunResponse:
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        run = await self.runs.create(project, request.thread_id, new)
        limits = await self.limits.of_caller(run.settings.model)
        return pb.CreateRunResponse(run=RUN.to_message(run), rate_limits=limits)

    async def CreateThreadAndRun(
        self, project: str, request: pb.CreateThreadAndRunRequest
    ) -> pb.CreateThreadAndRunResponse:
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        thread = NEW_RUN_THREAD.from_message(request)
        run = await self.runs.create_with_thread(project, thread, new)
        limits = await self.limits.of_caller(run.settings.model)
        return pb.CreateThreadAndRunResponse(run=RUN.to_message(run), rate_limits=limits)

    async def GetRun(self, project: str, request: pb.GetRunRequest) -> Run:
        return await self.runs.get(project, request.thread_id, request.run_id)

    async def ListRuns(self, project: str, request: pb.ListRunsRequest) -> Page[Run]:
        return await self.runs.page(project, request.thread_id, page_request(request))

    async def UpdateRun(self, project: str, request: pb.UpdateRunRequest) -> Run:
        """Change the metadata of a run."""
        changed = changed_fields(request, ("metadata",))
        metadata = dict(request.metadata) if changed else None
        return await self.runs.update(project, request.thread_id, request.run_id, metadata)

    async def CancelRun(self, project: str, request: pb.CancelRunRequest) -> Run:
        return await self.runs.cancel(project, request.thread_id, request.run_id)

    async def SubmitToolOutputs(
        self, project: str, request: pb.SubmitToolOutputsRequest
    ) -> pb.SubmitToolOutputsResponse:
        """Submit the outputs of a run's calls."""
        result = await self.runs.submit(
            project,
            request.thread_id,
            request.run_id,
            [ToolOutput(output.call_id, output.output) for output in request.outputs],
            request.request_id,
        )
        return pb.SubmitToolOutputsResponse(
            run=RUN.to_message(result.run),
            last_event=result.last_event,
            rate_limits=await self.limits.of_caller(result.run.settings.model),
        )

    async def GetRunStep(
        self, project: str, request: pb.GetRunStepRequest
    ) -> pb.GetRunStepResponse:
        step = await self.runs.step(project, request.thread_id, request.run_id, request.step_id)
        return pb.GetRunStepResponse(step=STEP.to_message(step))

    async def ListRunSteps(
        self, project: str, request: pb.ListRunStepsRequest
    ) -> pb.ListRunStepsResponse:
        wanted = page_request(request)
        page = await self.runs.steps(project, request.thread_id, request.run_id, wanted)
        return pb.ListRunStepsResponse(
            steps=map(STEP.to_message, page.items), next_page_token=page.next_token
        )

    async def WatchRun(
        self, project: str, request: pb.WatchRunRequest
    ) -> AsyncGenerator[pb.WatchRunResponse | None, None]:
        after = request.after if request.HasField("after") else BEFORE_FIRST
        watching = self.runs.watch(project, request.thread_id, request.run_id, after)
        async with aclosing(watching) as groups:
            async for group in groups:
                if not group:
                    yield None
                for event in group:
                    yield event
