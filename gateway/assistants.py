"""Assistants as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import assistant_pb2
from corral.control.v1 import assistant_service_pb2 as pb
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub

from gateway.auth import Caller, Credentials
from gateway.control import ControlCalls


class AssistantClient(ControlCalls):
    """Assistants over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = AssistantServiceStub(channel)

    async def create(
        self, request: pb.CreateAssistantRequest, caller: Caller
    ) -> assistant_pb2.Assistant:
        """Add an assistant."""
        return (await self._ask(self._stub.CreateAssistant, request, caller)).assistant

    async def get(self, assistant_id: str, caller: Caller) -> assistant_pb2.Assistant:
        """One assistant."""
        request = pb.GetAssistantRequest(assistant_id=assistant_id)
        return (await self._ask(self._stub.GetAssistant, request, caller)).assistant

    async def page(
        self, request: pb.ListAssistantsRequest, caller: Caller
    ) -> pb.ListAssistantsResponse:
        """A page of assistants."""
        return await self._ask(self._stub.ListAssistants, request, caller)

    async def update(
        self, request: pb.UpdateAssistantRequest, caller: Caller
    ) -> assistant_pb2.Assistant:
        """Change an assistant."""
        return (await self._ask(self._stub.UpdateAssistant, request, caller)).assistant

    async def delete(self, assistant_id: str, caller: Caller) -> None:
        """Delete an assistant."""
        request = pb.DeleteAssistantRequest(assistant_id=assistant_id)
        await self._ask(self._stub.DeleteAssistant, request, caller)
