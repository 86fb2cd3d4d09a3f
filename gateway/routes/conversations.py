"""Routes under /v1/conversations."""

from corral.control.v1 import conversation_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import RESPONSE_PARAMS, openai_names
from dialects.openai.responses.conversations import (
    ConversationBody,
    ConversationUpdateBody,
    NewItemsBody,
    conversation_object,
    create_conversation_request,
    create_items_request,
    parse_item_query,
    update_conversation_request,
)
from dialects.openai.responses.output_items import item_object
from dialects.openai.responses.requests import parse_includes
from dialects.openai.shared.objects import deleted_object, list_object
from dialects.openai.shared.pagination import ListQuery, PageQuery, parse_page_fields
from gateway.context import Control, IdempotencyKey, Include, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert

router = APIRouter(prefix="/v1/conversations")
items_router = APIRouter(prefix="/v1/conversations/{conversation_id}/items")


@router.post("", **operation("Create a conversation", "Conversation", json_body(ConversationBody)))
async def create_conversation(
    control: Control, body: JsonObject, request_id: IdempotencyKey
) -> Response:
    """Create a conversation, optionally with items."""
    with openai_names(RESPONSE_PARAMS):
        proto = await convert(create_conversation_request, body, request_id)
        reply = await control.call(control.conversations.CreateConversation, proto)
    return json_response(conversation_object(reply.conversation))


@router.get("", **operation("List the conversations", "ConversationList", query=PageQuery))
async def list_conversations(control: Control, request: Request) -> Response:
    """List conversations, paged by `after`, `before`, `limit` and `order`. Extension of Corral."""
    with openai_names(RESPONSE_PARAMS):
        proto = pb.ListConversationsRequest(**parse_page_fields(request.query_params))
        page = await control.call(control.conversations.ListConversations, proto)
    return json_response(list_object(page.conversations, conversation_object, page.next_page_token))


@router.get("/{conversation_id}", **operation("Retrieve a conversation", "Conversation"))
async def retrieve_conversation(control: Control, conversation_id: str) -> Response:
    """Retrieve a conversation without its items."""
    proto = pb.GetConversationRequest(conversation_id=conversation_id)
    reply = await control.call(control.conversations.GetConversation, proto)
    return json_response(conversation_object(reply.conversation))


@router.post(
    "/{conversation_id}",
    **operation("Update a conversation", "Conversation", json_body(ConversationUpdateBody)),
)
async def update_conversation(control: Control, conversation_id: str, body: JsonObject) -> Response:
    """Replace the metadata of a conversation."""
    proto = update_conversation_request(conversation_id, body)
    reply = await control.call(control.conversations.UpdateConversation, proto)
    return json_response(conversation_object(reply.conversation))


@router.delete("/{conversation_id}", **operation("Delete a conversation", "Deleted"))
async def delete_conversation(control: Control, conversation_id: str) -> Response:
    """Delete a conversation. Items that belong to a response are kept."""
    proto = pb.DeleteConversationRequest(conversation_id=conversation_id)
    await control.call(control.conversations.DeleteConversation, proto)
    return json_response(deleted_object(conversation_id, "conversation.deleted"))


@items_router.post("", **operation("Add items", "ItemList", json_body(NewItemsBody)))
async def create_items(
    control: Control,
    conversation_id: str,
    body: JsonObject,
    request_id: IdempotencyKey,
    include: Include,
) -> Response:
    """Append items to a conversation."""
    with openai_names(RESPONSE_PARAMS):
        proto = await convert(create_items_request, conversation_id, body, include, request_id)
        reply = await control.call(control.conversations.CreateConversationItems, proto)
    return json_response(list_object(reply.items, item_object))


@items_router.get("", **operation("List the items", "ItemList", query=ListQuery))
async def list_items(
    control: Control, conversation_id: str, request: Request, include: Include
) -> Response:
    """List items, paged by `after`, `limit` and `order`."""
    with openai_names(RESPONSE_PARAMS):
        proto = pb.ListConversationItemsRequest(
            conversation_id=conversation_id,
            **parse_item_query(request.query_params, include),
        )
        page = await control.call(control.conversations.ListConversationItems, proto)
    return json_response(list_object(page.items, item_object, page.next_page_token))


@items_router.get("/{item_id}", **operation("Retrieve an item", "Item"))
async def retrieve_item(
    control: Control, conversation_id: str, item_id: str, include: Include
) -> Response:
    """Retrieve an item."""
    proto = pb.GetConversationItemRequest(
        conversation_id=conversation_id,
        item_id=item_id,
        include=parse_includes(include),
    )
    reply = await control.call(control.conversations.GetConversationItem, proto)
    return json_response(item_object(reply.item))


@items_router.delete("/{item_id}", **operation("Remove an item", "Conversation"))
async def delete_item(control: Control, conversation_id: str, item_id: str) -> Response:
    """Remove an item from a conversation. It is kept if it belongs to a response."""
    proto = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
    reply = await control.call(control.conversations.DeleteConversationItem, proto)
    return json_response(conversation_object(reply.conversation))
