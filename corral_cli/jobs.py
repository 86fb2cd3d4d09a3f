"""`corral jobs`: list dead letters and retry them."""

from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import job_service_pb2 as pb
from corral.control.v1.job_service_pb2_grpc import JobServiceStub

from corral_cli.connection import CONNECT_PATIENCE_S
from corral_cli.control_access import ControlAccess, control_options, moment

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.job_service_pb2_grpc import JobServiceAsyncStub

_STATE = "STATE_"


@click.group("jobs")
def jobs() -> None:
    """Look after work in the background."""


@jobs.command("dead")
@click.option("--project", default="", help="Only this project's. Default: all.")
@control_options
def dead(control: ControlAccess, project: str) -> None:
    """Show what is not tried again by itself, and why, newest first."""
    request = pb.ListJobsRequest(project_id=project, state=pb.Job.STATE_DEAD)

    async def call(channel: grpc.aio.Channel) -> list[pb.Job]:
        found: list[pb.Job] = []
        while True:
            page = await _stub(channel).ListJobs(request, timeout=CONNECT_PATIENCE_S)
            found += page.jobs
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    for job in control.ask(call):
        click.echo(describe(job))


@jobs.command("retry")
@click.argument("job_id")
@control_options
def retry(control: ControlAccess, job_id: str) -> None:
    """Let the dead JOB_ID begin again, with what it works for."""

    async def call(channel: grpc.aio.Channel) -> pb.RetryJobResponse:
        request = pb.RetryJobRequest(job_id=job_id)
        return await _stub(channel).RetryJob(request, timeout=CONNECT_PATIENCE_S)

    click.echo(describe(control.ask(call).job))


def describe(job: pb.Job) -> str:
    """One job in one line."""
    state = pb.Job.State.Name(job.state).removeprefix(_STATE).lower()
    facts = [f"project {job.project}", state, f"made {moment(job.create_time)}"]
    if job.HasField("end_time"):
        facts.append(f"ended {moment(job.end_time)}")
    if job.error_reason:
        facts.append(f"{job.error_reason}: {job.error_message}")
    return f"{job.id}    {job.kind}    {job.subject}    {', '.join(facts)}"


def _stub(channel: grpc.aio.Channel) -> "JobServiceAsyncStub":
    return JobServiceStub(channel)
