"""The gRPC client of the control service: stubs of its services and one way to call them.

A route names the method and builds the request:
`await control.call(control.files.GetFile, GetFileRequest(file_id=...), caller)`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc.aio
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub
from corral.control.v1.upload_service_pb2_grpc import UploadServiceStub
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from google.protobuf.message import Message

from gateway.auth import Caller, Credentials
from gateway.calls import StreamCall, UnaryCall
from gateway.upload_call import UploadCall
from svc_kit.rpc.client import translate_errors

SERVICE: Final = "control"
UNARY_TIMEOUT_S: Final = 30.0
SEARCH_TIMEOUT_S: Final = 120.0
"""Deadline of a search, which may have to load a model first."""
RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT")


class ControlClient:
    """The services of the control service over one channel.

    `transfer_timeout_s` is the deadline of calls that transfer files or generate. Calls raise the
    service's DomainErrors, and UpstreamUnavailable if it is unreachable.
    """

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        self._credentials = credentials
        self.transfer_timeout_s = transfer_timeout_s
        self.adapters = AdapterServiceStub(channel)
        self.assistants = AssistantServiceStub(channel)
        self.batches = BatchServiceStub(channel)
        self.conversations = ConversationServiceStub(channel)
        self.files = FileServiceStub(channel)
        self.messages = MessageServiceStub(channel)
        self.responses = ResponseServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.threads = ThreadServiceStub(channel)
        self.uploads = UploadServiceStub(channel)
        self.vector_stores = VectorStoreServiceStub(channel)
        self.vector_store_files = VectorStoreFileServiceStub(channel)

    async def call(
        self,
        method: Callable[..., Awaitable[ReplyT]],
        request: Message,
        caller: Caller,
        *,
        timeout_s: float = UNARY_TIMEOUT_S,
    ) -> ReplyT:
        """Call a unary method as the caller and return its reply."""
        metadata = self._credentials.for_caller(caller)
        with translate_errors(SERVICE):
            return await method(request, timeout=timeout_s, metadata=metadata)

    def unary(
        self,
        method: Callable[..., grpc.aio.UnaryUnaryCall[Any, ReplyT]],
        request: Message,
        caller: Caller,
    ) -> UnaryCall[ReplyT]:
        """Start a unary method that generates. The call can be stopped."""
        return UnaryCall(method(request, **self._transfer_options(caller)), SERVICE)

    def stream(
        self,
        method: Callable[..., grpc.aio.UnaryStreamCall[Any, ReplyT]],
        request: Message,
        caller: Caller,
    ) -> StreamCall[ReplyT]:
        """Start a server-streaming method."""
        return StreamCall(method(request, **self._transfer_options(caller)), SERVICE)

    def upload(
        self, method: Callable[..., grpc.aio.StreamUnaryCall[RequestT, ReplyT]], caller: Caller
    ) -> UploadCall[RequestT, ReplyT]:
        """Start a client-streaming method."""
        return UploadCall(method(**self._transfer_options(caller)), SERVICE)

    def _transfer_options(self, caller: Caller) -> dict[str, Any]:
        return {
            "timeout": self.transfer_timeout_s,
            "metadata": self._credentials.for_caller(caller),
        }
