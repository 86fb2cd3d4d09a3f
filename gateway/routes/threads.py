"""Routes of threads and messages."""

from corral.control.v1 import message_service_pb2, thread_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.assistants.objects import message_object, thread_object
from dialects.openai.assistants.thread_requests import (
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
from dialects.openai.errors import ASSISTANT_PARAMS, openai_names
from dialects.openai.responses.conversations import conversation_object
from dialects.openai.shared.objects import deleted_object, list_object
from dialects.openai.shared.pagination import (
    PageQuery,
    page_fields,
    parse_page_fields,
    parse_page_query,
)
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert

router = APIRouter(prefix="/v1/threads")
messages_router = APIRouter(prefix="/v1/threads/{thread_id}/messages")


@router.post("", **operation("Create a thread", "Thread", json_body(ThreadBody)))
async def create_thread(control: Control, body: JsonObject, request_id: IdempotencyKey) -> Response:
    """Create a thread, optionally with messages."""
    with openai_names(ASSISTANT_PARAMS):
        proto = await convert(create_thread_request, body, request_id)
        reply = await control.call(control.threads.CreateThread, proto)
    return json_response(thread_object(reply.thread))


@router.get("", **operation("List the threads", "ThreadList", query=PageQuery))
async def list_threads(control: Control, request: Request) -> Response:
    """List threads, paged by `after`, `before`, `limit` and `order`. Extension of Corral."""
    with openai_names(ASSISTANT_PARAMS):
        proto = thread_service_pb2.ListThreadsRequest(**parse_page_fields(request.query_params))
        page = await control.call(control.threads.ListThreads, proto)
    return json_response(list_object(page.threads, thread_object, page.next_page_token))


@router.get("/{thread_id}", **operation("Retrieve a thread", "Thread"))
async def retrieve_thread(control: Control, thread_id: str) -> Response:
    """Retrieve a thread."""
    proto = thread_service_pb2.GetThreadRequest(thread_id=thread_id)
    reply = await control.call(control.threads.GetThread, proto)
    return json_response(thread_object(reply.thread))


@router.post("/{thread_id}", **operation("Update a thread", "Thread", json_body(ThreadUpdateBody)))
async def update_thread(control: Control, thread_id: str, body: JsonObject) -> Response:
    """Update the metadata or tool resources in the body; null removes them."""
    with openai_names(ASSISTANT_PARAMS):
        proto = update_thread_request(thread_id, body)
        reply = await control.call(control.threads.UpdateThread, proto)
    return json_response(thread_object(reply.thread))


@router.delete("/{thread_id}", **operation("Delete a thread", "Deleted"))
async def delete_thread(control: Control, thread_id: str) -> Response:
    """Delete a thread with its messages and runs. Rejected while a run is active."""
    proto = thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
    await control.call(control.threads.DeleteThread, proto)
    return json_response(deleted_object(thread_id, "thread.deleted"))


@router.post(
    "/{thread_id}/migrate", **operation("Convert a thread to a conversation", "Conversation")
)
async def migrate_thread(control: Control, thread_id: str, request_id: IdempotencyKey) -> Response:
    """Create a conversation with the same items, for use with responses. The thread is kept.
    Extension of Corral."""
    with openai_names(ASSISTANT_PARAMS):
        proto = thread_service_pb2.MigrateThreadRequest(thread_id=thread_id, request_id=request_id)
        reply = await control.call(control.threads.MigrateThread, proto)
    return json_response(conversation_object(reply.conversation))


@messages_router.post("", **operation("Add a message", "ThreadMessage", json_body(MessageBody)))
async def create_message(
    control: Control, thread_id: str, body: JsonObject, request_id: IdempotencyKey
) -> Response:
    """Add a message at the end of a thread. Rejected while a run is active."""
    with openai_names(ASSISTANT_PARAMS):
        proto = await convert(create_message_request, thread_id, body, request_id)
        reply = await control.call(control.messages.CreateMessage, proto)
    return json_response(message_object(reply.message))


@messages_router.get(
    "", **operation("List the messages", "ThreadMessageList", query=MessageListQuery)
)
async def list_messages(control: Control, request: Request, thread_id: str) -> Response:
    """List messages, paged by `after`, `before`, `limit` and `order`, filtered by `run_id`."""
    with openai_names(ASSISTANT_PARAMS):
        query = parse_page_query(MessageListQuery, request.query_params)
        proto = message_service_pb2.ListMessagesRequest(
            thread_id=thread_id, run_id=query.run_id or "", **page_fields(query)
        )
        page = await control.call(control.messages.ListMessages, proto)
    return json_response(list_object(page.messages, message_object, page.next_page_token))


@messages_router.get("/{message_id}", **operation("Retrieve a message", "ThreadMessage"))
async def retrieve_message(control: Control, thread_id: str, message_id: str) -> Response:
    """Retrieve a message."""
    proto = message_service_pb2.GetMessageRequest(thread_id=thread_id, message_id=message_id)
    reply = await control.call(control.messages.GetMessage, proto)
    return json_response(message_object(reply.message))


@messages_router.post(
    "/{message_id}", **operation("Update a message", "ThreadMessage", json_body(MetadataBody))
)
async def update_message(
    control: Control, thread_id: str, message_id: str, body: JsonObject
) -> Response:
    """Update the metadata of a message. Rejected while a run is active."""
    with openai_names(ASSISTANT_PARAMS):
        proto = update_message_request(thread_id, message_id, body)
        reply = await control.call(control.messages.UpdateMessage, proto)
    return json_response(message_object(reply.message))


@messages_router.delete("/{message_id}", **operation("Delete a message", "Deleted"))
async def delete_message(control: Control, thread_id: str, message_id: str) -> Response:
    """Delete a message. Rejected while a run is active."""
    proto = message_service_pb2.DeleteMessageRequest(thread_id=thread_id, message_id=message_id)
    await control.call(control.messages.DeleteMessage, proto)
    return json_response(deleted_object(message_id, "thread.message.deleted"))
