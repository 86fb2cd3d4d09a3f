"""Replicas of a scripted inference service on free ports, and a channel to all of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2_grpc as pb_grpc
from prometheus_client import CollectorRegistry

from svc_kit.auth.authenticator import Authenticator
from svc_kit.errors import DomainError
from svc_kit.rpc.interceptors import may_move
from svc_kit.rpc.orca import orca_service
from svc_kit.rpc.replica_channel import open_inference_channel
from svc_kit.rpc.server import RpcServer, Service
from tests.support.rpc_servers import SERVICE, Context, ScriptedInference, allow_all, stub_on

NUM_TOKENS = 8
SEED = 7


@dataclass
class Replica:
    """One server. Its answers count to `NUM_TOKENS`, behind the tokens of `resume`."""

    refuses_movable: DomainError | None = None
    """Raised for calls with x-may-move."""
    fails_with: DomainError | None = None
    """Raised once, before token number `fails_at`."""
    fails_at: int = 0
    load: float = 0.5
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    num_unary: int = 0
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each load report."""

    async def generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Send the events of a stream, one token a delta."""
        if self.refuses_movable is not None and may_move():
            raise self.refuses_movable
        self.requests.append(request)
        resumed = [*request.options.resume[0].output_token_ids] if request.options.resume else []
        for message in self._messages(request, len(resumed)):
            at_token = int(message.delta.text or -1)
            if self.fails_with is not None and at_token >= self.fails_at:
                error, self.fails_with = self.fails_with, None
                raise error
            yield message

    def _messages(self, request: Any, start: int) -> list[pb.GenerateResponse]:
        accepted: Any = {"seed": SEED, "model": "m"}
        deltas: list[Any] = [
            {"text": f"{number} ", "token_ids": [number], "num_tokens": 1}
            for number in range(start, NUM_TOKENS)
        ]
        events: list[Any] = [
            {"accepted": accepted},
            {"started": {"cached_tokens": start}},
            *({"delta": delta} for delta in deltas),
            {"finished": {"completion_tokens": NUM_TOKENS}},
            {"done": {"usage": {"cached_tokens": start}}},
        ]
        messages = [pb.GenerateResponse(sequence_number=i, **e) for i, e in enumerate(events)]
        if not request.options.output.token_ids:
            for message in messages:
                message.delta.ClearField("token_ids") if message.HasField("delta") else None
        return messages

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        self.num_unary += 1
        return pb.TokenizeResponse(token_ids=[1])

    def utilization(self) -> float:
        self.reported.set()
        return self.load


@dataclass
class Replicas:
    """Servers, and a channel over all."""

    replicas: Sequence[Replica]
    servers: Sequence[RpcServer]
    channel: grpc.aio.Channel

    @property
    def stub(self) -> "pb_grpc.InferenceServiceAsyncStub":
        return stub_on(self.channel)

    async def generate(self, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
        """All messages of a generation. Raises AioRpcError."""
        return [message async for message in self.stub.Generate(request, timeout=20)]

    async def home_of(self, text: str) -> int:
        """The number of the replica that answers a prompt."""
        before = [len(replica.requests) for replica in self.replicas]
        await self.generate(pb.GenerateRequest(text=text))
        after = [len(replica.requests) for replica in self.replicas]
        return next(i for i, count in enumerate(after) if count > before[i])


@asynccontextmanager
async def run_replicas(count: int = 2, *, outlives_engines: bool = True) -> AsyncIterator[Replicas]:
    """Serve `count` replicas."""
    replicas = [Replica() for _ in range(count)]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serve_replica(replica)) for replica in replicas]
        target = ",".join(str(server.address) for server in servers)
        channel = open_inference_channel(target, outlives_engines=outlives_engines)
        await stack.enter_async_context(channel)
        yield Replicas(replicas, servers, channel)


@asynccontextmanager
async def serve_replica(
    replica: Replica, authenticator: Authenticator | None = None
) -> AsyncIterator[RpcServer]:
    add = pb_grpc.add_InferenceServiceServicer_to_server
    scripted: Any = ScriptedInference(replica.tokenize, replica.generate)  # type: ignore[arg-type]
    server = RpcServer(
        [Service(add, scripted, SERVICE), orca_service(replica.utilization)],
        listen="127.0.0.1:0",
        authenticator=authenticator or allow_all(),
        registry=CollectorRegistry(),
    )
    await server.start()
    server.set_serving(True)
    try:
        yield server
    finally:
        await server.drain(0)
