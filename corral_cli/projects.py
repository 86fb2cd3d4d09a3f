"""`corral projects`: create, list and archive projects."""

import click
from corral.control.v1 import project_service_pb2 as pb

from corral_cli.access import control_options, format_time
from corral_cli.connection import Connection
from corral_cli.output import echo_line, json_option, print_list


@click.group("projects")
def projects() -> None:
    """Create, list and archive projects."""


@projects.command("create")
@click.argument("project_id")
@click.option("--name", default="", help="Display name. Default: the project id.")
@control_options
def create(control: Connection, project_id: str, name: str) -> None:
    """Create the project PROJECT_ID. API keys belong to a project."""
    request = pb.CreateProjectRequest(project_id=project_id, display_name=name)
    reply = control.call(request, pb.CreateProjectResponse)
    echo_line(describe(reply.project))


@projects.command("list")
@click.option("--all", "show_archived", is_flag=True, help="Include archived projects.")
@json_option
@control_options
def list_projects(control: Connection, show_archived: bool, as_json: bool) -> None:
    """List the projects."""
    request = pb.ListProjectsRequest(show_archived=show_archived)
    listed = control.list_all(request, "projects")
    print_list(listed, as_json, lambda projects: map(describe, projects))


@projects.command("archive")
@click.argument("project_id")
@control_options
def archive(control: Connection, project_id: str) -> None:
    """Archive PROJECT_ID permanently: its keys are refused, its data stays."""
    request = pb.ArchiveProjectRequest(project_id=project_id)
    reply = control.call(request, pb.ArchiveProjectResponse)
    echo_line(describe(reply.project))


def describe(project: pb.Project) -> str:
    """Format a project as one line."""
    created = format_time(project.create_time)
    is_archived = project.HasField("archive_time")
    state = f", archived {format_time(project.archive_time)}" if is_archived else ""
    return f"{project.id}    {project.display_name}    made {created}{state}"
