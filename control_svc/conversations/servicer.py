"""The gRPC servicer of conversations and its proto conversion."""

from typing import Final

from corral.control.v1 import conversation_pb2
from corral.control.v1 import conversation_service_pb2 as pb
from corral.control.v1 import conversation_service_pb2_grpc as rpc

from control_svc.base.proto import Context, caller_project, changed_fields, page_request
from control_svc.conversations.model import Conversation, NewConversation, NewItems
from control_svc.conversations.service import Conversations
from control_svc.items.proto import includes_from_pb, input_items, items_to_pb
from svc_kit.rpc.message_mapper import MessageMapper

CONVERSATION: Final = MessageMapper(
    Conversation, conversation_pb2.Conversation, renamed={"writer": "writing_response_id"}
)


class ConversationServicer(rpc.ConversationServiceServicer):
    """Conversations over gRPC."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    async def CreateConversation(
        self, request: pb.CreateConversationRequest, context: Context
    ) -> pb.CreateConversationResponse:
        """Create a conversation."""
        new = NewConversation(
            items=input_items(request.items, "items"),
            metadata=dict(request.metadata),
            request_id=request.request_id,
        )
        created = await self._conversations.create(caller_project(), new)
        return pb.CreateConversationResponse(conversation=CONVERSATION.to_message(created))

    async def GetConversation(
        self, request: pb.GetConversationRequest, context: Context
    ) -> pb.GetConversationResponse:
        """Return a conversation."""
        conversation = await self._conversations.get(caller_project(), request.conversation_id)
        return pb.GetConversationResponse(conversation=CONVERSATION.to_message(conversation))

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        """List the project's conversations."""
        page = await self._conversations.page(caller_project(), page_request(request))
        conversations = [CONVERSATION.to_message(each) for each in page.items]
        return pb.ListConversationsResponse(
            conversations=conversations, next_page_token=page.next_token
        )

    async def UpdateConversation(
        self, request: pb.UpdateConversationRequest, context: Context
    ) -> pb.UpdateConversationResponse:
        """Change the metadata of a conversation."""
        metadata = dict(request.metadata) if changed_fields(request, ("metadata",)) else None
        changed = await self._conversations.update(
            caller_project(), request.conversation_id, metadata
        )
        return pb.UpdateConversationResponse(conversation=CONVERSATION.to_message(changed))

    async def DeleteConversation(
        self, request: pb.DeleteConversationRequest, context: Context
    ) -> pb.DeleteConversationResponse:
        """Delete a conversation."""
        await self._conversations.delete(caller_project(), request.conversation_id)
        return pb.DeleteConversationResponse()

    async def CreateConversationItems(
        self, request: pb.CreateConversationItemsRequest, context: Context
    ) -> pb.CreateConversationItemsResponse:
        """Append items to a conversation."""
        include = includes_from_pb(request.include)
        new = NewItems(
            conversation_id=request.conversation_id,
            items=input_items(request.items, "items"),
            request_id=request.request_id,
        )
        items = await self._conversations.add_items(caller_project(), new)
        return pb.CreateConversationItemsResponse(items=items_to_pb(items, include))

    async def GetConversationItem(
        self, request: pb.GetConversationItemRequest, context: Context
    ) -> pb.GetConversationItemResponse:
        """Return an item."""
        include = includes_from_pb(request.include)
        item = await self._conversations.get_item(
            caller_project(), request.conversation_id, request.item_id
        )
        (item_pb,) = items_to_pb([item], include)
        return pb.GetConversationItemResponse(item=item_pb)

    async def ListConversationItems(
        self, request: pb.ListConversationItemsRequest, context: Context
    ) -> pb.ListConversationItemsResponse:
        """List the items of a conversation."""
        include = includes_from_pb(request.include)
        page = await self._conversations.items(
            caller_project(), request.conversation_id, page_request(request)
        )
        items = items_to_pb(page.items, include)
        return pb.ListConversationItemsResponse(items=items, next_page_token=page.next_token)

    async def DeleteConversationItem(
        self, request: pb.DeleteConversationItemRequest, context: Context
    ) -> pb.DeleteConversationItemResponse:
        """Remove an item from a conversation."""
        conversation = await self._conversations.remove_item(
            caller_project(), request.conversation_id, request.item_id
        )
        return pb.DeleteConversationItemResponse(conversation=CONVERSATION.to_message(conversation))
