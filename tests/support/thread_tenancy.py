"""Assistants, threads and messages for the tenancy test."""

from collections.abc import Callable, Mapping, Sequence

from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    message_pb2,
    message_service_pb2,
    thread_pb2,
    thread_service_pb2,
)
from google.protobuf.message import Message

from tests.support.control import Client
from tests.support.threads import ThreadClient, make_new_message

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]


async def create_assistant(client: Client, canary: str) -> Ids:
    """Create an assistant whose texts contain the canary."""
    assistant = await ThreadClient(client).create_assistant(name=canary, instructions=canary)
    return {"assistant": assistant.id}


async def observe_assistant(client: Client, ids: Ids) -> object:
    """Read the assistant and the list of assistants."""
    threads = ThreadClient(client)
    request = assistant_service_pb2.ListAssistantsRequest()
    listed = await threads.call(threads.assistants.ListAssistants, request)
    return await threads.get_assistant(ids["assistant"]), listed


async def create_thread(client: Client, canary: str) -> Ids:
    """Create a thread with a message that has a file."""
    file = await client.create(canary.encode(), filename=canary)
    threads = ThreadClient(client)
    thread = await threads.create_thread(metadata={"canary": canary})
    attached = message_pb2.Attachment(file_id=file.id)
    message = await threads.add_message(thread.id, canary, attachments=[attached])
    return {"thread": thread.id, "message": message.id, "attached": file.id}


async def observe_thread(client: Client, ids: Ids) -> object:
    """Read the thread, its messages and the list of threads."""
    threads = ThreadClient(client)
    request = thread_service_pb2.ListThreadsRequest()
    listed = await threads.call(threads.threads.ListThreads, request)
    return await threads.get_thread(ids["thread"]), await threads.page(ids["thread"]), listed


def assistant_calls() -> dict[str, Call]:
    """A valid request for each RPC of AssistantService."""
    pb = assistant_service_pb2
    return {
        "CreateAssistant": lambda ids: [
            pb.CreateAssistantRequest(assistant=assistant_pb2.Assistant(model="demo"))
        ],
        "GetAssistant": lambda ids: [pb.GetAssistantRequest(assistant_id=ids["assistant"])],
        "ListAssistants": lambda ids: [pb.ListAssistantsRequest()],
        "UpdateAssistant": lambda ids: [
            pb.UpdateAssistantRequest(
                assistant=assistant_pb2.Assistant(id=ids["assistant"], name="x")
            )
        ],
        "DeleteAssistant": lambda ids: [pb.DeleteAssistantRequest(assistant_id=ids["assistant"])],
    }


def thread_calls() -> dict[str, Call]:
    """A valid request for each RPC of ThreadService."""
    pb = thread_service_pb2
    return {
        "CreateThread": lambda ids: [pb.CreateThreadRequest(messages=[_with_file(ids)])],
        "GetThread": lambda ids: [pb.GetThreadRequest(thread_id=ids["thread"])],
        "ListThreads": lambda ids: [pb.ListThreadsRequest()],
        "UpdateThread": lambda ids: [
            pb.UpdateThreadRequest(thread=thread_pb2.Thread(id=ids["thread"], metadata={"x": "y"}))
        ],
        "MigrateThread": lambda ids: [pb.MigrateThreadRequest(thread_id=ids["thread"])],
        "DeleteThread": lambda ids: [pb.DeleteThreadRequest(thread_id=ids["thread"])],
    }


def message_calls() -> dict[str, Call]:
    """A valid request for each RPC of MessageService."""
    pb = message_service_pb2
    return {
        "CreateMessage": lambda ids: [
            pb.CreateMessageRequest(thread_id=ids["thread"], message=_with_file(ids))
        ],
        "GetMessage": lambda ids: [
            pb.GetMessageRequest(thread_id=ids["thread"], message_id=ids["message"])
        ],
        "ListMessages": lambda ids: [pb.ListMessagesRequest(thread_id=ids["thread"])],
        "UpdateMessage": lambda ids: [
            pb.UpdateMessageRequest(
                message=message_pb2.Message(
                    id=ids["message"], thread_id=ids["thread"], metadata={"x": "y"}
                )
            )
        ],
        "DeleteMessage": lambda ids: [
            pb.DeleteMessageRequest(thread_id=ids["thread"], message_id=ids["message"])
        ],
    }


def _with_file(ids: Ids) -> message_pb2.NewMessage:
    return make_new_message("x", attachments=[message_pb2.Attachment(file_id=ids["attached"])])
