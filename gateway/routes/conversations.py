"""Routes under /v1/conversations."""

from corral.control.v1 import conversation_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request

from dialects.openai.errors import RESPONSE_PARAMS
from dialects.openai.responses import conversations
from dialects.openai.responses.output_items import Item
from dialects.openai.responses.requests import parse_includes
from dialects.openai.shared.pagination import ListQuery, PageQuery, parse_page_fields
from gateway.context import IdempotencyKey, Include, JsonObject
from gateway.rpc_routes import Deletion, Page, RpcRoutes

router = APIRouter(prefix="/v1/conversations")
rpc = RpcRoutes(router, RESPONSE_PARAMS)
by_id = RpcRoutes(router, {})
"""Routes whose errors name the id in the path as it is there, not as the field of a response."""


@rpc.route(
    "POST", "", "Create a conversation", conversations.Conversation, conversations.ConversationBody
)
def create_conversation(
    body: JsonObject, request_id: IdempotencyKey
) -> pb.CreateConversationRequest:
    """Create a conversation, optionally with items."""
    return conversations.create_conversation_request(body, request_id)


@rpc.route("GET", "", "List the conversations", Page(conversations.Conversation), query=PageQuery)
def list_conversations(request: Request) -> pb.ListConversationsRequest:
    """List conversations, paged by `after`, `before`, `limit` and `order`. Extension of Corral."""
    return pb.ListConversationsRequest(**parse_page_fields(request.query_params))


@by_id.route("GET", "/{conversation_id}", "Retrieve a conversation", conversations.Conversation)
def retrieve_conversation(conversation_id: str) -> pb.GetConversationRequest:
    """Retrieve a conversation without its items."""
    return pb.GetConversationRequest(conversation_id=conversation_id)


@by_id.route(
    "POST",
    "/{conversation_id}",
    "Update a conversation",
    conversations.Conversation,
    conversations.ConversationUpdateBody,
)
def update_conversation(conversation_id: str, body: JsonObject) -> pb.UpdateConversationRequest:
    """Replace the metadata of a conversation."""
    return conversations.update_conversation_request(conversation_id, body)


@by_id.route(
    "DELETE", "/{conversation_id}", "Delete a conversation", Deletion("conversation.deleted")
)
def delete_conversation(conversation_id: str) -> pb.DeleteConversationRequest:
    """Delete a conversation. Items that belong to a response are kept."""
    return pb.DeleteConversationRequest(conversation_id=conversation_id)


@rpc.route("POST", "/{conversation_id}/items", "Add items", Page(Item), conversations.NewItemsBody)
def create_items(
    conversation_id: str, body: JsonObject, request_id: IdempotencyKey, include: Include
) -> pb.CreateConversationItemsRequest:
    """Append items to a conversation."""
    return conversations.create_items_request(conversation_id, body, include, request_id)


@rpc.route("GET", "/{conversation_id}/items", "List the items", Page(Item), query=ListQuery)
def list_items(
    conversation_id: str, request: Request, include: Include
) -> pb.ListConversationItemsRequest:
    """List items, paged by `after`, `limit` and `order`."""
    return pb.ListConversationItemsRequest(
        conversation_id=conversation_id,
        **conversations.parse_item_query(request.query_params, include),
    )


@by_id.route("GET", "/{conversation_id}/items/{item_id}", "Retrieve an item", Item)
def retrieve_item(
    conversation_id: str, item_id: str, include: Include
) -> pb.GetConversationItemRequest:
    """Retrieve an item."""
    return pb.GetConversationItemRequest(
        conversation_id=conversation_id, item_id=item_id, include=parse_includes(include)
    )


@by_id.route(
    "DELETE", "/{conversation_id}/items/{item_id}", "Remove an item", conversations.Conversation
)
def delete_item(conversation_id: str, item_id: str) -> pb.DeleteConversationItemRequest:
    """Remove an item from a conversation. It is kept if it belongs to a response."""
    return pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
