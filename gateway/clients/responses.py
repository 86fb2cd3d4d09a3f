"""Conversations as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import conversation_pb2, item_pb2, response_pb2
from corral.control.v1 import conversation_service_pb2 as conversation_pb
from corral.control.v1 import response_service_pb2 as response_pb
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub

from gateway.auth import Caller, Credentials
from gateway.calls import StreamCall, UnaryCall
from gateway.clients.control import SERVICE, ControlCalls


class ConversationClient(ControlCalls):
    """Conversations over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ConversationServiceStub(channel)

    async def create(
        self, request: conversation_pb.CreateConversationRequest, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Make a conversation."""
        answer = await self._ask(self._stub.CreateConversation, request, caller)
        return answer.conversation

    async def get(self, conversation_id: str, caller: Caller) -> conversation_pb2.Conversation:
        """One conversation."""
        request = conversation_pb.GetConversationRequest(conversation_id=conversation_id)
        answer = await self._ask(self._stub.GetConversation, request, caller)
        return answer.conversation

    async def update(
        self, request: conversation_pb.UpdateConversationRequest, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Attach something else."""
        answer = await self._ask(self._stub.UpdateConversation, request, caller)
        return answer.conversation

    async def delete(self, conversation_id: str, caller: Caller) -> None:
        """Forget a conversation."""
        request = conversation_pb.DeleteConversationRequest(conversation_id=conversation_id)
        await self._ask(self._stub.DeleteConversation, request, caller)

    async def create_items(
        self, request: conversation_pb.CreateConversationItemsRequest, caller: Caller
    ) -> conversation_pb.CreateConversationItemsResponse:
        """Add items."""
        return await self._ask(self._stub.CreateConversationItems, request, caller)

    async def get_item(
        self, request: conversation_pb.GetConversationItemRequest, caller: Caller
    ) -> item_pb2.Item:
        """One item."""
        answer = await self._ask(self._stub.GetConversationItem, request, caller)
        return answer.item

    async def list_items(
        self, request: conversation_pb.ListConversationItemsRequest, caller: Caller
    ) -> conversation_pb.ListConversationItemsResponse:
        """A page of items."""
        return await self._ask(self._stub.ListConversationItems, request, caller)

    async def delete_item(
        self, conversation_id: str, item_id: str, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Take an item out."""
        request = conversation_pb.DeleteConversationItemRequest(
            conversation_id=conversation_id, item_id=item_id
        )
        answer = await self._ask(self._stub.DeleteConversationItem, request, caller)
        return answer.conversation


ResponseStreamCall = StreamCall[response_pb.StreamResponseResponse]
WatchCall = StreamCall[response_pb.WatchResponseResponse]


class ResponseClient(ControlCalls):
    """Responses over one channel. The deadline of those that generate is `transfer_timeout_s`."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ResponseServiceStub(channel)

    def create(
        self, request: response_pb.CreateResponseRequest, caller: Caller
    ) -> UnaryCall[response_pb.CreateResponseResponse]:
        """Have the model answer, whole."""
        call = self._stub.CreateResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return UnaryCall(call, SERVICE)

    def stream(
        self, request: response_pb.StreamResponseRequest, caller: Caller
    ) -> ResponseStreamCall:
        """Have the model answer, event by event."""
        call = self._stub.StreamResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return StreamCall(call, SERVICE)

    def watch(self, request: response_pb.WatchResponseRequest, caller: Caller) -> WatchCall:
        """Follow a response that is kept."""
        call = self._stub.WatchResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return StreamCall(call, SERVICE)

    async def get(
        self, request: response_pb.GetResponseRequest, caller: Caller
    ) -> response_pb2.Response:
        """One response."""
        return (await self._ask(self._stub.GetResponse, request, caller)).response

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Forget a response."""
        request = response_pb.DeleteResponseRequest(response_id=response_id)
        await self._ask(self._stub.DeleteResponse, request, caller)

    async def cancel(self, response_id: str, caller: Caller) -> response_pb2.Response:
        """Give a response up."""
        request = response_pb.CancelResponseRequest(response_id=response_id)
        return (await self._ask(self._stub.CancelResponse, request, caller)).response

    async def input_items(
        self, request: response_pb.ListInputItemsRequest, caller: Caller
    ) -> response_pb.ListInputItemsResponse:
        """A page of what a response was asked."""
        return await self._ask(self._stub.ListInputItems, request, caller)

    async def count_input(self, new_response: response_pb2.NewResponse, caller: Caller) -> int:
        """The length of the prompt that a response would have."""
        request = response_pb.CountInputTokensRequest(new_response=new_response)
        return (await self._ask(self._stub.CountInputTokens, request, caller)).input_tokens

    async def prepare(
        self, new_response: response_pb2.NewResponse, caller: Caller
    ) -> response_pb.PrepareResponseResponse:
        """Have the prompt that a response would have read."""
        request = response_pb.PrepareResponseRequest(new_response=new_response)
        return await self._ask(
            self._stub.PrepareResponse, request, caller, timeout_s=self._transfer_timeout_s
        )

    def compact(
        self, request: response_pb.CompactResponseRequest, caller: Caller
    ) -> UnaryCall[response_pb.CompactResponseResponse]:
        """Have what was said summed up."""
        call = self._stub.CompactResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return UnaryCall(call, SERVICE)
