"""Servicer of `AssistantService`: convert, call, convert."""

import grpc
from corral.control.v1 import assistant_service_pb2 as pb
from corral.control.v1 import assistant_service_pb2_grpc as rpc

from control_svc.api.assistant_convert import assistant_edit, assistant_to_pb, new_assistant
from control_svc.api.convert import page_request
from control_svc.usecases.assistants import Assistants
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class AssistantServicer(rpc.AssistantServiceServicer):
    """Assistants over gRPC."""

    def __init__(self, assistants: Assistants) -> None:
        self._assistants = assistants

    async def CreateAssistant(
        self, request: pb.CreateAssistantRequest, context: Context
    ) -> pb.CreateAssistantResponse:
        """Add an assistant."""
        assistant = await self._assistants.create(
            current_principal().project, new_assistant(request)
        )
        return pb.CreateAssistantResponse(assistant=assistant_to_pb(assistant))

    async def GetAssistant(
        self, request: pb.GetAssistantRequest, context: Context
    ) -> pb.GetAssistantResponse:
        """Describe an assistant."""
        assistant = await self._assistants.get(current_principal().project, request.assistant_id)
        return pb.GetAssistantResponse(assistant=assistant_to_pb(assistant))

    async def ListAssistants(
        self, request: pb.ListAssistantsRequest, context: Context
    ) -> pb.ListAssistantsResponse:
        """List the project's assistants."""
        page = await self._assistants.page(current_principal().project, page_request(request))
        assistants = [assistant_to_pb(assistant) for assistant in page.items]
        return pb.ListAssistantsResponse(assistants=assistants, next_page_token=page.next_token)

    async def UpdateAssistant(
        self, request: pb.UpdateAssistantRequest, context: Context
    ) -> pb.UpdateAssistantResponse:
        """Change an assistant."""
        changes = request.assistant
        edit = assistant_edit(changes, request.update_mask)
        assistant = await self._assistants.update(
            current_principal().project, changes.id, edit, changes.etag
        )
        return pb.UpdateAssistantResponse(assistant=assistant_to_pb(assistant))

    async def DeleteAssistant(
        self, request: pb.DeleteAssistantRequest, context: Context
    ) -> pb.DeleteAssistantResponse:
        """Delete an assistant."""
        await self._assistants.delete(current_principal().project, request.assistant_id)
        return pb.DeleteAssistantResponse()
