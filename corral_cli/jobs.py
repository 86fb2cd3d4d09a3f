"""`corral jobs`: list dead letters and retry them."""

import click
from corral.control.v1 import job_service_pb2 as pb

from corral_cli.access import control_options, format_time
from corral_cli.connection import Connection
from corral_cli.output import echo_line, json_option, print_list


@click.group("jobs")
def jobs() -> None:
    """List and retry failed background jobs."""


@jobs.command("dead")
@click.option("--project", default="", help="Only jobs of this project. Default: all projects.")
@json_option
@control_options
def list_dead(control: Connection, project: str, as_json: bool) -> None:
    """List the jobs that are not retried automatically, with their errors, newest first."""
    request = pb.ListJobsRequest(project_id=project, state=pb.Job.STATE_DEAD)
    listed = control.list_all(request, "jobs")
    print_list(listed, as_json, lambda jobs: map(describe, jobs))


@jobs.command("retry")
@click.argument("job_id")
@control_options
def retry(control: Connection, job_id: str) -> None:
    """Queue the dead job JOB_ID again, and reopen the object that it belongs to."""
    request = pb.RetryJobRequest(job_id=job_id)
    reply = control.call(request, pb.RetryJobResponse)
    echo_line(describe(reply.job))


def describe(job: pb.Job) -> str:
    """Format a job as one line."""
    state = pb.Job.State.Name(job.state).removeprefix("STATE_").lower()
    facts = [f"project {job.project}", state, f"made {format_time(job.create_time)}"]
    if job.HasField("end_time"):
        facts.append(f"ended {format_time(job.end_time)}")
    if job.error_reason:
        facts.append(f"{job.error_reason}: {job.error_message}")
    return f"{job.id}    {job.kind}    {job.subject}    {', '.join(facts)}"
