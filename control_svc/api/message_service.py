"""Servicer of `MessageService`: convert, call, convert."""

import grpc
from corral.control.v1 import message_service_pb2 as pb
from corral.control.v1 import message_service_pb2_grpc as rpc

from control_svc.api.convert import page_request
from control_svc.api.thread_convert import message_metadata, message_to_pb, new_message
from control_svc.domain.messages import AddedMessage
from control_svc.usecases.messages import Messages
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class MessageServicer(rpc.MessageServiceServicer):
    """Messages over gRPC."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def CreateMessage(
        self, request: pb.CreateMessageRequest, context: Context
    ) -> pb.CreateMessageResponse:
        """Add a message."""
        asked = AddedMessage(
            thread_id=request.thread_id,
            message=new_message(request.message),
            request_id=request.request_id,
        )
        message = await self._messages.create(current_principal().project, asked)
        return pb.CreateMessageResponse(message=message_to_pb(message))

    async def GetMessage(
        self, request: pb.GetMessageRequest, context: Context
    ) -> pb.GetMessageResponse:
        """Describe a message."""
        message = await self._messages.get(
            current_principal().project, request.thread_id, request.message_id
        )
        return pb.GetMessageResponse(message=message_to_pb(message))

    async def ListMessages(
        self, request: pb.ListMessagesRequest, context: Context
    ) -> pb.ListMessagesResponse:
        """List the messages of a thread."""
        page = await self._messages.page(
            current_principal().project, request.thread_id, page_request(request), request.run_id
        )
        messages = [message_to_pb(message) for message in page.items]
        return pb.ListMessagesResponse(messages=messages, next_page_token=page.next_token)

    async def UpdateMessage(
        self, request: pb.UpdateMessageRequest, context: Context
    ) -> pb.UpdateMessageResponse:
        """Change a message's metadata."""
        named = request.message
        metadata = message_metadata(named, request.update_mask)
        message = await self._messages.update(
            current_principal().project, named.thread_id, named.id, metadata
        )
        return pb.UpdateMessageResponse(message=message_to_pb(message))

    async def DeleteMessage(
        self, request: pb.DeleteMessageRequest, context: Context
    ) -> pb.DeleteMessageResponse:
        """Take a message out of its thread."""
        await self._messages.delete(
            current_principal().project, request.thread_id, request.message_id
        )
        return pb.DeleteMessageResponse()
