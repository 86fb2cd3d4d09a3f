"""Conversations as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import conversation_pb2, item_pb2
from corral.control.v1 import conversation_service_pb2 as pb
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub

from gateway.auth import Caller, Credentials
from gateway.control import ControlCalls


class ConversationClient(ControlCalls):
    """Conversations over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ConversationServiceStub(channel)

    async def create(
        self, request: pb.CreateConversationRequest, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Make a conversation."""
        answer = await self._ask(self._stub.CreateConversation, request, caller)
        return answer.conversation

    async def get(self, conversation_id: str, caller: Caller) -> conversation_pb2.Conversation:
        """One conversation."""
        request = pb.GetConversationRequest(conversation_id=conversation_id)
        answer = await self._ask(self._stub.GetConversation, request, caller)
        return answer.conversation

    async def update(
        self, request: pb.UpdateConversationRequest, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Attach something else."""
        answer = await self._ask(self._stub.UpdateConversation, request, caller)
        return answer.conversation

    async def delete(self, conversation_id: str, caller: Caller) -> None:
        """Forget a conversation."""
        request = pb.DeleteConversationRequest(conversation_id=conversation_id)
        await self._ask(self._stub.DeleteConversation, request, caller)

    async def create_items(
        self, request: pb.CreateConversationItemsRequest, caller: Caller
    ) -> pb.CreateConversationItemsResponse:
        """Add items."""
        return await self._ask(self._stub.CreateConversationItems, request, caller)

    async def get_item(
        self, request: pb.GetConversationItemRequest, caller: Caller
    ) -> item_pb2.Item:
        """One item."""
        answer = await self._ask(self._stub.GetConversationItem, request, caller)
        return answer.item

    async def list_items(
        self, request: pb.ListConversationItemsRequest, caller: Caller
    ) -> pb.ListConversationItemsResponse:
        """A page of items."""
        return await self._ask(self._stub.ListConversationItems, request, caller)

    async def delete_item(
        self, conversation_id: str, item_id: str, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Take an item out."""
        request = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
        answer = await self._ask(self._stub.DeleteConversationItem, request, caller)
        return answer.conversation
