"""Lists jobs for operators and retries dead letters."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from corral.control.v1 import job_service_pb2 as pb

from control_svc.audit.log import record_call
from control_svc.base.pagination import Page
from control_svc.base.resource import OperatorMethods
from control_svc.base.validation import check_project_id
from control_svc.db.transaction import (
    CrossProjectTransaction,
    Transaction,
    cross_project_read,
    cross_project_write,
)
from control_svc.jobs.model import Job, JobState
from control_svc.jobs.queries import JobQueries, JobRecordQueries
from svc_kit.errors import JobNotRetriable
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper

Retry = Callable[[Transaction, Job], Awaitable[str]]
"""Reopens the subject of a dead job, in the transaction that queues the job again, and returns the
kind of job that the subject needs now. Raises JobNotRetriable if the subject has ended."""


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
        "cancel_requested_at",
        "error",
    ],
    only_message=["error_reason", "error_message"],
)


@dataclass(frozen=True)
class Jobs(OperatorMethods[Job]):
    """Jobs of all projects."""

    service = pb.DESCRIPTOR.services_by_name["JobService"]
    message, noun, plural = _JOB, "a job", "jobs"

    retries: Mapping[str, Retry]
    """By kind; dead jobs of other kinds cannot be retried."""

    def to_message(self, value: Job) -> pb.Job:
        reason, message = value.error or ("", "")
        return _JOB.to_message(value, error_reason=reason, error_message=message)

    @cross_project_read
    async def GetJob(self, tx: CrossProjectTransaction, request: pb.GetJobRequest) -> Job:
        """Return a job. Raises JobNotFound."""
        return await JobRecordQueries(tx).get(request.job_id)

    @cross_project_read
    async def ListJobs(self, tx: CrossProjectTransaction, request: pb.ListJobsRequest) -> Page[Job]:
        """List jobs, of all projects without `project_id`, in any state without `state`.

        Raises ProjectNotFound, OutOfRange or InvalidField.
        """
        project, state = request.project_id, _STATES.decode_optional(request.state, "state")
        if project:
            check_project_id(project)
        window = self.window(request, "jobs", project, state or "", newest_first=True)
        return window.page(await JobRecordQueries(tx).page(window, project, state))

    @cross_project_write
    async def RetryJob(self, tx: CrossProjectTransaction, request: pb.RetryJobRequest) -> Job:
        """Queue a dead job again. Raises JobNotFound or JobNotRetriable."""
        job_id = request.job_id
        dead = await JobRecordQueries(tx).lock(job_id)
        dead.check_dead()
        reopen_subject = self.retries.get(dead.kind)
        if reopen_subject is None:
            problem = f"jobs of kind '{dead.kind}' cannot be retried."
            raise JobNotRetriable(job=job_id, problem=problem)
        own = tx.of(dead.project)
        job = dead.retry(await reopen_subject(own, dead), await tx.now())
        await JobQueries(own).save(job)
        await record_call(tx, job_id)
        return job
