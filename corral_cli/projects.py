"""`corral projects`: create, list and archive projects."""

from typing import TYPE_CHECKING

import click
import grpc.aio
from corral.control.v1 import project_service_pb2 as pb
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub

from corral_cli.connection import CONNECT_PATIENCE_S
from corral_cli.control_access import ControlAccess, control_options, moment

if TYPE_CHECKING:  # the stub over an aio channel has a name for type checkers only
    from corral.control.v1.project_service_pb2_grpc import ProjectServiceAsyncStub


@click.group("projects")
def projects() -> None:
    """Make, list and archive projects."""


@projects.command("create")
@click.argument("project_id")
@click.option("--name", default="", help="What people call it. Default: its id.")
@control_options
def create(control: ControlAccess, project_id: str, name: str) -> None:
    """Make the project PROJECT_ID, which keys can belong to."""

    async def call(channel: grpc.aio.Channel) -> pb.CreateProjectResponse:
        request = pb.CreateProjectRequest(project_id=project_id, display_name=name)
        return await _stub(channel).CreateProject(request, timeout=CONNECT_PATIENCE_S)

    click.echo(describe(control.ask(call).project))


@projects.command("list")
@click.option("--all", "show_archived", is_flag=True, help="Also archived ones.")
@control_options
def list_projects(control: ControlAccess, show_archived: bool) -> None:
    """Show the projects."""
    request = pb.ListProjectsRequest(show_archived=show_archived)

    async def call(channel: grpc.aio.Channel) -> list[pb.Project]:
        found: list[pb.Project] = []
        while True:
            page = await _stub(channel).ListProjects(request, timeout=CONNECT_PATIENCE_S)
            found += page.projects
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    for project in control.ask(call):
        click.echo(describe(project))


@projects.command("archive")
@click.argument("project_id")
@control_options
def archive(control: ControlAccess, project_id: str) -> None:
    """Close PROJECT_ID for good: its keys are refused, what it keeps stays."""

    async def call(channel: grpc.aio.Channel) -> pb.ArchiveProjectResponse:
        request = pb.ArchiveProjectRequest(project_id=project_id)
        return await _stub(channel).ArchiveProject(request, timeout=CONNECT_PATIENCE_S)

    click.echo(describe(control.ask(call).project))


def describe(project: pb.Project) -> str:
    """One project in one line."""
    end = project.archive_time
    state = f", archived {moment(end)}" if project.HasField("archive_time") else ""
    return f"{project.id}    {project.display_name}    made {moment(project.create_time)}{state}"


def _stub(channel: grpc.aio.Channel) -> "ProjectServiceAsyncStub":
    return ProjectServiceStub(channel)
