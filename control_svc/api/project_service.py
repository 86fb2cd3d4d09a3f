"""Servicer of `ProjectService`: convert, call, convert."""

import grpc
from corral.control.v1 import project_service_pb2 as pb
from corral.control.v1 import project_service_pb2_grpc as rpc

from control_svc.api import convert_operators as convert
from control_svc.domain.listing import PageRequest
from control_svc.domain.projects import NewProject
from control_svc.usecases.projects import Projects

Context = grpc.aio.ServicerContext[object, object]


class ProjectServicer(rpc.ProjectServiceServicer):
    """Projects over gRPC."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    async def CreateProject(
        self, request: pb.CreateProjectRequest, context: Context
    ) -> pb.CreateProjectResponse:
        """Make a project."""
        project = await self._projects.create(
            NewProject(
                id=request.project_id,
                display_name=request.display_name,
                request_id=request.request_id,
            )
        )
        return pb.CreateProjectResponse(project=convert.project_to_pb(project))

    async def GetProject(
        self, request: pb.GetProjectRequest, context: Context
    ) -> pb.GetProjectResponse:
        """Describe one project."""
        project = await self._projects.get(request.project_id)
        return pb.GetProjectResponse(project=convert.project_to_pb(project))

    async def ListProjects(
        self, request: pb.ListProjectsRequest, context: Context
    ) -> pb.ListProjectsResponse:
        """List projects."""
        asked = PageRequest(request.page_size, request.page_token, newest_first=False)
        page = await self._projects.page(asked, with_archived=request.show_archived)
        projects = [convert.project_to_pb(project) for project in page.items]
        return pb.ListProjectsResponse(projects=projects, next_page_token=page.next_token)

    async def ArchiveProject(
        self, request: pb.ArchiveProjectRequest, context: Context
    ) -> pb.ArchiveProjectResponse:
        """Close a project."""
        project = await self._projects.archive(request.project_id)
        return pb.ArchiveProjectResponse(project=convert.project_to_pb(project))
