"""Routes under /v1/conversations."""

from typing import Annotated

from corral.control.v1 import conversation_service_pb2 as pb
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import idempotency_key
from openai_wire.errors import RESPONSE_PARAMS, openai_names
from openai_wire.responses.conversations import (
    ConversationBody,
    ConversationUpdateBody,
    NewItemsBody,
    conversation_object,
    create_conversation_request,
    create_items_request,
    parse_item_query,
    update_conversation_request,
)
from openai_wire.responses.output_items import item_object
from openai_wire.responses.requests import parse_includes
from openai_wire.shared.objects import deleted_object, list_object


def include_params(request: Request) -> list[str]:
    """The query parameters `include`, which SDKs send as `include[]`."""
    query = request.query_params
    return [*query.getlist("include[]"), *query.getlist("include")]


def conversations_router(context: AppContext) -> APIRouter:
    """The routes of conversations."""
    control = context.control
    router = APIRouter(prefix="/v1/conversations")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Create a conversation",
        openapi_extra=json_body(ConversationBody),
        responses=answers("A conversation."),
    )
    async def create_conversation(request: Request, caller: known_caller) -> Response:
        """Create a conversation, optionally with items."""
        body = await context.read_body(request)
        with openai_names(RESPONSE_PARAMS):
            proto = create_conversation_request(body, idempotency_key(request))
            reply = await control.call(control.conversations.CreateConversation, proto, caller)
        return json_response(conversation_object(reply.conversation))

    @router.get(
        "/{conversation_id}",
        summary="Retrieve a conversation",
        responses=answers("A conversation."),
    )
    async def retrieve_conversation(conversation_id: str, caller: known_caller) -> Response:
        """Retrieve a conversation without its items."""
        proto = pb.GetConversationRequest(conversation_id=conversation_id)
        reply = await control.call(control.conversations.GetConversation, proto, caller)
        return json_response(conversation_object(reply.conversation))

    @router.post(
        "/{conversation_id}",
        summary="Update a conversation",
        openapi_extra=json_body(ConversationUpdateBody),
        responses=answers("The conversation."),
    )
    async def update_conversation(
        conversation_id: str, request: Request, caller: known_caller
    ) -> Response:
        """Replace the metadata of a conversation."""
        proto = update_conversation_request(conversation_id, await context.read_body(request))
        reply = await control.call(control.conversations.UpdateConversation, proto, caller)
        return json_response(conversation_object(reply.conversation))

    @router.delete(
        "/{conversation_id}",
        summary="Delete a conversation",
        responses=answers("Deletion status."),
    )
    async def delete_conversation(conversation_id: str, caller: known_caller) -> Response:
        """Delete a conversation. Items that belong to a response are kept."""
        proto = pb.DeleteConversationRequest(conversation_id=conversation_id)
        await control.call(control.conversations.DeleteConversation, proto, caller)
        return json_response(deleted_object(conversation_id, "conversation.deleted"))

    return router


def conversation_items_router(context: AppContext) -> APIRouter:
    """The routes of the items of conversations."""
    control = context.control
    router = APIRouter(prefix="/v1/conversations/{conversation_id}/items")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Add items",
        openapi_extra=json_body(NewItemsBody),
        responses=answers("A list of the items."),
    )
    async def create_items(
        conversation_id: str, request: Request, caller: known_caller
    ) -> Response:
        """Append items to a conversation."""
        body = await context.read_body(request)
        with openai_names(RESPONSE_PARAMS):
            proto = create_items_request(
                conversation_id, body, include_params(request), idempotency_key(request)
            )
            reply = await control.call(control.conversations.CreateConversationItems, proto, caller)
        return json_response(list_object(reply.items, item_object, has_more=False))

    @router.get("", summary="List the items", responses=answers("A list of items."))
    async def list_items(conversation_id: str, request: Request, caller: known_caller) -> Response:
        """List items, paged by `after`, `limit` and `order`."""
        with openai_names(RESPONSE_PARAMS):
            proto = pb.ListConversationItemsRequest(
                conversation_id=conversation_id,
                **parse_item_query(request.query_params, include_params(request)),
            )
            page = await control.call(control.conversations.ListConversationItems, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.items, item_object, has_more=has_more))

    @router.get("/{item_id}", summary="Retrieve an item", responses=answers("An item."))
    async def retrieve_item(
        conversation_id: str, item_id: str, request: Request, caller: known_caller
    ) -> Response:
        """Retrieve an item."""
        proto = pb.GetConversationItemRequest(
            conversation_id=conversation_id,
            item_id=item_id,
            include=parse_includes(include_params(request)),
        )
        reply = await control.call(control.conversations.GetConversationItem, proto, caller)
        return json_response(item_object(reply.item))

    @router.delete("/{item_id}", summary="Remove an item", responses=answers("The conversation."))
    async def delete_item(conversation_id: str, item_id: str, caller: known_caller) -> Response:
        """Remove an item from a conversation. It is kept if it belongs to a response."""
        proto = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
        reply = await control.call(control.conversations.DeleteConversationItem, proto, caller)
        return json_response(conversation_object(reply.conversation))

    return router
