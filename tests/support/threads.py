"""A client of the services of assistants, threads and messages."""

from collections.abc import Awaitable, Callable
from typing import Any

from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    item_pb2,
    message_pb2,
    message_service_pb2,
    thread_pb2,
    thread_service_pb2,
)
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub

from tests.support.control import AnswerT, Client


def make_new_message(text: str, **fields: Any) -> message_pb2.NewMessage:
    part = item_pb2.ItemPart(text=item_pb2.TextPart(text=text))
    return message_pb2.NewMessage(**{"role": item_pb2.ITEM_ROLE_USER, "parts": [part], **fields})


def message_text(message: message_pb2.Message) -> str:
    return "".join(part.text.text for part in message.parts)


class ThreadClient:
    """The three services as one project sees them; calls raise DomainError."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.assistants = AssistantServiceStub(client.channel)
        self.threads = ThreadServiceStub(client.channel)
        self.messages = MessageServiceStub(client.channel)

    async def call(self, method: Callable[..., Awaitable[AnswerT]], request: Any) -> AnswerT:
        return await self.client.call(method, request)

    async def create_assistant(
        self, request_id: str = "", **fields: Any
    ) -> assistant_pb2.Assistant:
        """Create an assistant, by default with the demo model."""
        assistant = assistant_pb2.Assistant(**{"model": "demo", **fields})
        request = assistant_service_pb2.CreateAssistantRequest(
            assistant=assistant, request_id=request_id
        )
        return (await self.call(self.assistants.CreateAssistant, request)).assistant

    async def get_assistant(self, assistant_id: str) -> assistant_pb2.Assistant:
        request = assistant_service_pb2.GetAssistantRequest(assistant_id=assistant_id)
        return (await self.call(self.assistants.GetAssistant, request)).assistant

    async def update_assistant(self, assistant_id: str, *mask: str, **fields: Any) -> Any:
        """Update an assistant; `mask` are the paths of the field mask."""
        request = assistant_service_pb2.UpdateAssistantRequest(
            assistant=assistant_pb2.Assistant(id=assistant_id, **fields)
        )
        request.update_mask.paths.extend(mask)
        return (await self.call(self.assistants.UpdateAssistant, request)).assistant

    async def create_thread(
        self, *messages: message_pb2.NewMessage, request_id: str = "", **fields: Any
    ) -> thread_pb2.Thread:
        request = thread_service_pb2.CreateThreadRequest(
            thread=thread_pb2.Thread(**fields), messages=messages, request_id=request_id
        )
        return (await self.call(self.threads.CreateThread, request)).thread

    async def get_thread(self, thread_id: str) -> thread_pb2.Thread:
        request = thread_service_pb2.GetThreadRequest(thread_id=thread_id)
        return (await self.call(self.threads.GetThread, request)).thread

    async def delete_thread(self, thread_id: str) -> None:
        request = thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
        await self.call(self.threads.DeleteThread, request)

    async def add_message(
        self, thread_id: str, text: str, request_id: str = "", **fields: Any
    ) -> message_pb2.Message:
        request = message_service_pb2.CreateMessageRequest(
            thread_id=thread_id, message=make_new_message(text, **fields), request_id=request_id
        )
        return (await self.call(self.messages.CreateMessage, request)).message

    async def page(self, thread_id: str, **fields: Any) -> Any:
        request = message_service_pb2.ListMessagesRequest(thread_id=thread_id, **fields)
        return await self.call(self.messages.ListMessages, request)

    async def delete_message(self, thread_id: str, message_id: str) -> None:
        request = message_service_pb2.DeleteMessageRequest(
            thread_id=thread_id, message_id=message_id
        )
        await self.call(self.messages.DeleteMessage, request)
