"""Servicer of `ThreadService`: convert, call, convert."""

import grpc
from corral.control.v1 import thread_service_pb2 as pb
from corral.control.v1 import thread_service_pb2_grpc as rpc

from control_svc.api.conversation_convert import conversation_to_pb
from control_svc.api.convert import page_request
from control_svc.api.thread_convert import new_thread, thread_edit, thread_to_pb
from control_svc.usecases.threads import Threads
from svc_kit.auth import current_principal

Context = grpc.aio.ServicerContext[object, object]


class ThreadServicer(rpc.ThreadServiceServicer):
    """Threads over gRPC."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def CreateThread(
        self, request: pb.CreateThreadRequest, context: Context
    ) -> pb.CreateThreadResponse:
        """Begin a thread."""
        thread = await self._threads.create(current_principal().project, new_thread(request))
        return pb.CreateThreadResponse(thread=thread_to_pb(thread))

    async def GetThread(
        self, request: pb.GetThreadRequest, context: Context
    ) -> pb.GetThreadResponse:
        """Describe a thread."""
        thread = await self._threads.get(current_principal().project, request.thread_id)
        return pb.GetThreadResponse(thread=thread_to_pb(thread))

    async def ListThreads(
        self, request: pb.ListThreadsRequest, context: Context
    ) -> pb.ListThreadsResponse:
        """List the project's threads."""
        page = await self._threads.page(current_principal().project, page_request(request))
        threads = [thread_to_pb(thread) for thread in page.items]
        return pb.ListThreadsResponse(threads=threads, next_page_token=page.next_token)

    async def UpdateThread(
        self, request: pb.UpdateThreadRequest, context: Context
    ) -> pb.UpdateThreadResponse:
        """Change a thread."""
        changes = request.thread
        edit = thread_edit(changes, request.update_mask)
        thread = await self._threads.update(
            current_principal().project, changes.id, edit, changes.etag
        )
        return pb.UpdateThreadResponse(thread=thread_to_pb(thread))

    async def DeleteThread(
        self, request: pb.DeleteThreadRequest, context: Context
    ) -> pb.DeleteThreadResponse:
        """Delete a thread."""
        await self._threads.delete(current_principal().project, request.thread_id)
        return pb.DeleteThreadResponse()

    async def MigrateThread(
        self, request: pb.MigrateThreadRequest, context: Context
    ) -> pb.MigrateThreadResponse:
        """Make a conversation of a thread."""
        made = await self._threads.migrate(
            current_principal().project, request.thread_id, request.request_id
        )
        return pb.MigrateThreadResponse(conversation=conversation_to_pb(made))
