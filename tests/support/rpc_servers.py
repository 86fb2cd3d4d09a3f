"""A gRPC server on a free port with a scripted inference service."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2_grpc as pb_grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.empty_pb2 import Empty
from prometheus_client import CollectorRegistry, generate_latest

from svc_kit.auth.authenticator import Authenticator
from svc_kit.rpc.client import open_channel
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import UpstreamTlsSettings

SERVICE = "corral.inference.v1.InferenceService"
METHOD = f"/{SERVICE}/"

Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[Any, Context], AsyncGenerator[Any, None]]


def allow_all() -> Authenticator:
    """Return an authenticator that grants all scopes without a key."""
    return Authenticator(keyless=["inference", "admin"])


def add_service_without_scopes() -> str:
    """Describe a service, whose method Call has no options, and return its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/bare_service.proto", package="tests", dependency=[Empty.DESCRIPTOR.file.name]
    )
    empty = f".{Empty.DESCRIPTOR.full_name}"
    file.service.add(name="BareService").method.add(
        name="Call", input_type=empty, output_type=empty
    )
    descriptor_pool.Default().Add(file)
    return "tests.BareService"


async def two_tokens(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
    """Return the token ids 1 and 2 for every text."""
    return pb.TokenizeResponse(token_ids=[1, 2])


async def three_events(
    request: pb.GenerateRequest, context: Context
) -> AsyncGenerator[pb.GenerateResponse, None]:
    for number in range(3):
        yield pb.GenerateResponse(sequence_number=number)


class ScriptedInference(pb_grpc.InferenceServiceServicer):
    """Tokenize and Generate are the given functions; other methods are unimplemented."""

    def __init__(self, tokenize: Unary = two_tokens, generate: Stream = three_events) -> None:
        self._tokenize = tokenize
        self._generate = generate

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return await self._tokenize(request, context)

    async def Generate(self, request: Any, context: Any) -> Any:
        async with aclosing(self._generate(request, context)) as events:
            async for event in events:
                yield event


class EndlessStream:
    """A stream that sends one event and never ends; `ended` is set when it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield one event, then wait until the call is cancelled."""
        try:
            yield pb.GenerateResponse(sequence_number=0)
            self.began.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@dataclass
class Running:
    server: RpcServer
    channel: grpc.aio.Channel
    registry: CollectorRegistry = field(repr=False)

    @property
    def target(self) -> str:
        return str(self.server.address)

    @property
    def stub(self) -> "pb_grpc.InferenceServiceAsyncStub":
        return stub_on(self.channel)

    def metrics(self) -> dict[str, float]:
        """Return the value of every exported sample, keyed by name and labels."""
        lines = generate_latest(self.registry).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


def stub_on(channel: grpc.aio.Channel) -> "pb_grpc.InferenceServiceAsyncStub":
    return pb_grpc.InferenceServiceStub(channel)


@asynccontextmanager
async def run_rpc_server(
    servicer: ScriptedInference | None = None,
    *,
    authenticator: Authenticator | None = None,
    client_tls: UpstreamTlsSettings | None = None,
    **server: Any,
) -> AsyncIterator[Running]:
    """Serve the inference service on a free loopback port; `server` goes to RpcServer."""
    registry = CollectorRegistry()
    service = Service(
        pb_grpc.add_InferenceServiceServicer_to_server, servicer or ScriptedInference(), SERVICE
    )
    options: dict[str, Any] = {"listen": "127.0.0.1:0", **server}
    running = RpcServer(
        [service],
        authenticator=authenticator or allow_all(),
        registry=registry,
        **options,
    )
    await running.start()
    running.set_serving(True)
    channel = open_channel(str(running.address), tls=client_tls)
    try:
        yield Running(running, channel, registry)
    finally:
        await channel.close()
        await running.drain(0)
