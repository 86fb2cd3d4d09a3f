"""Assistants as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import assistant_pb2, conversation_pb2, message_pb2, thread_pb2
from corral.control.v1 import assistant_service_pb2 as assistant_pb
from corral.control.v1 import message_service_pb2 as message_pb
from corral.control.v1 import thread_service_pb2 as thread_pb
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub

from gateway.auth import Caller, Credentials
from gateway.clients.control import ControlCalls


class AssistantClient(ControlCalls):
    """Assistants over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = AssistantServiceStub(channel)

    async def create(
        self, request: assistant_pb.CreateAssistantRequest, caller: Caller
    ) -> assistant_pb2.Assistant:
        """Add an assistant."""
        return (await self._ask(self._stub.CreateAssistant, request, caller)).assistant

    async def get(self, assistant_id: str, caller: Caller) -> assistant_pb2.Assistant:
        """One assistant."""
        request = assistant_pb.GetAssistantRequest(assistant_id=assistant_id)
        return (await self._ask(self._stub.GetAssistant, request, caller)).assistant

    async def page(
        self, request: assistant_pb.ListAssistantsRequest, caller: Caller
    ) -> assistant_pb.ListAssistantsResponse:
        """A page of assistants."""
        return await self._ask(self._stub.ListAssistants, request, caller)

    async def update(
        self, request: assistant_pb.UpdateAssistantRequest, caller: Caller
    ) -> assistant_pb2.Assistant:
        """Change an assistant."""
        return (await self._ask(self._stub.UpdateAssistant, request, caller)).assistant

    async def delete(self, assistant_id: str, caller: Caller) -> None:
        """Delete an assistant."""
        request = assistant_pb.DeleteAssistantRequest(assistant_id=assistant_id)
        await self._ask(self._stub.DeleteAssistant, request, caller)


class ThreadClient(ControlCalls):
    """Threads over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ThreadServiceStub(channel)

    async def create(
        self, request: thread_pb.CreateThreadRequest, caller: Caller
    ) -> thread_pb2.Thread:
        """Begin a thread."""
        return (await self._ask(self._stub.CreateThread, request, caller)).thread

    async def get(self, thread_id: str, caller: Caller) -> thread_pb2.Thread:
        """One thread."""
        request = thread_pb.GetThreadRequest(thread_id=thread_id)
        return (await self._ask(self._stub.GetThread, request, caller)).thread

    async def page(
        self, request: thread_pb.ListThreadsRequest, caller: Caller
    ) -> thread_pb.ListThreadsResponse:
        """A page of threads."""
        return await self._ask(self._stub.ListThreads, request, caller)

    async def update(
        self, request: thread_pb.UpdateThreadRequest, caller: Caller
    ) -> thread_pb2.Thread:
        """Change a thread."""
        return (await self._ask(self._stub.UpdateThread, request, caller)).thread

    async def delete(self, thread_id: str, caller: Caller) -> None:
        """Delete a thread and all that is in it."""
        request = thread_pb.DeleteThreadRequest(thread_id=thread_id)
        await self._ask(self._stub.DeleteThread, request, caller)

    async def migrate(
        self, thread_id: str, request_id: str, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Make a conversation of a thread."""
        request = thread_pb.MigrateThreadRequest(thread_id=thread_id, request_id=request_id)
        return (await self._ask(self._stub.MigrateThread, request, caller)).conversation


class MessageClient(ControlCalls):
    """Messages over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = MessageServiceStub(channel)

    async def create(
        self, request: message_pb.CreateMessageRequest, caller: Caller
    ) -> message_pb2.Message:
        """Add a message."""
        return (await self._ask(self._stub.CreateMessage, request, caller)).message

    async def get(self, thread_id: str, message_id: str, caller: Caller) -> message_pb2.Message:
        """One message."""
        request = message_pb.GetMessageRequest(thread_id=thread_id, message_id=message_id)
        return (await self._ask(self._stub.GetMessage, request, caller)).message

    async def page(
        self, request: message_pb.ListMessagesRequest, caller: Caller
    ) -> message_pb.ListMessagesResponse:
        """A page of messages."""
        return await self._ask(self._stub.ListMessages, request, caller)

    async def update(
        self, request: message_pb.UpdateMessageRequest, caller: Caller
    ) -> message_pb2.Message:
        """Change a message's metadata."""
        return (await self._ask(self._stub.UpdateMessage, request, caller)).message

    async def delete(self, thread_id: str, message_id: str, caller: Caller) -> None:
        """Take a message out of its thread."""
        request = message_pb.DeleteMessageRequest(thread_id=thread_id, message_id=message_id)
        await self._ask(self._stub.DeleteMessage, request, caller)
