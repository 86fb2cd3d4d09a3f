"""`corral jobs`: list dead letters and retry them."""

from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import job_service_pb2 as pb
from corral.control.v1.job_service_pb2_grpc import JobServiceStub

from corral_cli.connection import CALL_TIMEOUT_S, list_all
from corral_cli.control_access import ControlAccess, control_options, format_time

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.job_service_pb2_grpc import JobServiceAsyncStub


@click.group("jobs")
def jobs() -> None:
    """List and retry failed background jobs."""


@jobs.command("dead")
@click.option("--project", default="", help="Only jobs of this project. Default: all projects.")
@control_options
def list_dead(control: ControlAccess, project: str) -> None:
    """List the jobs that are not retried automatically, with their errors, newest first."""
    request = pb.ListJobsRequest(project_id=project, state=pb.Job.STATE_DEAD)

    async def call(channel: grpc.aio.Channel) -> list[pb.Job]:
        return [job async for job in list_all(_stub(channel).ListJobs, request, "jobs")]

    for job in control.call(call):
        click.echo(describe(job))


@jobs.command("retry")
@click.argument("job_id")
@control_options
def retry(control: ControlAccess, job_id: str) -> None:
    """Queue the dead job JOB_ID again, and reopen the object that it belongs to."""

    async def call(channel: grpc.aio.Channel) -> pb.RetryJobResponse:
        request = pb.RetryJobRequest(job_id=job_id)
        return await _stub(channel).RetryJob(request, timeout=CALL_TIMEOUT_S)

    click.echo(describe(control.call(call).job))


def describe(job: pb.Job) -> str:
    """Format a job as one line."""
    state = pb.Job.State.Name(job.state).removeprefix("STATE_").lower()
    facts = [f"project {job.project}", state, f"made {format_time(job.create_time)}"]
    if job.HasField("end_time"):
        facts.append(f"ended {format_time(job.end_time)}")
    if job.error_reason:
        facts.append(f"{job.error_reason}: {job.error_message}")
    return f"{job.id}    {job.kind}    {job.subject}    {', '.join(facts)}"


def _stub(channel: grpc.aio.Channel) -> "JobServiceAsyncStub":
    return JobServiceStub(channel)
