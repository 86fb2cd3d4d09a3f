"""The gRPC clients of the control and the inference service: their stubs, and one way to call them.

A route gets a client for its caller, names the method and builds the request:
`await control.call(control.files.GetFile, GetFileRequest(file_id=...))`.
"""

import copy
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, Self, TypeVar

import grpc.aio
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub
from corral.control.v1.upload_service_pb2_grpc import UploadServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2 import ChatRequest, GenerateRequest
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from dialects.openai.errors import with_prompt_number
from gateway.auth import Caller, Credentials, Metadata
from gateway.calls import CallGroup, Calls, StreamCall, UnaryCall, UploadCall
from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.client import translate_errors

PROBE_TIMEOUT_S: Final = 2.0
UNARY_TIMEOUT_S: Final = 30.0
SEARCH_TIMEOUT_S: Final = 120.0
"""Deadline of a search, which may have to load a model first."""
RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT")


class Page(Protocol):
    """A page of a list."""

    next_page_token: str


PageT = TypeVar("PageT", bound=Page)


class RpcClient:
    """Calls methods of one service for the caller given to `for_caller`.

    `transfer_timeout_s` is the deadline of calls that transfer files or generate. Calls raise the
    service's DomainErrors, and UpstreamUnavailable if it is unreachable.
    """

    service: str
    """The name of the service in errors."""
    health_name = ""
    """The name of the service in health checks; empty: the whole server."""
    _metadata: Metadata
    _label: str

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)
        self._credentials = credentials
        self.transfer_timeout_s = transfer_timeout_s

    def for_caller(self, caller: Caller) -> Self:
        """This client, with the identity of a caller in its calls. Raises ApiKeyInvalid for a
        malformed key."""
        client = copy.copy(self)
        client._metadata = self._credentials.for_caller(caller)
        client._label = caller.label
        return client

    def for_service(self) -> Self:
        """This client, for calls on the gateway's own behalf."""
        client = copy.copy(self)
        client._metadata = self._credentials.for_service()
        client._label = ""
        return client

    async def call(
        self,
        method: Callable[..., Awaitable[ReplyT]],
        request: Message,
        *,
        timeout_s: float = UNARY_TIMEOUT_S,
    ) -> ReplyT:
        """Call a unary method and return its reply."""
        with translate_errors(self.service):
            return await method(request, timeout=timeout_s, metadata=self._metadata)

    async def pages(
        self, method: Callable[..., Awaitable[PageT]], request: Any
    ) -> AsyncIterator[PageT]:
        """Yield all pages of a list. `request` has a `page_token`."""
        while True:
            page = await self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def unary(
        self, method: Callable[..., grpc.aio.UnaryUnaryCall[Any, ReplyT]], request: Message
    ) -> UnaryCall[ReplyT]:
        """Start a unary method that generates. The call can be stopped."""
        return UnaryCall(method(request, **self._transfer_options), self.service)

    def stream(
        self, method: Callable[..., grpc.aio.UnaryStreamCall[Any, ReplyT]], request: Message
    ) -> StreamCall[ReplyT]:
        """Start a server-streaming method."""
        return StreamCall(method(request, **self._transfer_options), self.service)

    def follow(
        self, method: Callable[..., grpc.aio.UnaryStreamCall[Any, ReplyT]], request: Message
    ) -> StreamCall[ReplyT]:
        """Start a method that streams the events after a given one, possibly none."""
        call = method(request, **self._transfer_options)
        return StreamCall(call, self.service, may_be_empty=True)

    def watch(
        self, method: Callable[..., grpc.aio.UnaryStreamCall[Any, ReplyT]], request: Message
    ) -> StreamCall[ReplyT]:
        """Start a method that streams for as long as it is read, without a deadline."""
        return StreamCall(method(request, metadata=self._metadata), self.service)

    def upload(
        self, method: Callable[..., grpc.aio.StreamUnaryCall[RequestT, ReplyT]]
    ) -> UploadCall[RequestT, ReplyT]:
        """Start a client-streaming method."""
        return UploadCall(method(**self._transfer_options), self.service)

    async def check_serving(self) -> None:
        """Raise UpstreamUnavailable unless the service is reachable and SERVING."""
        request = health_pb2.HealthCheckRequest(service=self.health_name)
        with translate_errors(self.service):
            reply = await self._health.Check(request, timeout=PROBE_TIMEOUT_S)
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            raise UpstreamUnavailable(service=self.service)

    @property
    def _transfer_options(self) -> dict[str, Any]:
        return {"timeout": self.transfer_timeout_s, "metadata": self._metadata}


class ControlClient(RpcClient):
    """The services of the control service over one channel."""

    service = "control"

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(channel, credentials, transfer_timeout_s)
        self.adapters = AdapterServiceStub(channel)
        self.assistants = AssistantServiceStub(channel)
        self.audit = AuditServiceStub(channel)
        self.batches = BatchServiceStub(channel)
        self.conversations = ConversationServiceStub(channel)
        self.files = FileServiceStub(channel)
        self.keys = KeyServiceStub(channel)
        self.limits = LimitServiceStub(channel)
        self.messages = MessageServiceStub(channel)
        self.projects = ProjectServiceStub(channel)
        self.responses = ResponseServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.threads = ThreadServiceStub(channel)
        self.usage = UsageServiceStub(channel)
        self.uploads = UploadServiceStub(channel)
        self.vector_stores = VectorStoreServiceStub(channel)
        self.vector_store_files = VectorStoreFileServiceStub(channel)


class InferenceClient(RpcClient):
    """The inference service over one channel."""

    service = "inference"
    health_name = "corral.inference.v1.InferenceService"

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(channel, credentials, transfer_timeout_s)
        self.methods = InferenceServiceStub(channel)
        self.engine = EngineServiceStub(channel)

    def generate(
        self,
        method: Callable[..., grpc.aio.UnaryStreamCall[Any, ReplyT]],
        requests: Sequence[ChatRequest | GenerateRequest],
    ) -> Calls[ReplyT]:
        """Start Chat or Generate for each request."""
        for request in requests:
            request.options.label = self._label
        starts = [functools.partial(self.stream, method, request) for request in requests]
        if len(starts) == 1:
            return starts[0]()
        return CallGroup(starts, self.service, with_prompt_number)
