"""The routes under /v1/threads/{thread_id}/messages."""

from typing import Annotated

from corral.control.v1 import message_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.docs import answers, json_body
from gateway.errors import json_response
from gateway.parts import Parts
from gateway.routes.files import name_request
from openai_wire.assistants.objects import deleted_object, list_object, message_object
from openai_wire.assistants.threads import (
    MessageBody,
    MessageListQuery,
    MetadataBody,
    create_message_request,
    update_message_request,
)
from openai_wire.errors import ASSISTANT_PARAMS, openai_names
from openai_wire.requests.listing import page_fields, page_query


def messages_router(parts: Parts) -> APIRouter:
    """The routes of messages."""
    router = APIRouter(prefix="/v1/threads/{thread_id}/messages")
    known_caller = Annotated[Caller, Depends(parts.authentication)]

    @router.post(
        "",
        summary="Add a message",
        openapi_extra=json_body(MessageBody),
        responses=answers("A message."),
    )
    async def create_message(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Adds a message at the end of a thread; refused while a run is active."""
        body = await parts.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            asked = create_message_request(thread_id, body, name_request(request))
            message = await parts.messages.create(asked, caller)
        return json_response(message_object(message))

    @router.get("", summary="List the messages", responses=answers("A list of messages."))
    async def list_messages(request: Request, thread_id: str, caller: known_caller) -> Response:
        """A page of messages: `after`, `before`, `limit`, `order` and `run_id` choose it."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(MessageListQuery, request.query_params)
            asked = message_service_pb2.ListMessagesRequest(
                thread_id=thread_id, run_id=query.run_id or "", **page_fields(query)
            )
            page = await parts.messages.page(asked, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.messages, message_object, has_more=has_more))

    @router.get("/{message_id}", summary="Describe a message", responses=answers("A message."))
    async def retrieve_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """One message."""
        message = await parts.messages.get(thread_id, message_id, caller)
        return json_response(message_object(message))

    @router.post(
        "/{message_id}",
        summary="Change a message",
        openapi_extra=json_body(MetadataBody),
        responses=answers("A message."),
    )
    async def update_message(
        request: Request, thread_id: str, message_id: str, caller: known_caller
    ) -> Response:
        """Changes a message's metadata; refused while a run is active."""
        with openai_names(ASSISTANT_PARAMS):
            body = await parts.read_body(request)
            asked = update_message_request(thread_id, message_id, body)
            message = await parts.messages.update(asked, caller)
        return json_response(message_object(message))

    @router.delete("/{message_id}", summary="Delete a message", responses=answers("What is left."))
    async def delete_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """Takes a message out of its thread; refused while a run is active."""
        await parts.messages.delete(thread_id, message_id, caller)
        return json_response(deleted_object(message_id, "thread.message"))

    return router
