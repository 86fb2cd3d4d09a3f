"""Assistants, threads and messages for the tenancy test."""

from collections.abc import Mapping, Sequence
from typing import Any

from corral.control.v1 import assistant_service_pb2, message_pb2, thread_service_pb2

from tests.support.control import Client
from tests.support.threads import ThreadClient

Ids = Mapping[str, str]
Calls = Mapping[str, Sequence[Mapping[str, Any]]]


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


_WITH_FILE = {
    "role": "ITEM_ROLE_USER",
    "parts": [{"text": {"text": "x"}}],
    "attachments": [{"file_id": "{attached}"}],
}
_MESSAGE = {"thread_id": "{thread}", "message_id": "{message}"}

ASSISTANT_CALLS: Calls = {
    "CreateAssistant": [{"assistant": {"model": "demo"}}],
    "GetAssistant": [{"assistant_id": "{assistant}"}],
    "ListAssistants": [{}],
    "UpdateAssistant": [{"assistant": {"id": "{assistant}", "name": "x"}}],
    "DeleteAssistant": [{"assistant_id": "{assistant}"}],
}
THREAD_CALLS: Calls = {
    "CreateThread": [{"messages": [_WITH_FILE]}],
    "GetThread": [{"thread_id": "{thread}"}],
    "ListThreads": [{}],
    "UpdateThread": [{"thread": {"id": "{thread}", "metadata": {"x": "y"}}}],
    "MigrateThread": [{"thread_id": "{thread}"}],
    "DeleteThread": [{"thread_id": "{thread}"}],
}
MESSAGE_CALLS: Calls = {
    "CreateMessage": [{"thread_id": "{thread}", "message": _WITH_FILE}],
    "GetMessage": [_MESSAGE],
    "ListMessages": [{"thread_id": "{thread}"}],
    "UpdateMessage": [
        {"message": {"id": "{message}", "thread_id": "{thread}", "metadata": {"x": "y"}}}
    ],
    "DeleteMessage": [_MESSAGE],
}
