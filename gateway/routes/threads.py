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
from gateway.routes.files import name_request
from openai_wire.assistants.objects import (
    deleted_object,
    list_object,
    message_object,
    thread_object,
)
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
from openai_wire.shared.pagination import PageQuery, page_fields, page_query


def threads_router(context: AppContext) -> APIRouter:
    """The routes of threads."""
    control = context.control
    router = APIRouter(prefix="/v1/threads")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Begin a thread",
        openapi_extra=json_body(ThreadBody),
        responses=answers("A thread."),
    )
    async def create_thread(request: Request, caller: known_caller) -> Response:
        """Begins a thread, with messages perhaps."""
        body = await context.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            asked = create_thread_request(body, name_request(request))
            reply = await control.call(control.threads.CreateThread, asked, caller)
            thread = reply.thread
        return json_response(thread_object(thread))

    @router.get("", summary="List the threads", responses=answers("A list of threads."))
    async def list_threads(request: Request, caller: known_caller) -> Response:
        """A page of threads: `after`, `before`, `limit` and `order` choose it. OpenAI had no such
        list."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(PageQuery, request.query_params)
            asked = thread_service_pb2.ListThreadsRequest(**page_fields(query))
            page = await control.call(control.threads.ListThreads, asked, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.threads, thread_object, has_more=has_more))

    @router.get("/{thread_id}", summary="Describe a thread", responses=answers("A thread."))
    async def retrieve_thread(thread_id: str, caller: known_caller) -> Response:
        """One thread."""
        wanted = thread_service_pb2.GetThreadRequest(thread_id=thread_id)
        reply = await control.call(control.threads.GetThread, wanted, caller)
        return json_response(thread_object(reply.thread))

    @router.post(
        "/{thread_id}",
        summary="Change a thread",
        openapi_extra=json_body(ThreadUpdateBody),
        responses=answers("A thread."),
    )
    async def update_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Changes the metadata or the resources that the body names; null clears them."""
        with openai_names(ASSISTANT_PARAMS):
            asked = update_thread_request(thread_id, await context.read_body(request))
            reply = await control.call(control.threads.UpdateThread, asked, caller)
            thread = reply.thread
        return json_response(thread_object(thread))

    @router.delete("/{thread_id}", summary="Delete a thread", responses=answers("What is left."))
    async def delete_thread(thread_id: str, caller: known_caller) -> Response:
        """Deletes a thread with its messages and runs; refused while a run is active."""
        wanted = thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
        await control.call(control.threads.DeleteThread, wanted, caller)
        return json_response(deleted_object(thread_id, "thread"))

    @router.post(
        "/{thread_id}/migrate",
        summary="Make a conversation of a thread",
        responses=answers("A conversation."),
    )
    async def migrate_thread(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Makes a conversation of the same items, for Responses to go on from; the thread stays.
        OpenAI had no such thing."""
        with openai_names(ASSISTANT_PARAMS):
            wanted = thread_service_pb2.MigrateThreadRequest(
                thread_id=thread_id, request_id=name_request(request)
            )
            reply = await control.call(control.threads.MigrateThread, wanted, caller)
            created = reply.conversation
        return json_response(conversation_object(created))

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
        """Adds a message at the end of a thread; refused while a run is active."""
        body = await context.read_body(request)
        with openai_names(ASSISTANT_PARAMS):
            asked = create_message_request(thread_id, body, name_request(request))
            reply = await control.call(control.messages.CreateMessage, asked, caller)
            message = reply.message
        return json_response(message_object(message))

    @router.get("", summary="List the messages", responses=answers("A list of messages."))
    async def list_messages(request: Request, thread_id: str, caller: known_caller) -> Response:
        """A page of messages: `after`, `before`, `limit`, `order` and `run_id` choose it."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(MessageListQuery, request.query_params)
            asked = message_service_pb2.ListMessagesRequest(
                thread_id=thread_id, run_id=query.run_id or "", **page_fields(query)
            )
            page = await control.call(control.messages.ListMessages, asked, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.messages, message_object, has_more=has_more))

    @router.get("/{message_id}", summary="Describe a message", responses=answers("A message."))
    async def retrieve_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """One message."""
        wanted = message_service_pb2.GetMessageRequest(thread_id=thread_id, message_id=message_id)
        reply = await control.call(control.messages.GetMessage, wanted, caller)
        message = reply.message
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
            body = await context.read_body(request)
            asked = update_message_request(thread_id, message_id, body)
            reply = await control.call(control.messages.UpdateMessage, asked, caller)
            message = reply.message
        return json_response(message_object(message))

    @router.delete("/{message_id}", summary="Delete a message", responses=answers("What is left."))
    async def delete_message(thread_id: str, message_id: str, caller: known_caller) -> Response:
        """Takes a message out of its thread; refused while a run is active."""
        wanted = message_service_pb2.DeleteMessageRequest(
            thread_id=thread_id, message_id=message_id
        )
        await control.call(control.messages.DeleteMessage, wanted, caller)
        return json_response(deleted_object(message_id, "thread.message"))

    return router
