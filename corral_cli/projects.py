"""`corral projects`: create, list and archive projects."""

from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import project_service_pb2 as pb
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub

from corral_cli.connection import CALL_TIMEOUT_S, list_all
from corral_cli.control_access import ControlAccess, control_options, format_time

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.project_service_pb2_grpc import ProjectServiceAsyncStub


@click.group("projects")
def projects() -> None:
    """Create, list and archive projects."""


@projects.command("create")
@click.argument("project_id")
@click.option("--name", default="", help="Display name. Default: the project id.")
@control_options
def create(control: ControlAccess, project_id: str, name: str) -> None:
    """Create the project PROJECT_ID. API keys belong to a project."""

    async def call(channel: grpc.aio.Channel) -> pb.CreateProjectResponse:
        request = pb.CreateProjectRequest(project_id=project_id, display_name=name)
        return await _stub(channel).CreateProject(request, timeout=CALL_TIMEOUT_S)

    click.echo(describe(control.call(call).project))


@projects.command("list")
@click.option("--all", "show_archived", is_flag=True, help="Include archived projects.")
@control_options
def list_projects(control: ControlAccess, show_archived: bool) -> None:
    """List the projects."""
    request = pb.ListProjectsRequest(show_archived=show_archived)

    async def call(channel: grpc.aio.Channel) -> list[pb.Project]:
        method = _stub(channel).ListProjects
        return [project async for project in list_all(method, request, "projects")]

    for project in control.call(call):
        click.echo(describe(project))


@projects.command("archive")
@click.argument("project_id")
@control_options
def archive(control: ControlAccess, project_id: str) -> None:
    """Archive PROJECT_ID permanently: its keys are refused, its data stays."""

    async def call(channel: grpc.aio.Channel) -> pb.ArchiveProjectResponse:
        request = pb.ArchiveProjectRequest(project_id=project_id)
        return await _stub(channel).ArchiveProject(request, timeout=CALL_TIMEOUT_S)

    click.echo(describe(control.call(call).project))


def describe(project: pb.Project) -> str:
    """Format a project as one line."""
    created = format_time(project.create_time)
    is_archived = project.HasField("archive_time")
    state = f", archived {format_time(project.archive_time)}" if is_archived else ""
    return f"{project.id}    {project.display_name}    made {created}{state}"


def _stub(channel: grpc.aio.Channel) -> "ProjectServiceAsyncStub":
    return ProjectServiceStub(channel)
