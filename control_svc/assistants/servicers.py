"""The gRPC servicers of assistants, threads and messages."""

from corral.control.v1 import assistant_service_pb2 as assistant_pb
from corral.control.v1 import assistant_service_pb2_grpc as assistant_rpc
from corral.control.v1 import message_service_pb2 as message_pb
from corral.control.v1 import message_service_pb2_grpc as message_rpc
from corral.control.v1 import thread_service_pb2 as thread_pb
from corral.control.v1 import thread_service_pb2_grpc as thread_rpc

from control_svc.assistants.assistants import Assistants
from control_svc.assistants.message_model import AddedMessage
from control_svc.assistants.messages import Messages
from control_svc.assistants.proto import (
    ASSISTANT,
    MESSAGE,
    NEW_ASSISTANT,
    NEW_MESSAGE,
    NEW_THREAD,
    THREAD,
    assistant_edit,
    message_metadata,
    thread_edit,
)
from control_svc.assistants.threads import Threads
from control_svc.base.proto import Context, caller_project, page_request
from control_svc.conversations.servicer import CONVERSATION


class AssistantServicer(assistant_rpc.AssistantServiceServicer):
    """Assistants over gRPC."""

    def __init__(self, assistants: Assistants) -> None:
        self._assistants = assistants

    async def CreateAssistant(
        self, request: assistant_pb.CreateAssistantRequest, context: Context
    ) -> assistant_pb.CreateAssistantResponse:
        """Create an assistant."""
        assistant = await self._assistants.create(
            caller_project(), NEW_ASSISTANT.from_message(request)
        )
        return assistant_pb.CreateAssistantResponse(assistant=ASSISTANT.to_message(assistant))

    async def GetAssistant(
        self, request: assistant_pb.GetAssistantRequest, context: Context
    ) -> assistant_pb.GetAssistantResponse:
        """Return an assistant."""
        assistant = await self._assistants.get(caller_project(), request.assistant_id)
        return assistant_pb.GetAssistantResponse(assistant=ASSISTANT.to_message(assistant))

    async def ListAssistants(
        self, request: assistant_pb.ListAssistantsRequest, context: Context
    ) -> assistant_pb.ListAssistantsResponse:
        """List the project's assistants."""
        page = await self._assistants.page(caller_project(), page_request(request))
        assistants = [ASSISTANT.to_message(assistant) for assistant in page.items]
        return assistant_pb.ListAssistantsResponse(
            assistants=assistants, next_page_token=page.next_token
        )

    async def UpdateAssistant(
        self, request: assistant_pb.UpdateAssistantRequest, context: Context
    ) -> assistant_pb.UpdateAssistantResponse:
        """Update an assistant."""
        changes = request.assistant
        edit = assistant_edit(changes, request.update_mask)
        assistant = await self._assistants.update(caller_project(), changes.id, edit, changes.etag)
        return assistant_pb.UpdateAssistantResponse(assistant=ASSISTANT.to_message(assistant))

    async def DeleteAssistant(
        self, request: assistant_pb.DeleteAssistantRequest, context: Context
    ) -> assistant_pb.DeleteAssistantResponse:
        """Delete an assistant."""
        await self._assistants.delete(caller_project(), request.assistant_id)
        return assistant_pb.DeleteAssistantResponse()


class ThreadServicer(thread_rpc.ThreadServiceServicer):
    """Threads over gRPC."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def CreateThread(
        self, request: thread_pb.CreateThreadRequest, context: Context
    ) -> thread_pb.CreateThreadResponse:
        """Create a thread."""
        thread = await self._threads.create(caller_project(), NEW_THREAD.from_message(request))
        return thread_pb.CreateThreadResponse(thread=THREAD.to_message(thread))

    async def GetThread(
        self, request: thread_pb.GetThreadRequest, context: Context
    ) -> thread_pb.GetThreadResponse:
        """Return a thread."""
        thread = await self._threads.get(caller_project(), request.thread_id)
        return thread_pb.GetThreadResponse(thread=THREAD.to_message(thread))

    async def ListThreads(
        self, request: thread_pb.ListThreadsRequest, context: Context
    ) -> thread_pb.ListThreadsResponse:
        """List the project's threads."""
        page = await self._threads.page(caller_project(), page_request(request))
        threads = [THREAD.to_message(thread) for thread in page.items]
        return thread_pb.ListThreadsResponse(threads=threads, next_page_token=page.next_token)

    async def UpdateThread(
        self, request: thread_pb.UpdateThreadRequest, context: Context
    ) -> thread_pb.UpdateThreadResponse:
        """Update a thread."""
        changes = request.thread
        edit = thread_edit(changes, request.update_mask)
        thread = await self._threads.update(caller_project(), changes.id, edit, changes.etag)
        return thread_pb.UpdateThreadResponse(thread=THREAD.to_message(thread))

    async def DeleteThread(
        self, request: thread_pb.DeleteThreadRequest, context: Context
    ) -> thread_pb.DeleteThreadResponse:
        """Delete a thread."""
        await self._threads.delete(caller_project(), request.thread_id)
        return thread_pb.DeleteThreadResponse()

    async def MigrateThread(
        self, request: thread_pb.MigrateThreadRequest, context: Context
    ) -> thread_pb.MigrateThreadResponse:
        """Create a conversation with the items of a thread."""
        conversation = await self._threads.migrate(
            caller_project(), request.thread_id, request.request_id
        )
        return thread_pb.MigrateThreadResponse(conversation=CONVERSATION.to_message(conversation))


class MessageServicer(message_rpc.MessageServiceServicer):
    """Messages over gRPC."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def CreateMessage(
        self, request: message_pb.CreateMessageRequest, context: Context
    ) -> message_pb.CreateMessageResponse:
        """Append a message to a thread."""
        new = AddedMessage(
            thread_id=request.thread_id,
            message=NEW_MESSAGE.from_message(request.message),
            request_id=request.request_id,
        )
        message = await self._messages.create(caller_project(), new)
        return message_pb.CreateMessageResponse(message=MESSAGE.to_message(message))

    async def GetMessage(
        self, request: message_pb.GetMessageRequest, context: Context
    ) -> message_pb.GetMessageResponse:
        """Return a message."""
        message = await self._messages.get(caller_project(), request.thread_id, request.message_id)
        return message_pb.GetMessageResponse(message=MESSAGE.to_message(message))

    async def ListMessages(
        self, request: message_pb.ListMessagesRequest, context: Context
    ) -> message_pb.ListMessagesResponse:
        """List the messages of a thread."""
        page = await self._messages.page(
            caller_project(), request.thread_id, page_request(request), request.run_id
        )
        messages = [MESSAGE.to_message(message) for message in page.items]
        return message_pb.ListMessagesResponse(messages=messages, next_page_token=page.next_token)

    async def UpdateMessage(
        self, request: message_pb.UpdateMessageRequest, context: Context
    ) -> message_pb.UpdateMessageResponse:
        """Update the metadata of a message."""
        changes = request.message
        metadata = message_metadata(changes, request.update_mask)
        message = await self._messages.update(
            caller_project(), changes.thread_id, changes.id, metadata
        )
        return message_pb.UpdateMessageResponse(message=MESSAGE.to_message(message))

    async def DeleteMessage(
        self, request: message_pb.DeleteMessageRequest, context: Context
    ) -> message_pb.DeleteMessageResponse:
        """Delete a message."""
        await self._messages.delete(caller_project(), request.thread_id, request.message_id)
        return message_pb.DeleteMessageResponse()
