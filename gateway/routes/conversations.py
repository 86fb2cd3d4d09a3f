"""The routes under /v1/conversations."""

from typing import Annotated

from corral.control.v1 import conversation_service_pb2 as pb
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import name_request
from openai_wire.errors import RESPONSE_PARAMS, openai_names
from openai_wire.responses.conversations import (
    ConversationBody,
    ConversationUpdateBody,
    NewItemsBody,
    conversation_object,
    create_conversation_request,
    create_items_request,
    item_list,
    item_page,
    update_conversation_request,
)
from openai_wire.responses.output_items import item_object
from openai_wire.responses.requests import includes_from


def requested_includes(request: Request) -> list[str]:
    """What a query wants to see: `include`, or `include[]` as SDKs write it."""
    query = request.query_params
    return [*query.getlist("include[]"), *query.getlist("include")]


def conversations_router(context: AppContext) -> APIRouter:
    """The routes of conversations."""
    control = context.control
    router = APIRouter(prefix="/v1/conversations")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Make a conversation",
        openapi_extra=json_body(ConversationBody),
        responses=answers("A conversation."),
    )
    async def create_conversation(request: Request, caller: known_caller) -> Response:
        """Makes a conversation, with the items that it begins with."""
        body = await context.read_body(request)
        with openai_names(RESPONSE_PARAMS):
            asked = create_conversation_request(body, name_request(request))
            reply = await control.call(control.conversations.CreateConversation, asked, caller)
            created = reply.conversation
        return json_response(conversation_object(created))

    @router.get("/{conversation_id}", summary="Describe", responses=answers("A conversation."))
    async def retrieve_conversation(conversation_id: str, caller: known_caller) -> Response:
        """One conversation, without its items."""
        wanted = pb.GetConversationRequest(conversation_id=conversation_id)
        reply = await control.call(control.conversations.GetConversation, wanted, caller)
        return json_response(conversation_object(reply.conversation))

    @router.post(
        "/{conversation_id}",
        summary="Attach other metadata",
        openapi_extra=json_body(ConversationUpdateBody),
        responses=answers("The conversation."),
    )
    async def update_conversation(
        conversation_id: str, request: Request, caller: known_caller
    ) -> Response:
        """Puts metadata in the place of those that it has."""
        asked = update_conversation_request(conversation_id, await context.read_body(request))
        reply = await control.call(control.conversations.UpdateConversation, asked, caller)
        return json_response(conversation_object(reply.conversation))

    @router.delete("/{conversation_id}", summary="Forget", responses=answers("That it is gone."))
    async def delete_conversation(conversation_id: str, caller: known_caller) -> Response:
        """Forgets a conversation; items stay where a response has them."""
        wanted = pb.DeleteConversationRequest(conversation_id=conversation_id)
        await control.call(control.conversations.DeleteConversation, wanted, caller)
        deleted = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return json_response(deleted)

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
        """Adds items at the end."""
        body = await context.read_body(request)
        with openai_names(RESPONSE_PARAMS):
            asked = create_items_request(
                conversation_id, body, requested_includes(request), name_request(request)
            )
            added = await control.call(control.conversations.CreateConversationItems, asked, caller)
        return json_response(item_list(added.items, has_more=False))

    @router.get("", summary="List the items", responses=answers("A list of items."))
    async def list_items(conversation_id: str, request: Request, caller: known_caller) -> Response:
        """A page of items: `after`, `limit`, `order` and `include` choose it."""
        with openai_names(RESPONSE_PARAMS):
            asked = pb.ListConversationItemsRequest(
                conversation_id=conversation_id,
                **item_page(request.query_params, requested_includes(request)),
            )
            page = await control.call(control.conversations.ListConversationItems, asked, caller)
        return json_response(item_list(page.items, has_more=bool(page.next_page_token)))

    @router.get("/{item_id}", summary="Describe an item", responses=answers("An item."))
    async def retrieve_item(
        conversation_id: str, item_id: str, request: Request, caller: known_caller
    ) -> Response:
        """One item."""
        asked = pb.GetConversationItemRequest(
            conversation_id=conversation_id,
            item_id=item_id,
            include=includes_from(requested_includes(request)),
        )
        reply = await control.call(control.conversations.GetConversationItem, asked, caller)
        return json_response(item_object(reply.item))

    @router.delete("/{item_id}", summary="Take an item out", responses=answers("The conversation."))
    async def delete_item(conversation_id: str, item_id: str, caller: known_caller) -> Response:
        """Takes an item out of a conversation; it stays where a response has it."""
        wanted = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
        reply = await control.call(control.conversations.DeleteConversationItem, wanted, caller)
        left = reply.conversation
        return json_response(conversation_object(left))

    return router
