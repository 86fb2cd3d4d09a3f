"""Replicas of a scripted inference service on free ports, and a channel to all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import engine_service_pb2_grpc as engine_rpc
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import inference_service_pb2_grpc as pb_grpc
from corral.inference.v1.model_pb2 import Model
from prometheus_client import CollectorRegistry

from svc_kit.auth.authenticator import Authenticator
from svc_kit.errors import AdapterNotFound, DomainError, ModelNotFound, SnapshotNotFound
from svc_kit.metrics import MoveMetrics
from svc_kit.rpc.interceptors import may_move
from svc_kit.rpc.orca import orca_service
from svc_kit.rpc.replica_channel import open_replica_channel
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import ServiceTlsSettings, UpstreamTlsSettings
from tests.support.rpc_servers import SERVICE, Context, ScriptedInference, allow_all, stub_on

NUM_TOKENS = 8
SEED = 7


@dataclass
class Replica:
    """One server. Its answers count to `NUM_TOKENS`, behind the tokens of `resume`."""

    refuses_movable: DomainError | None = None
    """Raised for generations with x-may-move."""
    refuses: DomainError | None = None
    """Raised for generations, lists of models and Tokenize."""
    refuses_resumed: DomainError | None = None
    """Raised for generations with `resume`."""
    fails_with: DomainError | None = None
    """Raised once, or, if it `keeps_failing`, always, before token number `fails_at`."""
    fails_at: int = 0
    keeps_failing: bool = False
    load: float = 0.5
    digest: str = ""
    knows_ids: bool = True
    """Else it is an engine in text mode."""
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    may_answer: asyncio.Event | None = None
    """Generations wait for it, if it is set."""
    may_reply: asyncio.Event | None = None
    """Tokenize and calls about models wait for it, if it is set."""
    num_unary: int = 0
    name: str = ""
    age_s: int = 0
    """Of the requests that run."""
    models: list[Model] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    snapshots: list[str] | None = None
    """None: those of all names."""
    operators_get: DomainError | None = None
    """Raised for calls of the engine service."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each load report."""

    async def generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Send the events of a stream, one token a delta."""
        if self.refuses_movable is not None and may_move():
            raise self.refuses_movable
        self.check_model(request.model)
        if self.refuses is not None:
            raise self.refuses
        if self.refuses_resumed is not None and request.options.resume:
            raise self.refuses_resumed
        for each in request.options.adapters:
            if each.adapter not in self.adapters:
                raise AdapterNotFound(adapter=each.adapter)
        self.requests.append(request)
        if self.may_answer is not None:
            await self.may_answer.wait()
        resumed = [*request.options.resume[0].output_token_ids] if request.options.resume else []
        for message in self._messages(request, len(resumed)):
            at_token = int(message.delta.text or -1)
            if message.HasField("delta"):
                self._check_snapshots(request)
            if self.fails_with is not None and at_token >= self.fails_at:
                error = self.fails_with
                self.fails_with = error if self.keeps_failing else None
                raise error
            yield message

    def _check_snapshots(self, request: pb.GenerateRequest) -> None:
        """As engines do, behind `started`. Raises SnapshotNotFound."""
        named = filter(None, (each.snapshot_id for each in request.options.resume))
        for each in named:
            if self.snapshots is not None and each not in self.snapshots:
                raise SnapshotNotFound(snapshot=each)

    def _messages(self, request: Any, start: int) -> list[pb.GenerateResponse]:
        accepted: Any = {"seed": SEED, "model": "m", "model_digest": self.digest}
        if not self.knows_ids:
            accepted["ignored_options"] = ["output.token_ids"]
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
        if not (request.options.output.token_ids and self.knows_ids):
            for message in messages:
                message.delta.ClearField("token_ids") if message.HasField("delta") else None
        return messages

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        self.check_model(request.model)
        self.num_unary += 1
        if self.refuses is not None:
            raise self.refuses
        if self.may_reply is not None:
            await self.may_reply.wait()
        return pb.TokenizeResponse(token_ids=[1])

    def check_model(self, name: str) -> Model:
        """The model of a name; requests may name none. Raises ModelNotFound."""
        found = [each for each in (*self.models, Model()) if each.name == name]
        if not found:
            raise ModelNotFound(model=name)
        return found[0]

    def utilization(self) -> float:
        self.reported.set()
        return self.load


class ListingInference(ScriptedInference):
    """The inference service of a replica, with its models, each on a page."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica.tokenize, replica.generate)  # type: ignore[arg-type]
        self._replica = replica

    async def ListModels(self, request: Any, context: Any) -> pb.ListModelsResponse:
        if self._replica.refuses is not None:
            raise self._replica.refuses
        if self._replica.may_reply is not None:
            await self._replica.may_reply.wait()
        page, models = int(request.page_token or 0), self._replica.models
        return pb.ListModelsResponse(
            models=models[page : page + 1],
            next_page_token=str(page + 1) if page + 1 < len(models) else "",
        )

    async def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:
        if self._replica.may_reply is not None:
            await self._replica.may_reply.wait()
        return pb.GetModelResponse(model=self._replica.check_model(request.model))


class ScriptedEngine(engine_rpc.EngineServiceServicer):
    """The engine service of a replica: one request runs, named by the replica's `name`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def _check(self) -> None:
        if self._replica.operators_get is not None:
            raise self._replica.operators_get

    async def GetLoad(self, request: Any, context: Any) -> engine_pb.GetLoadResponse:
        self._check()
        load = {
            "num_slots": 2,
            "num_running": 1,
            "draining": self._replica.name == "b",
            "queues": [{"priority": "PRIORITY_BATCH", "num_requests": 1, "oldest": {"seconds": 3}}],
            "models": [{"model": "m", "num_slots": 2}],
            "embedding": {"num_inputs": 4},
            "step_times": [{"num_rows": 1, "duration": {"seconds": 2}}],
            "step_histograms": [
                {"bounds": [{"seconds": 1}], "counts": [1, 2], "sum": {"seconds": 3}}
            ],
        }
        return engine_pb.GetLoadResponse(load=load)

    async def ListRequests(self, request: Any, context: Any) -> engine_pb.ListRequestsResponse:
        """Two pages of a request each."""
        self._check()
        page = int(request.page_token or 0)
        return engine_pb.ListRequestsResponse(
            requests=[
                {
                    "request_id": f"{self._replica.name}{page}",
                    "age": {"seconds": self._replica.age_s},
                }
            ],
            next_page_token="" if page else "1",
        )

    async def ListSessions(self, request: Any, context: Any) -> engine_pb.ListSessionsResponse:
        """A session that both replicas have, with a turn at each, and on another page one of its
        own."""
        self._check()
        name, end_time = self._replica.name, {"seconds": self._replica.age_s}
        turn: Any = {"request_id": name, "end_time": end_time}
        both: Any = {"session_id": "both", "end_time": end_time, "num_turns": 1, "turns": [turn]}
        return engine_pb.ListSessionsResponse(
            sessions=[{"session_id": name} if request.page_token else both],
            record_time=end_time,
            next_page_token="" if request.page_token else "1",
        )

    async def Abort(self, request: Any, context: Any) -> engine_pb.AbortResponse:
        self._check()
        outcomes = [
            {
                "request_id": request_id,
                "kind": "KIND_ABORTED"
                if request_id.startswith(self._replica.name)
                else "KIND_NOT_RUNNING",
            }
            for request_id in request.request_ids
        ]
        return engine_pb.AbortResponse(outcomes=outcomes)

    async def LoadModel(self, request: Any, context: Any) -> engine_pb.LoadModelResponse:
        self._check()
        self._replica.loaded.append(request.model)
        return engine_pb.LoadModelResponse(model={"name": request.model, "size_bytes": 5})

    async def SaveSnapshot(self, request: Any, context: Any) -> engine_pb.SaveSnapshotResponse:
        self._check()
        return engine_pb.SaveSnapshotResponse(snapshot={"id": f"snap_{self._replica.name}"})

    async def RestoreSnapshot(
        self, request: Any, context: Any
    ) -> engine_pb.RestoreSnapshotResponse:
        self._check()
        return engine_pb.RestoreSnapshotResponse(prompt_token_ids=[1, 2])

    async def DropSnapshots(self, request: Any, context: Any) -> engine_pb.DropSnapshotsResponse:
        self._check()
        return engine_pb.DropSnapshotsResponse(num_dropped=2)


@dataclass
class Replicas:
    """Servers, and a channel over all."""

    replicas: Sequence[Replica]
    servers: Sequence[RpcServer]
    channel: grpc.aio.Channel
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    """The metrics of the channel."""

    @property
    def engine(self) -> "engine_rpc.EngineServiceAsyncStub":
        stub: Any = engine_rpc.EngineServiceStub(self.channel)
        return cast("engine_rpc.EngineServiceAsyncStub", stub)

    @property
    def addresses(self) -> list[str]:
        return [str(server.address) for server in self.servers]

    @property
    def stub(self) -> "pb_grpc.InferenceServiceAsyncStub":
        return stub_on(self.channel)

    async def generate(
        self, request: pb.GenerateRequest, *metadata: tuple[str, str]
    ) -> list[pb.GenerateResponse]:
        """All messages of a generation. Raises AioRpcError."""
        call = self.stub.Generate(request, timeout=20, metadata=metadata)
        return [message async for message in call]

    def num_moves(self, reason: str, outcome: str) -> float | None:
        """How many generations a replica refused or lost."""
        labels = {"reason": reason, "outcome": outcome}
        return self.registry.get_sample_value("corral_generation_moves_total", labels)

    async def home_of(self, text: str) -> int:
        """The number of the replica that answers a prompt."""
        before = [len(replica.requests) for replica in self.replicas]
        await self.generate(pb.GenerateRequest(text=text))
        after = [len(replica.requests) for replica in self.replicas]
        return next(i for i, count in enumerate(after) if count > before[i])


@asynccontextmanager
async def run_replicas(
    count: int = 2,
    *,
    outlives_engines: bool = True,
    by_name: bool = False,
    tls: ServiceTlsSettings | None = None,
    client_tls: UpstreamTlsSettings | None = None,
    start_balancer: Callable[[Sequence[RpcServer]], AbstractAsyncContextManager[str]] | None = None,
) -> AsyncIterator[Replicas]:
    """Serve `count` replicas; the channel has their addresses, or the name of the first one, and
    the address of a proxy before them, if one is started."""
    replicas = [Replica(name=name) for name in "abc"[:count]]
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serve_replica(replica, tls=tls)) for replica in replicas
        ]
        target = ",".join(str(server.address) for server in servers)
        if by_name:
            target = f"dns:///localhost:{servers[0].address.port}"
        balancer = None
        if start_balancer is not None:
            balancer = await stack.enter_async_context(start_balancer(servers))
        registry = CollectorRegistry()
        channel = open_replica_channel(
            target,
            balancer=balancer,
            tls=client_tls,
            outlives_engines=outlives_engines,
            metrics=MoveMetrics(registry),
        )
        await stack.enter_async_context(channel)
        yield Replicas(replicas, servers, channel, registry)


@asynccontextmanager
async def serve_replica(
    replica: Replica,
    authenticator: Authenticator | None = None,
    *,
    listen: str = "127.0.0.1:0",
    tls: ServiceTlsSettings | None = None,
) -> AsyncIterator[RpcServer]:
    add = pb_grpc.add_InferenceServiceServicer_to_server
    scripted: Any = ListingInference(replica)
    server = RpcServer(
        [
            Service(add, scripted, SERVICE),
            Service(
                engine_rpc.add_EngineServiceServicer_to_server,
                ScriptedEngine(replica),
                "corral.inference.v1.EngineService",
            ),
            orca_service(replica.utilization),
        ],
        listen=listen,
        authenticator=authenticator or allow_all(),
        registry=CollectorRegistry(),
        tls=tls,
    )
    await server.start()
    server.set_serving(True)
    try:
        yield server
    finally:
        await server.drain(0)
