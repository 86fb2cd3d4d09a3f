"""Routes of threads and messages."""

from corral.control.v1 import message_service_pb2, thread_service_pb2
from fastapi import APIRouter
from starlette.requests import Request

from dialects.openai.assistants import thread_requests
from dialects.openai.assistants.objects import Thread, ThreadMessage
from dialects.openai.errors import ASSISTANT_PARAMS
from dialects.openai.responses.conversations import Conversation
from dialects.openai.shared.pagination import (
    PageQuery,
    page_fields,
    parse_page_fields,
    parse_page_query,
)
from gateway.context import IdempotencyKey, JsonObject
from gateway.rpc_routes import Deletion, Page, RpcRoutes

router = APIRouter(prefix="/v1/threads")
rpc = RpcRoutes(router, ASSISTANT_PARAMS)
messages_router = APIRouter(prefix="/v1/threads/{thread_id}/messages")
messages = RpcRoutes(messages_router, ASSISTANT_PARAMS)


@rpc.route("POST", "", "Create a thread", Thread, thread_requests.ThreadBody)
def create_thread(
    body: JsonObject, request_id: IdempotencyKey
) -> thread_service_pb2.CreateThreadRequest:
    """Create a thread, optionally with messages."""
    return thread_requests.create_thread_request(body, request_id)


@rpc.route("GET", "", "List the threads", Page(Thread), query=PageQuery)
def list_threads(request: Request) -> thread_service_pb2.ListThreadsRequest:
    """List threads, paged by `after`, `before`, `limit` and `order`. Extension of Corral."""
    return thread_service_pb2.ListThreadsRequest(**parse_page_fields(request.query_params))


@rpc.route("GET", "/{thread_id}", "Retrieve a thread", Thread)
def retrieve_thread(thread_id: str) -> thread_service_pb2.GetThreadRequest:
    """Retrieve a thread."""
    return thread_service_pb2.GetThreadRequest(thread_id=thread_id)


@rpc.route("POST", "/{thread_id}", "Update a thread", Thread, thread_requests.ThreadUpdateBody)
def update_thread(thread_id: str, body: JsonObject) -> thread_service_pb2.UpdateThreadRequest:
    """Update the metadata or tool resources in the body; null removes them."""
    return thread_requests.update_thread_request(thread_id, body)


@rpc.route("DELETE", "/{thread_id}", "Delete a thread", Deletion("thread.deleted"))
def delete_thread(thread_id: str) -> thread_service_pb2.DeleteThreadRequest:
    """Delete a thread with its messages and runs. Rejected while a run is active."""
    return thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)


@rpc.route("POST", "/{thread_id}/migrate", "Convert a thread to a conversation", Conversation)
def migrate_thread(
    thread_id: str, request_id: IdempotencyKey
) -> thread_service_pb2.MigrateThreadRequest:
    """Create a conversation with the same items, for use with responses. The thread is kept.
    Extension of Corral."""
    return thread_service_pb2.MigrateThreadRequest(thread_id=thread_id, request_id=request_id)


@messages.route("POST", "", "Add a message", ThreadMessage, thread_requests.MessageBody)
def create_message(
    thread_id: str, body: JsonObject, request_id: IdempotencyKey
) -> message_service_pb2.CreateMessageRequest:
    """Add a message at the end of a thread. Rejected while a run is active."""
    return thread_requests.create_message_request(thread_id, body, request_id)


@messages.route(
    "GET", "", "List the messages", Page(ThreadMessage), query=thread_requests.MessageListQuery
)
def list_messages(request: Request, thread_id: str) -> message_service_pb2.ListMessagesRequest:
    """List messages, paged by `after`, `before`, `limit` and `order`, filtered by `run_id`."""
    query = parse_page_query(thread_requests.MessageListQuery, request.query_params)
    return message_service_pb2.ListMessagesRequest(
        thread_id=thread_id, run_id=query.run_id or "", **page_fields(query)
    )


@messages.route("GET", "/{message_id}", "Retrieve a message", ThreadMessage)
def retrieve_message(thread_id: str, message_id: str) -> message_service_pb2.GetMessageRequest:
    """Retrieve a message."""
    return message_service_pb2.GetMessageRequest(thread_id=thread_id, message_id=message_id)


@messages.route(
    "POST", "/{message_id}", "Update a message", ThreadMessage, thread_requests.MetadataBody
)
def update_message(
    thread_id: str, message_id: str, body: JsonObject
) -> message_service_pb2.UpdateMessageRequest:
    """Update the metadata of a message. Rejected while a run is active."""
    return thread_requests.update_message_request(thread_id, message_id, body)


@messages.route("DELETE", "/{message_id}", "Delete a message", Deletion("thread.message.deleted"))
def delete_message(thread_id: str, message_id: str) -> message_service_pb2.DeleteMessageRequest:
    """Delete a message. Rejected while a run is active."""
    return message_service_pb2.DeleteMessageRequest(thread_id=thread_id, message_id=message_id)
