"""Threads and their messages as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import conversation_pb2, message_pb2, thread_pb2
from corral.control.v1 import message_service_pb2 as message_pb
from corral.control.v1 import thread_service_pb2 as pb
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub

from gateway.auth import Caller, Credentials
from gateway.control import ControlCalls


class ThreadClient(ControlCalls):
    """Threads over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ThreadServiceStub(channel)

    async def create(self, request: pb.CreateThreadRequest, caller: Caller) -> thread_pb2.Thread:
        """Begin a thread."""
        return (await self._ask(self._stub.CreateThread, request, caller)).thread

    async def get(self, thread_id: str, caller: Caller) -> thread_pb2.Thread:
        """One thread."""
        request = pb.GetThreadRequest(thread_id=thread_id)
        return (await self._ask(self._stub.GetThread, request, caller)).thread

    async def page(self, request: pb.ListThreadsRequest, caller: Caller) -> pb.ListThreadsResponse:
        """A page of threads."""
        return await self._ask(self._stub.ListThreads, request, caller)

    async def update(self, request: pb.UpdateThreadRequest, caller: Caller) -> thread_pb2.Thread:
        """Change a thread."""
        return (await self._ask(self._stub.UpdateThread, request, caller)).thread

    async def delete(self, thread_id: str, caller: Caller) -> None:
        """Delete a thread and all that is in it."""
        request = pb.DeleteThreadRequest(thread_id=thread_id)
        await self._ask(self._stub.DeleteThread, request, caller)

    async def migrate(
        self, thread_id: str, request_id: str, caller: Caller
    ) -> conversation_pb2.Conversation:
        """Make a conversation of a thread."""
        request = pb.MigrateThreadRequest(thread_id=thread_id, request_id=request_id)
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
