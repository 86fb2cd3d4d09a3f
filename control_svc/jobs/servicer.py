"""gRPC servicer of jobs."""

from typing import Final

from corral.control.v1 import job_service_pb2 as pb
from corral.control.v1 import job_service_pb2_grpc as rpc

from control_svc.base.proto import Context, page_request
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.service import Jobs
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper

_STATES: Final = EnumMapper[JobState](JobState, pb.Job.State)
_JOB: Final = MessageMapper(
    Job,
    pb.Job,
    renamed={"run_after": "run_time"},
    uses=[_STATES],
    only_domain=[
        "caller_key",
        "priority",
        "traceparent",
        "num_postponed",
        "num_lost",
        "fence",
        "lease_owner",
        "lease_expires_at",
        "heartbeat_at",
        "cancel_requested_at",
        "error",
    ],
    only_message=["error_reason", "error_message"],
)


class JobServicer(rpc.JobServiceServicer):
    """gRPC servicer of jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Describe one job."""
        return pb.GetJobResponse(job=_to_pb(await self._jobs.get(request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """List jobs."""
        state = _STATES.decode_optional(request.state, "state")
        page = await self._jobs.page(page_request(request, 0), request.project_id, state)
        jobs = [_to_pb(job) for job in page.items]
        return pb.ListJobsResponse(jobs=jobs, next_page_token=page.next_token)

    async def RetryJob(self, request: pb.RetryJobRequest, context: Context) -> pb.RetryJobResponse:
        """Queue a dead job again."""
        return pb.RetryJobResponse(job=_to_pb(await self._jobs.retry(request.job_id)))


def _to_pb(job: Job) -> pb.Job:
    reason, message = job.error or ("", "")
    return _JOB.to_message(job, error_reason=reason, error_message=message)
