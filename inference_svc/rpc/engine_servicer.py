"""The gRPC servicer of EngineService, for operators."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final

import grpc
from corral.inference.v1 import adapter_pb2, upstream_pb2
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import engine_service_pb2_grpc as rpc

from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineState
from inference_svc.model_pool.added_models import AddedModelsService
from inference_svc.model_pool.added_models_file import AddedModel, AddedUpstream
from inference_svc.model_pool.catalog import ModelEntry, ResolvedModel
from inference_svc.model_pool.pool import ModelPool
from inference_svc.rpc import load_info, model_info
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from inference_svc.rpc.explanation import Explanations
from inference_svc.rpc.model_info import to_limits
from inference_svc.rpc.pages import page
from inference_svc.rpc.request_options import to_seconds
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.rpc.streaming import seconds
from inference_svc.sessions import SessionLog, to_sessions
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import AdapterNotFound, FeatureUnsupported, InvalidField, MissingField
from svc_kit.off_loop import off_loop
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, encode_timestamp

Context = grpc.aio.ServicerContext[object, object]
FEATURES = (
    *("adapters", "chat", "embed", "generate", "logprobs", "models", "rerank", "resume"),
    *("snapshots", "speculation", "tokenize", "tools"),
)
_STATES: Final = EnumMapper[EngineState](EngineState, pb.EngineState, only_message=["FAILED"])


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Server properties that do not change while it runs."""

    limits: pb.RequestLimits
    started_at: float


class EngineServicer(rpc.EngineServiceServicer):
    """Implements EngineService over the model pool."""

    def __init__(
        self,
        pool: ModelPool,
        info: ServerInfo,
        adapters: AdapterService,
        snapshots: SnapshotService,
        added: AddedModelsService,
        explanations: Explanations,
        sessions: SessionLog,
    ) -> None:
        self._sessions = sessions
        self._pool = pool
        self._added = added
        self._adapters = adapters
        self._info = info
        self._snapshots = snapshots
        self._explanations = explanations

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Return version, features and limits. `engine_pid` is that of the first running engine."""
        engines = self._pool.catalog.engines
        return pb.GetServerInfoResponse(
            version=version("corral"),
            llama_cpp_version=version("llama-cpp-python"),
            system_info=next((each.system_info for each in engines if each.system_info), ""),
            features=FEATURES,
            uptime=seconds(time.monotonic() - self._info.started_at),
            engine_state=_STATES.encode(self._pool.state),
            engine_restarts=sum(each.restarts for each in engines),
            engine_pid=next((each.pid for each in engines if each.pid), 0),
            limits=self._info.limits,
        )

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        """Return the load of all engines."""
        return pb.GetLoadResponse(load=load_info.load(self._pool))

    async def WatchLoad(
        self, request: pb.WatchLoadRequest, context: Context
    ) -> AsyncIterator[pb.WatchLoadResponse]:
        """Stream the load at an interval."""
        interval_s = to_seconds(request.interval) if request.HasField("interval") else 1.0
        while True:
            yield pb.WatchLoadResponse(load=load_info.load(self._pool))
            await asyncio.sleep(interval_s)

    async def ListRequests(
        self, request: pb.ListRequestsRequest, context: Context
    ) -> pb.ListRequestsResponse:
        """List waiting and running requests: of all for operators, else of the caller's project."""
        project = _project_of_requests(Scope.ADMIN_READ)
        requests = load_info.live_requests(self._pool.catalog.engines, project=project)
        shown, next_token = page(("requests", project or ""), requests, request)
        return pb.ListRequestsResponse(requests=shown, next_page_token=next_token)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """List sessions of requests that have ended, of the same projects as `ListRequests`."""
        project, session_id = _project_of_requests(Scope.ADMIN_READ), request.session_id
        requests = self._sessions.requests(project=project, session_id=session_id)
        list_them = partial(to_sessions, keep_turns=bool(session_id))
        found = await off_loop(len(requests), list_them, requests)
        shown, next_token = page(("sessions", project or "", session_id), found, request)
        return pb.ListSessionsResponse(
            sessions=shown,
            next_page_token=next_token,
            record_time=encode_timestamp(self._sessions.started_at),
        )

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Abort requests. Ids that are not live, or of another project, are reported as such."""
        project = _project_of_requests(Scope.ADMIN)
        return pb.AbortResponse(
            outcomes=[
                pb.AbortOutcome(
                    request_id=request_id,
                    kind=pb.AbortOutcome.KIND_ABORTED
                    if self._abort(request_id, project)
                    else pb.AbortOutcome.KIND_NOT_RUNNING,
                )
                for request_id in request.request_ids
            ]
        )

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Stop accepting requests."""
        self._pool.drain()
        engines = self._pool.catalog.engines
        running = {
            item.stream.request_id for engine in engines for item in engine.sequences.live.values()
        }
        num_embedding = sum(len(engine.embeddings.live) for engine in engines)
        return pb.DrainResponse(num_requests=len(running) + num_embedding)

    async def Undrain(self, request: pb.UndrainRequest, context: Context) -> pb.UndrainResponse:
        """Accept requests again."""
        self._pool.undrain()
        return pb.UndrainResponse()

    async def LoadModel(
        self, request: pb.LoadModelRequest, context: Context
    ) -> pb.LoadModelResponse:
        """Load a model, in the background unless `wait` is set."""
        entry = self._find_model(request.model)
        limits = to_limits(request.limits, entry.requested) if request.HasField("limits") else None
        await self._pool.load(entry, limits, wait=request.wait)
        return pb.LoadModelResponse(model=model_info.model(ResolvedModel(entry)))

    async def UnloadModel(
        self, request: pb.UnloadModelRequest, context: Context
    ) -> pb.UnloadModelResponse:
        """Unload a model when its last use ends, or at once with `force`."""
        entry = self._find_model(request.model)
        wait = request.wait if request.HasField("wait") else True
        await self._pool.unload(entry, force=request.force, wait=wait)
        return pb.UnloadModelResponse(model=model_info.model(ResolvedModel(entry)))

    async def ExplainModel(
        self, request: pb.ExplainModelRequest, context: Context
    ) -> pb.ExplainModelResponse:
        """Explain a model, loaded or not."""
        entry = self._find_model(request.model)
        sections = await self._explanations.explain(entry, verify=request.verify)
        response = pb.ExplainModelResponse()
        response.explanation.update(json.loads(json.dumps(sections)))
        return response

    async def WatchModels(
        self, request: pb.WatchModelsRequest, context: Context
    ) -> AsyncIterator[pb.WatchModelsResponse]:
        """Stream every model, and again whenever it changes; of one model until it is removed."""
        name = self._added.find(request.model).name if request.model else ""
        async for watched in self._pool.watch(name):
            if not isinstance(watched, str):
                yield pb.WatchModelsResponse(model=model_info.watched_model(watched))
                continue
            yield pb.WatchModelsResponse(removed=watched)
            if name:
                return

    async def AddModel(self, request: pb.AddModelRequest, context: Context) -> pb.AddModelResponse:
        """Add a model, whose files are downloaded in the background."""
        wanted = AddedModel(
            name=request.name,
            source=request.source,
            sha256=request.sha256,
            projector=request.projector,
            draft_model=request.draft_model,
            pinned=request.pinned,
            idle_ttl_s=_idle_ttl(request),
            upstream=_upstream(request),
        )
        added = await self._added.add(wanted, request.aliases)
        return pb.AddModelResponse(model=model_info.watched_model(added))

    async def UpdateModel(
        self, request: pb.UpdateModelRequest, context: Context
    ) -> pb.UpdateModelResponse:
        """Change an added model."""
        values = {"pinned": request.pinned, "idle_ttl": _idle_ttl(request)}
        names = {"pinned": "pinned", "idle_ttl": "idle_ttl_s"}
        for path in request.update_mask.paths:
            if path not in names:
                raise InvalidField(field="update_mask", problem=f"'{path}' cannot be changed")
        if not request.update_mask.paths:
            raise MissingField(field="update_mask")
        changes = {names[path]: values[path] for path in request.update_mask.paths}
        updated = await self._added.update(request.model, changes)
        return pb.UpdateModelResponse(model=model_info.watched_model(updated))

    async def AddModelAlias(
        self, request: pb.AddModelAliasRequest, context: Context
    ) -> pb.AddModelAliasResponse:
        named = await self._added.add_alias(request.model, request.alias)
        return pb.AddModelAliasResponse(model=model_info.watched_model(named))

    async def RemoveModel(
        self, request: pb.RemoveModelRequest, context: Context
    ) -> pb.RemoveModelResponse:
        """Remove an added model or alias."""
        await self._added.remove(request.model, force=request.force)
        return pb.RemoveModelResponse()

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        """Load a new generation of an adapter."""
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
        """Unload an operator's adapter; its memory is freed when no request uses it."""
        owner = self._pool.catalog.find_adapter_model(request.name)
        if owner is None:
            raise AdapterNotFound(adapter=request.name)
        if owner.upstream is not None:
            feature = f"unloading of {request.name!r}, which an upstream engine has loaded"
            raise FeatureUnsupported(feature=feature)
        adapter = owner.adapters.unload(request.name)
        return pb.UnloadAdapterResponse(adapter=self._describe(adapter))

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: Context
    ) -> pb.ListAdaptersResponse:
        """List all generations of all adapters."""
        adapters = {
            (each.name, each.project, each.generation, each.model): each
            for entry in self._pool.catalog
            for each in entry.adapters.all()
        }
        shown, next_token = page(("adapters",), adapters, request)
        return pb.ListAdaptersResponse(
            adapters=map(self._describe, shown), next_page_token=next_token
        )

    def _describe(self, adapter: Adapter) -> adapter_pb2.Adapter:
        owner = self._pool.catalog.find_model(adapter.model)
        return model_info.adapter(adapter, num_running=owner.adapters.count_requests(adapter))

    def _find_model(self, model: str) -> ModelEntry:
        """Return the named model. Unlike elsewhere, an empty name is an error."""
        if not model:
            raise MissingField(field="model")
        return self._pool.catalog.find_model(model, operation="be loaded or unloaded by itself")

    async def SaveSnapshot(
        self, request: pb.SaveSnapshotRequest, context: Context
    ) -> pb.SaveSnapshotResponse:
        """Save the state of a running or cached sequence to a file."""
        return await self._snapshots.save(request)

    async def RestoreSnapshot(
        self, request: pb.RestoreSnapshotRequest, context: Context
    ) -> pb.RestoreSnapshotResponse:
        """Restore a saved state into the prefix cache."""
        return await self._snapshots.restore(request)

    async def DropSnapshots(
        self, request: pb.DropSnapshotsRequest, context: Context
    ) -> pb.DropSnapshotsResponse:
        return await self._snapshots.drop(request)

    async def FlushCache(
        self, request: pb.FlushCacheRequest, context: Context
    ) -> pb.FlushCacheResponse:
        """Drop idle and saved prefixes of all running engines."""
        running = [each for each in self._pool.catalog.engines if each.pid]
        flushed = await asyncio.gather(*(each.flush() for each in running))
        return pb.FlushCacheResponse(num_tokens=sum(flushed))

    def _abort(self, request_id: str, project: str | None) -> bool:
        engines = self._pool.catalog.engines
        return any(engine.abort(request_id, project=project) for engine in engines)


_UPSTREAM: Final = MessageMapper(AddedUpstream, upstream_pb2.UpstreamSource)


def _upstream(request: pb.AddModelRequest) -> AddedUpstream | None:
    if not request.HasField("upstream"):
        return None
    return _UPSTREAM.from_message(request.upstream, "upstream")


def _idle_ttl(request: pb.AddModelRequest | pb.UpdateModelRequest) -> float | None:
    return to_seconds(request.idle_ttl) if request.HasField("idle_ttl") else None


def _project_of_requests(operator: Scope) -> str | None:
    """The project whose requests the caller may use; None for all, which needs this scope."""
    principal = current_principal()
    return None if principal.has(operator) else principal.project
