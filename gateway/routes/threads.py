"""Routes of threads and messages."""

from typing import Annotated

from corral.control.v1 import message_service_pb2, thread_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import idempotency_key
from openai_wire.assistants.objects import message_object, thread_object
from openai_wire.assistants.thread_requests import (
    MessageBody,
    MessageListQuery,
    MetadataBody,
    ThreadBody,
    ThreadUpdateBody,
    create_message_request,
    create_thread_request,
    update_message_request,
    update_thread_request,
)
from openai_wire.errors import ASSISTANT_PARAMS, openai_names
from openai_wire.responses.conversations import conversation_object
from openai_wire.shared.objects import deleted_object, list_object
from openai_wire.shared.pagination import PageQuery, page_fields, parse_page_query


def threads_router(context: AppContext) -> APIRouter:
    """The routes of threads."""
    control = context.control
    router = APIRouter(prefix="/v1/threads")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Create a thread",
        openapi_extra=json_body(ThreadBody),
        responses=answers("A thread."),
    )
    async def create_thread(request: Request, caller: known_caller) -> Response:
        """Create a thread, optionally with messages."""
        body = await context.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            proto = create_thread_request(body, idempotency_key(request))
            reply = await control.call(control.threads.CreateThread, proto, caller)
        return json_response(thread_object(reply.thread))

    @router.get("", summary="List the threads", responses=answers("A list of threads."))
    async def list_threads(request: Request, caller: known_caller) -> Response:
        """List threads, paged by `after`, `before`, `limit` and `order`. Extension of Corral."""
        with openai_names(ASSISTANT_PARAMS):
            query = parse_page_query(PageQuery, request.query_params)
            proto = thread_service_pb2.ListThreadsRequest(**page_fields(query))
            page = await control.call(control.threads.ListThreads, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.threads, thread_object, has_more=has_more))

    @router.get("/{thread_id}", summary="Retrieve a thread", responses=answers("A thread."))
    async def retrieve_thread(thread_id: str, caller: known_caller) -> Response:
        """Retrieve a thread."""
        proto = thread_service_pb2.GetThreadRequest(thread_id=thread_id)
        reply = await control.call(control.threads.GetThread, proto, caller)
        return json_response(thread_object(reply.thread))

    @router.post(
        "/{thread_id}",
        summary="Update a thread",
        openapi_extra=json_body(ThreadUpdateBody),
        responses=answers("A thread."),
    )
    async def update_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Update the metadata or tool resources in the body; null removes them."""
        with openai_names(ASSISTANT_PARAMS):
            proto = update_thread_request(thread_id, await context.read_body(request))
            reply = await control.call(control.threads.UpdateThread, proto, caller)
        return json_response(thread_object(reply.thread))

    @router.delete("/{thread_id}", summary="Delete a thread", responses=answers("Deletion status."))
    async def delete_thread(thread_id: str, caller: known_caller) -> Response:
        """Delete a thread with its messages and runs. Rejected while a run is active."""
        proto = thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
        await control.call(control.threads.DeleteThread, proto, caller)
        return json_response(deleted_object(thread_id, "thread.deleted"))

    @router.post(
        "/{thread_id}/migrate",
        summary="Convert a thread to a conversation",
        responses=answers("A conversation."),
    )
    async def migrate_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Create a conversation with the same items, for use with responses. The thread is kept.
        Extension of Corral."""
        with openai_names(ASSISTANT_PARAMS):
            proto = thread_service_pb2.MigrateThreadRequest(
                thread_id=thread_id, request_id=idempotency_key(request)
            )
            reply = await control.call(control.threads.MigrateThread, proto, caller)
        return json_response(conversation_object(reply.conversation))

    return router


def messages_router(context: AppContext) -> APIRouter:
    """The routes of messages."""
    control = context.control
    router = APIRouter(prefix="/v1/threads/{thread_id}/messages")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Add a message",
        openapi_extra=json_body(MessageBody),
        responses=answers("A message."),
    )
    async def create_message(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Add a message at the end of a thread. Rejected while a run is active."""
        body = await context.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            proto = create_message_request(thread_id, body, idempotency_key(request))
            reply = await control.call(control.messages.CreateMessage, proto, caller)
        return json_response(message_object(reply.message))

    @router.get("", summary="List the messages", responses=answers("A list of messages."))
    async def list_messages(request: Request, thread_id: str, caller: known_caller) -> Response:
        """List messages, paged by `after`, `before`, `limit` and `order`, filtered by `run_id`."""
        with openai_names(ASSISTANT_PARAMS):
            query = parse_page_query(MessageListQuery, request.query_params)
            proto = message_service_pb2.ListMessagesRequest(
                thread_id=thread_id, run_id=query.run_id or "", **page_fields(query)
            )
            page = await control.call(control.messages.ListMessages, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.messages, message_object, has_more=has_more))

    @router.get("/{message_id}", summary="Retrieve a message", responses=answers("A message."))
    async def retrieve_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """Retrieve a message."""
        proto = message_service_pb2.GetMessageRequest(thread_id=thread_id, message_id=message_id)
        reply = await control.call(control.messages.GetMessage, proto, caller)
        return json_response(message_object(reply.message))

    @router.post(
        "/{message_id}",
        summary="Update a message",
        openapi_extra=json_body(MetadataBody),
        responses=answers("A message."),
    )
    async def update_message(
        request: Request, thread_id: str, message_id: str, caller: known_caller
    ) -> Response:
        """Update the metadata of a message. Rejected while a run is active."""
        with openai_names(ASSISTANT_PARAMS):
            body = await context.read_body(request)
            proto = update_message_request(thread_id, message_id, body)
            reply = await control.call(control.messages.UpdateMessage, proto, caller)
        return json_response(message_object(reply.message))

    @router.delete(
        "/{message_id}", summary="Delete a message", responses=answers("Deletion status.")
    )
    async def delete_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """Delete a message. Rejected while a run is active."""
        proto = message_service_pb2.DeleteMessageRequest(thread_id=thread_id, message_id=message_id)
        await control.call(control.messages.DeleteMessage, proto, caller)
        return json_response(deleted_object(message_id, "thread.message.deleted"))

    return router
