"""The gRPC clients of the control and the inference service, and one way to call them.

A route gets a client for its caller, builds the request, which belongs to one method, and names the
type of its reply: `await control.call(GetFileRequest(file_id=...), GetFileResponse)`.
"""

import copy
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Self

import grpc.aio
from corral.inference.v1.inference_service_pb2 import (
    ChatRequest,
    GenerateRequest,
    GetModelRequest,
    GetModelResponse,
    ListModelsRequest,
    ListModelsResponse,
)
from corral.inference.v1.model_pb2 import Model
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from dialects.openai.errors import with_prompt_number
from dialects.shared.generation_fields import gather_output
from gateway.auth import Caller, Credentials, Metadata
from gateway.calls import CallGroup, Calls, StreamCall, UnaryCall, UploadCall
from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.client import ReplyT, call_unary, open_method, translate_errors
from svc_kit.rpc.movable_stream import WHOLE_KEY

PROBE_TIMEOUT_S: Final = 2.0
UNARY_TIMEOUT_S: Final = 30.0
SEARCH_TIMEOUT_S: Final = 120.0
"""Deadline of a search, which may have to load a model first."""


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
        self._channel = channel
        self._health = health_pb2_grpc.HealthStub(channel)
        self._methods: dict[type[Message], Callable[..., Any]] = {}
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
        self, request: Message, reply: type[ReplyT], *, timeout_s: float = UNARY_TIMEOUT_S
    ) -> ReplyT:
        """Call a unary method and return its reply. Raises TypeError if it has another type."""
        method = self._method(type(request))
        with translate_errors(self.service):
            return await call_unary(
                method, request, reply, timeout=timeout_s, metadata=self._metadata
            )

    async def pages(self, request: Any, reply: type[ReplyT]) -> AsyncIterator[ReplyT]:
        """Yield all pages of a list. Requests have a `page_token`, replies a `next_page_token`."""
        while True:
            page: Any = await self.call(request, reply)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def unary(self, request: Message) -> UnaryCall[Any]:
        """Start a unary method that generates. The call can be stopped."""
        return UnaryCall(self._start(request), self.service)

    def stream(self, request: Message) -> StreamCall[Any]:
        return StreamCall(self._start(request), self.service)

    def follow(self, request: Message) -> StreamCall[Any]:
        """Start a method that streams the events after a given one, possibly none."""
        return StreamCall(self._start(request), self.service, may_be_empty=True)

    def watch(self, request: Message) -> StreamCall[Any]:
        """Start a method that streams for as long as it is read, without a deadline."""
        call = self._method(type(request))(request, metadata=self._metadata)
        return StreamCall(call, self.service)

    def upload(self, request: type[Message]) -> UploadCall[Any, Any]:
        """Start a client-streaming method, to which requests of this type are then written."""
        return UploadCall(self._method(request)(**self._transfer_options), self.service)

    async def check_serving(self) -> None:
        """Raise UpstreamUnavailable unless the service is reachable and SERVING."""
        request = health_pb2.HealthCheckRequest(service=self.health_name)
        with translate_errors(self.service):
            reply = await self._health.Check(request, timeout=PROBE_TIMEOUT_S)
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            raise UpstreamUnavailable(service=self.service)

    def _with_metadata(self, key: str, value: str) -> Self:
        client = copy.copy(self)
        client._metadata = (*self._metadata, (key, value))
        return client

    @property
    def _transfer_options(self) -> dict[str, Any]:
        return {"timeout": self.transfer_timeout_s, "metadata": self._metadata}

    def _start(self, request: Message) -> Any:
        return self._method(type(request))(request, **self._transfer_options)

    def _method(self, request: type[Message]) -> Callable[..., Any]:
        """The callable of a method, as generated stubs have it."""
        if request not in self._methods:
            self._methods[request] = open_method(self._channel, request)
        return self._methods[request]


class ControlClient(RpcClient):
    """The services of the control service over one channel."""

    service = "control"


class InferenceClient(RpcClient):
    """The inference service over one channel."""

    service = "inference"
    health_name = "corral.inference.v1.InferenceService"

    async def get_model(self, name: str) -> Model:
        """A model by its name or an alias; an empty name is the server's first. Raises
        ModelNotFound, ModelLoading or ModelLoadFailed."""
        return (await self.call(GetModelRequest(model=name), GetModelResponse)).model

    async def list_models(self) -> list[Model]:
        """All models."""
        pages = self.pages(ListModelsRequest(), ListModelsResponse)
        return [model async for page in pages for model in page.models]

    def generate(
        self, requests: Sequence[ChatRequest | GenerateRequest], *, streams: bool = True
    ) -> Calls[Any]:
        """Start Chat or Generate for each request. `streams`: their tokens are sent when they
        come."""
        for request in requests:
            request.options.label = self._label
            if not streams:
                gather_output(request)
        client = self if streams else self._with_metadata(WHOLE_KEY, "1")
        starts = [functools.partial(client.stream, request) for request in requests]
        if len(starts) == 1:
            return starts[0]()
        return CallGroup(starts, self.service, with_prompt_number)
