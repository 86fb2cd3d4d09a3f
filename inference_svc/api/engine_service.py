"""Servicer of `EngineService`: what operators see and steer."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import NoReturn

import grpc
from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import engine_service_pb2_grpc as rpc

from inference_svc.api import describe
from inference_svc.api.adapter_loading import AdapterLoading, AdapterOrder
from inference_svc.api.paging import page
from inference_svc.api.snapshots import Snapshots
from inference_svc.api.streams import seconds
from inference_svc.runtime.adapters import Adapter
from inference_svc.runtime.worker import EngineState, EngineWorker
from svc_kit.auth import current_principal
from svc_kit.errors import FeatureUnsupported, MissingField, OutOfRange, TooLong
from svc_kit.scopes import Scope

Context = grpc.aio.ServicerContext[object, object]
MAX_ABORTS = 1000
MIN_WATCH_INTERVAL_S = 0.1
FEATURES = (
    *("adapters", "chat", "embed", "generate", "logprobs", "rerank", "resume", "snapshots"),
    *("speculation", "tokenize", "tools"),
)

_STATES = {
    EngineState.STARTING: pb.ENGINE_STATE_STARTING,
    EngineState.SERVING: pb.ENGINE_STATE_SERVING,
    EngineState.DRAINING: pb.ENGINE_STATE_DRAINING,
    EngineState.RESTARTING: pb.ENGINE_STATE_RESTARTING,
}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What does not change while the server runs."""

    limits: pb.RequestLimits
    started_at: float


class EngineServicer(rpc.EngineServiceServicer):
    """The operators' plane over gRPC. Methods of later releases answer FEATURE_UNSUPPORTED."""

    def __init__(
        self,
        worker: EngineWorker,
        facts: ServerFacts,
        adapters: AdapterLoading,
        snapshots: Snapshots,
    ) -> None:
        self._worker = worker
        self._adapters = adapters
        self._facts = facts
        self._snapshots = snapshots

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Version, capabilities, limits."""
        return pb.GetServerInfoResponse(
            version=version("corral"),
            llama_cpp_version=version("llama-cpp-python"),
            system_info=self._worker.system_info,
            features=FEATURES,
            uptime=seconds(time.monotonic() - self._facts.started_at),
            engine_state=_STATES[self._worker.state],
            engine_restarts=self._worker.restarts,
            engine_pid=self._worker.pid,
            limits=self._facts.limits,
        )

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        """How busy the engine is."""
        return pb.GetLoadResponse(load=describe.load(self._worker))

    async def WatchLoad(
        self, request: pb.WatchLoadRequest, context: Context
    ) -> AsyncIterator[pb.WatchLoadResponse]:
        """The load, again and again, until the caller has enough."""
        interval_s = 1.0
        if request.HasField("interval"):
            interval_s = request.interval.ToTimedelta().total_seconds()
        if interval_s < MIN_WATCH_INTERVAL_S:
            raise OutOfRange(field="interval", value=interval_s, minimum=MIN_WATCH_INTERVAL_S)
        while True:
            yield pb.WatchLoadResponse(load=describe.load(self._worker))
            await asyncio.sleep(interval_s)

    async def ListRequests(
        self, request: pb.ListRequestsRequest, context: Context
    ) -> pb.ListRequestsResponse:
        """What waits and runs; a caller without the admin scope sees its own project."""
        requests = describe.live_requests(self._worker, project=_visible_project())
        shown, next_token = page(requests, request.page_size, request.page_token)
        return pb.ListRequestsResponse(requests=shown, next_page_token=next_token)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End requests; ids that are not live (or another project's) are no error."""
        if not request.request_ids:
            raise MissingField(field="request_ids")
        if len(request.request_ids) > MAX_ABORTS:
            raise TooLong(field="request_ids", length=len(request.request_ids), limit=MAX_ABORTS)
        project = _visible_project()
        return pb.AbortResponse(
            outcomes=[
                pb.AbortOutcome(
                    request_id=request_id,
                    kind=pb.AbortOutcome.KIND_ABORTED
                    if self._worker.abort(request_id, project=project)
                    else pb.AbortOutcome.KIND_NOT_RUNNING,
                )
                for request_id in request.request_ids
            ]
        )

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Take nothing new."""
        self._worker.drain()
        running = {item.generation.request_id for item in self._worker.live.values()}
        num_embedding = len(self._worker.embeddings.live)
        return pb.DrainResponse(num_requests=len(running) + num_embedding)

    async def Undrain(self, request: pb.UndrainRequest, context: Context) -> pb.UndrainResponse:
        """Take new requests again."""
        self._worker.undrain()
        return pb.UndrainResponse()

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> NoReturn:
        """Not in this release."""
        raise FeatureUnsupported(feature="loading models at run time")

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> NoReturn:
        """Not in this release."""
        raise FeatureUnsupported(feature="unloading models at run time")

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        """A new generation under the name."""
        order = AdapterOrder(
            request.name,
            request.model,
            request.path,
            request.digest,
            request.default_scale if request.HasField("default_scale") else 1.0,
        )
        return pb.LoadAdapterResponse(adapter=self._describe(await self._adapters.load(order)))

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Context
    ) -> pb.UnloadAdapterResponse:
        """Forget a name; the memory is freed when nothing uses it."""
        adapter = self._worker.adapters.unload(request.name)
        return pb.UnloadAdapterResponse(adapter=self._describe(adapter))

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: Context
    ) -> pb.ListAdaptersResponse:
        """Every generation that is in memory."""
        every = [self._describe(adapter) for adapter in self._worker.adapters.all()]
        shown, next_token = page(every, request.page_size, request.page_token)
        return pb.ListAdaptersResponse(adapters=shown, next_page_token=next_token)

    def _describe(self, adapter: Adapter) -> adapter_pb2.Adapter:
        requests = self._worker.adapters.count_requests(adapter)
        return describe.adapter(adapter, num_running=requests)

    async def SaveSnapshot(
        self, request: pb.SaveSnapshotRequest, context: Context
    ) -> pb.SaveSnapshotResponse:
        """Write the state of a running or kept sequence to a file."""
        return await self._snapshots.save(request)

    async def RestoreSnapshot(
        self, request: pb.RestoreSnapshotRequest, context: Context
    ) -> pb.RestoreSnapshotResponse:
        """Read a state back into memory."""
        return await self._snapshots.restore(request)

    async def DropSnapshots(
        self, request: pb.DropSnapshotsRequest, context: Context
    ) -> pb.DropSnapshotsResponse:
        """Delete saved states."""
        return await self._snapshots.drop(request)

    async def FlushCache(
        self, request: pb.FlushCacheRequest, context: Context
    ) -> pb.FlushCacheResponse:
        """Forget idle and saved prefixes."""
        return pb.FlushCacheResponse(num_tokens=await self._worker.flush())


def _visible_project() -> str | None:
    """The project whose requests the caller may see; None for all."""
    principal = current_principal()
    return None if principal.has(Scope.ADMIN) else principal.project
