"""The gRPC client of the inference service."""

import functools
from collections.abc import Sequence

import grpc.aio
from corral.inference.v1 import inference_service_pb2, model_pb2
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from gateway.auth import Caller, Credentials
from gateway.calls import SERVICE, CallGroup, Calls, StreamCall, UnaryCall
from openai_wire.errors import with_prompt_number
from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.client import translate_errors

PROBE_TIMEOUT_S = 2.0
UNARY_TIMEOUT_S = 30.0
HEALTH_NAME = "corral.inference.v1.InferenceService"
ChatCalls = Calls[inference_service_pb2.ChatResponse]
GenerateCalls = Calls[inference_service_pb2.GenerateResponse]


class InferenceClient:
    """Calls the inference service over one channel. `timeout_s` is the deadline of generations."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, timeout_s: float
    ) -> None:
        self._stub = InferenceServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._credentials = credentials
        self._timeout_s = timeout_s

    def chat(self, request: inference_service_pb2.ChatRequest, caller: Caller) -> ChatCalls:
        """Start a chat completion."""
        request.options.label = caller.label
        metadata = self._credentials.for_caller(caller)
        return StreamCall(self._stub.Chat(request, timeout=self._timeout_s, metadata=metadata))

    def generate(
        self, requests: Sequence[inference_service_pb2.GenerateRequest], caller: Caller
    ) -> GenerateCalls:
        """Start a text completion for each prompt."""
        starts = [functools.partial(self._generate, request, caller) for request in requests]
        return starts[0]() if len(starts) == 1 else CallGroup(starts, with_prompt_number)

    def embed(
        self, request: inference_service_pb2.EmbedRequest, caller: Caller
    ) -> Calls[inference_service_pb2.EmbedResponse]:
        """Start the embedding of inputs."""
        metadata = self._credentials.for_caller(caller)
        return UnaryCall(self._stub.Embed(request, timeout=self._timeout_s, metadata=metadata))

    def rerank(
        self, request: inference_service_pb2.RerankRequest, caller: Caller
    ) -> Calls[inference_service_pb2.RerankResponse]:
        """Start the reranking of documents."""
        metadata = self._credentials.for_caller(caller)
        return UnaryCall(self._stub.Rerank(request, timeout=self._timeout_s, metadata=metadata))

    async def detokenize(self, model: str, tokens: Sequence[int], caller: Caller) -> str:
        """Convert tokens, including control tokens, to text. Raises the service's DomainErrors."""
        request = inference_service_pb2.DetokenizeRequest(
            model=model, token_ids=tokens, special_tokens=True
        )
        metadata = self._credentials.for_caller(caller)
        with translate_errors(SERVICE):
            reply = await self._stub.Detokenize(request, timeout=UNARY_TIMEOUT_S, metadata=metadata)
        return reply.text

    async def list_models(self, caller: Caller) -> list[model_pb2.Model]:
        """List the models of the caller. Raises the service's DomainErrors."""
        models: list[model_pb2.Model] = []
        request = inference_service_pb2.ListModelsRequest()
        metadata = self._credentials.for_caller(caller)
        while True:
            with translate_errors(SERVICE):
                page = await self._stub.ListModels(
                    request, timeout=UNARY_TIMEOUT_S, metadata=metadata
                )
            models.extend(page.models)
            if not page.next_page_token:
                return models
            request.page_token = page.next_page_token

    async def get_model(self, name: str, caller: Caller) -> model_pb2.Model:
        """Get a model. Raises ModelNotFound."""
        request = inference_service_pb2.GetModelRequest(model=name)
        metadata = self._credentials.for_caller(caller)
        with translate_errors(SERVICE):
            reply = await self._stub.GetModel(request, timeout=UNARY_TIMEOUT_S, metadata=metadata)
        return reply.model

    async def check_serving(self) -> None:
        """Raise UpstreamUnavailable unless the service is reachable and SERVING."""
        request = health_pb2.HealthCheckRequest(service=HEALTH_NAME)
        with translate_errors(SERVICE):
            reply = await self._health.Check(request, timeout=PROBE_TIMEOUT_S)
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            raise UpstreamUnavailable(service=SERVICE)

    def _generate(
        self, request: inference_service_pb2.GenerateRequest, caller: Caller
    ) -> StreamCall[inference_service_pb2.GenerateResponse]:
        request.options.label = caller.label
        metadata = self._credentials.for_caller(caller)
        return StreamCall(self._stub.Generate(request, timeout=self._timeout_s, metadata=metadata))
