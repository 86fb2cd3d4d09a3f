"""gRPC servicer of jobs."""

from typing import Final

import grpc
from corral.control.v1 import job_service_pb2 as pb
from corral.control.v1 import job_service_pb2_grpc as rpc

from control_svc.base.pagination import PageRequest
from control_svc.base.proto import optional_timestamp, timestamp
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.service import Jobs
from svc_kit.errors import InvalidField

Context = grpc.aio.ServicerContext[object, object]
_STATE_TO_PB: Final = {
    JobState.QUEUED: pb.Job.STATE_QUEUED,
    JobState.RUNNING: pb.Job.STATE_RUNNING,
    JobState.DONE: pb.Job.STATE_DONE,
    JobState.DEAD: pb.Job.STATE_DEAD,
}
_STATE_FROM_PB: Final = {number: state for state, number in _STATE_TO_PB.items()}


class JobServicer(rpc.JobServiceServicer):
    """gRPC servicer of jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Describe one job."""
        return pb.GetJobResponse(job=_to_pb(await self._jobs.get(request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """List jobs."""
        page_request = PageRequest(request.page_size, request.page_token)
        page = await self._jobs.page(page_request, request.project_id, _state(request.state))
        jobs = [_to_pb(job) for job in page.items]
        return pb.ListJobsResponse(jobs=jobs, next_page_token=page.next_token)

    async def RetryJob(self, request: pb.RetryJobRequest, context: Context) -> pb.RetryJobResponse:
        """Queue a dead job again."""
        return pb.RetryJobResponse(job=_to_pb(await self._jobs.retry(request.job_id)))


def _state(state: pb.Job.State) -> JobState | None:
    """The state to filter by; None if unspecified. Raises InvalidField for unknown states."""
    if state == pb.Job.STATE_UNSPECIFIED:
        return None
    if state not in _STATE_FROM_PB:
        raise InvalidField(field="state", problem=f"{state} is not a state of a job")
    return _STATE_FROM_PB[state]


def _to_pb(job: Job) -> pb.Job:
    reason, message = job.error or ("", "")
    return pb.Job(
        id=job.id,
        project=job.project,
        kind=job.kind,
        subject=job.subject,
        state=_STATE_TO_PB[job.state],
        attempt=job.attempt,
        engine_deaths=job.engine_deaths,
        error_reason=reason,
        error_message=message,
        create_time=timestamp(job.created_at),
        run_time=timestamp(job.run_after),
        end_time=optional_timestamp(job.ended_at),
    )
