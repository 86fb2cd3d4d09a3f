"""Composes the inference service from its settings."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import grpc.aio
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import engine_service_pb2_grpc as engine_rpc
from corral.inference.v1 import inference_service_pb2_grpc as inference_rpc
from prometheus_client import CollectorRegistry

from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.control_client import GrpcControl
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.installer import AdapterInstaller
from inference_svc.adapter_sync.reconciler import Reconciler, reconcile_adapters
from inference_svc.adapter_sync.state import frontend_id
from inference_svc.audit import AuditReporter
from inference_svc.chat.conversation import ConversationLimits
from inference_svc.chat.templates import ChatTemplates
from inference_svc.config import InferenceSettings, LimitSettings
from inference_svc.delivery import make_sender
from inference_svc.engine_client.client import MAX_ARCHIVE_S, EngineState
from inference_svc.gauges import EngineGauges, MediaGauges, ModelGauges
from inference_svc.limits.limiter import Admit, Limiter, admit_all
from inference_svc.limits.limits_file import LimitsFile
from inference_svc.media.document import DocumentReader
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.added_models import AddedModelsService
from inference_svc.model_pool.catalog import Catalog
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.engine_config import disk_cache_folder, snapshot_folder
from inference_svc.model_pool.loader import ModelLoader
from inference_svc.model_pool.pool import ModelPool, read_memory
from inference_svc.model_pool.settings_models import SettingsModels
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from inference_svc.rpc.embeddings import EmbeddingBounds, EmbeddingService
from inference_svc.rpc.engine_servicer import EngineServicer, ServerInfo
from inference_svc.rpc.explanation import Explanations
from inference_svc.rpc.generation import GenerationService
from inference_svc.rpc.inference_servicer import InferenceServicer
from inference_svc.rpc.load_info import utilization
from inference_svc.rpc.media_inputs import MAX_FETCHED_BYTES, MediaInputs
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.sandbox_jobs import PRELOADED
from inference_svc.sessions import SessionLog
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import SnapshotStore
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.usage import RecordUsage, UsageCounter, UsageReporter, discard_usage
from svc_kit.auth.authenticator import Authenticator, ServiceToken, build_authenticator
from svc_kit.auth.control_keys import (
    ControlKeys,
    ControlProjects,
    control_key_lookup,
    control_project_lookup,
)
from svc_kit.lifecycle import StartupError, notify_systemd, stop_on_signals
from svc_kit.logs import OutageLevel
from svc_kit.management import ManagementServer, run_management
from svc_kit.metrics import EngineMetrics, LimitMetrics, ProcessMetrics
from svc_kit.rpc.admin_call import RecordCall
from svc_kit.rpc.client import Option, open_channel
from svc_kit.rpc.orca import orca_service
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.settings.reloader import SettingsReloader, reloading_on_hangup
from svc_kit.tracing.setup import open_tracer

log = logging.getLogger(__name__)
_LAST_GRACE_S = 1.0  # for the last messages to be delivered
_LIMITS_INTERVAL_S = 1.0
_EXPIRY_INTERVAL_S = 60.0


@dataclass(frozen=True)
class Inference:
    server: RpcServer
    pool: ModelPool
    management: ManagementServer | None


@asynccontextmanager
async def build(settings: InferenceSettings) -> AsyncIterator[Inference]:
    """Start the service; everything is closed in reverse order. Raises `StartupError`.

    The port is opened, and answers NOT_SERVING, before the models are loaded, so that a port in use
    is detected early and probes see that the server is starting.
    """
    catalog = await asyncio.to_thread(find_models, settings)
    registry, metrics = _open_metrics(settings, catalog)
    async with AsyncExitStack() as stack:
        tracer = await stack.enter_async_context(open_tracer(settings.tracing, "inference"))
        stack.callback(catalog.close)
        sandbox = await stack.enter_async_context(SandboxPool(SandboxSettings(preload=PRELOADED)))
        templates = ChatTemplates(sandbox)
        sessions = SessionLog(metrics.divergences)
        loader = ModelLoader(
            settings,
            num_models=max(1, sum(entry.upstream is None for entry in catalog)),
            sandbox=sandbox,
            templates=templates,
            metrics=metrics,
        )
        stack.callback(loader.close)
        server: RpcServer | None = None

        def on_change() -> None:
            if server is not None:
                server.set_serving(pool.state is EngineState.SERVING)

        pool = ModelPool(
            catalog,
            loader,
            await read_memory(settings.pool, catalog),
            wait_s=settings.pool.load_wait_s,
            on_change=on_change,
        )
        control = await stack.enter_async_context(_control_channel(settings))
        outage_level = OutageLevel()
        count, admit = await _usage(settings, control, LimitMetrics(registry), outage_level, stack)
        limits = settings.limits
        generating = GenerationService(
            pool,
            templates,
            GrammarCompiler(sandbox),
            ConversationLimits(
                limits.messages,
                limits.prompt_bytes,
                limits.caller_templates,
                tuple(settings.removed_prompt_lines),
            ),
            PrefixGroups({name: group.projects for name, group in settings.prefix_groups.items()}),
            _media_inputs(limits, sandbox),
            admit,
            archives_stateless=settings.snapshots.archive_scope == "all",
        )
        adapters = AdapterService(
            catalog, sandbox, settings.all_adapter_folders, copies=settings.data_dir
        )
        snapshots = _snapshots(settings, pool)
        added = AddedModelsService(settings, pool, adapters.load_beside)
        record_call = _call_recorder(settings, control, outage_level, stack)
        reconciler = open_reconciler(settings, control, catalog, adapters, outage_level)
        bounds = EmbeddingBounds(limits.prompt_bytes, settings.server.max_message_bytes)
        embedding = EmbeddingService(bounds, count, admit)
        inference = InferenceServicer(generating, embedding, count, sessions)
        server = RpcServer(
            [
                Service(
                    inference_rpc.add_InferenceServiceServicer_to_server,
                    inference,
                    "corral.inference.v1.InferenceService",
                ),
                Service(
                    engine_rpc.add_EngineServiceServicer_to_server,
                    EngineServicer(
                        pool,
                        _server_info(settings),
                        adapters,
                        snapshots,
                        added,
                        Explanations(pool, templates, sandbox),
                        sessions,
                    ),
                    "corral.inference.v1.EngineService",
                ),
                orca_service(partial(utilization, pool)),
                *await _vllm_engine(settings, loader, pool, inference),
            ],
            listen=settings.listen,
            authenticator=_authenticator(settings, control),
            registry=registry,
            settings=settings.server,
            tls=settings.tls,
            tracer=tracer,
            record_call=record_call,
            map_error=None if reconciler is None else reconciler.map_error,
        )
        await server.start()
        stack.push_async_callback(server.drain, 0)
        management = await stack.enter_async_context(
            run_management(settings.management_listen, registry, server.is_ready)
        )
        stack.push_async_callback(pool.close)
        await pool.start()
        await stack.enter_async_context(_background_tasks(added, pool, snapshots))
        await adapters.load_all(_adapter_orders(settings))
        await stack.enter_async_context(reconcile_adapters(reconciler, str(server.address)))
        pool.open()
        yield Inference(server, pool, management)


def _open_metrics(
    settings: InferenceSettings, catalog: Catalog
) -> tuple[CollectorRegistry, EngineMetrics]:
    registry, vllm_names = CollectorRegistry(), settings.server.vllm_metric_names
    ProcessMetrics(
        registry, service="inference", version=version("corral"), data_folder=settings.data_dir
    )
    registry.register(EngineGauges(lambda: catalog.engines, vllm_names=vllm_names))
    registry.register(ModelGauges(catalog))
    registry.register(MediaGauges(lambda: catalog.media))
    return registry, EngineMetrics(registry)


async def serve(
    settings: InferenceSettings, read_settings: Callable[[], InferenceSettings]
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises `StartupError`."""
    stopping = stop_on_signals()
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(stack.enter_async_context(build(settings)))
        events = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, events), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Loading a large model takes minutes: do not wait for it.
            starting.cancel()
            await asyncio.wait((starting,))
            return
        inference = starting.result()
        follow_models = SettingsModels(inference.pool).follow
        follow = {"models": follow_models, "upstreams": follow_models}
        reloader = SettingsReloader(settings, read_settings, follow)
        await stack.enter_async_context(reloading_on_hangup(reloader.reload))
        notify_systemd("READY=1")
        await events
        await drain(inference, settings.server.drain_grace_s)


async def drain(inference: Inference, grace_s: float) -> None:
    """Let requests finish, and write prefixes to disk when all have, or else before the time is
    over, those of the running ones too."""
    log.info("draining")
    await inference.server.announce_drain()
    inference.pool.drain()
    ends_at = time.monotonic() + grace_s
    idle = asyncio.create_task(inference.pool.wait_idle())
    await asyncio.wait((idle,), timeout=grace_s - min(grace_s / 4, MAX_ARCHIVE_S))
    await inference.pool.archive_prefixes(ends_at - time.monotonic())
    await asyncio.wait((idle,), timeout=ends_at - time.monotonic())
    if idle.cancel():
        log.warning("some requests did not finish within %g s", grace_s)
    await inference.server.drain(_LAST_GRACE_S)


@asynccontextmanager
async def _control_channel(settings: InferenceSettings) -> AsyncIterator[grpc.aio.Channel | None]:
    """A channel to the control service; None without an address or a service token."""
    if settings.control_target is None or settings.service_token_file is None:
        yield None
        return
    async with _connect_control(settings) as channel:
        yield channel


def _connect_control(settings: InferenceSettings, *options: Option) -> grpc.aio.Channel:
    """Open a channel to the control service, which is configured."""
    if settings.control_target is None or settings.service_token_file is None:
        raise StartupError("the control service has no address or no service token")
    token = ServiceToken.read(settings.service_token_file).secret
    return open_channel(
        settings.control_target, token=token, tls=settings.control_tls, options=options
    )


async def _usage(
    settings: InferenceSettings,
    control: grpc.aio.Channel | None,
    metrics: LimitMetrics,
    outage_level: OutageLevel,
    stack: AsyncExitStack,
) -> tuple[RecordUsage, Admit]:
    """Start reporting usage and leasing limits until `stack` closes, with a last report then."""
    if control is None:
        return discard_usage, admit_all
    try:
        counter = UsageCounter(settings.data_dir / "usage")
    except OSError as error:
        raise StartupError(f"cannot keep usage in {settings.data_dir}: {error.strerror}") from error
    saved = LimitsFile(settings.data_dir / "limits")
    limiter = Limiter(
        make_sender(LimitServiceStub(control).LeaseLimits),
        saved,
        metrics,
        grace_s=settings.limits_grace_s,
        outage_level=outage_level,
    )
    send = limiter.between_calls(make_sender(UsageServiceStub(control).ReportUsage))
    reporter = UsageReporter(counter, send, limiter.on_reported, outage_level)
    stack.callback(counter.close)
    stack.push_async_callback(reporter.report_last)
    for task in (
        asyncio.create_task(reporter.run(settings.usage_interval_s)),
        asyncio.create_task(limiter.run(_LIMITS_INTERVAL_S)),
    ):
        stack.callback(task.cancel)
    return counter.add, limiter.admit


def _call_recorder(
    settings: InferenceSettings,
    control: grpc.aio.Channel | None,
    outage_level: OutageLevel,
    stack: AsyncExitStack,
) -> RecordCall | None:
    """Start reporting audit events until `stack` closes; None without a control service."""
    if control is None:
        return None
    try:
        send = make_sender(AuditServiceStub(control).ReportAuditEvents)
        reporter = AuditReporter(settings.data_dir / "acts", send, outage_level)
    except OSError as error:
        raise StartupError(f"cannot keep acts in {settings.data_dir}: {error.strerror}") from error
    stack.push_async_callback(reporter.report_last)
    stack.callback(asyncio.create_task(reporter.run(settings.usage_interval_s)).cancel)
    return reporter.record


def _authenticator(settings: InferenceSettings, control: grpc.aio.Channel | None) -> Authenticator:
    stored, projects = None, None
    if control is not None:
        stored = ControlKeys(control_key_lookup(control), cache_s=settings.key_cache_s)
        lookup = control_project_lookup(control)
        projects = ControlProjects(lookup, cache_s=settings.key_cache_s).check
    return build_authenticator(
        listen=settings.listen,
        keys=settings.keys,
        issuers=settings.issuers,
        allow_keyless=settings.allow_keyless,
        require_keys=settings.require_keys,
        service_token_file=settings.service_token_file,
        stored_keys=stored,
        check_project=projects,
    )


def _adapter_orders(settings: InferenceSettings) -> list[AdapterOrder]:
    return [
        AdapterOrder(name, adapter.model, adapter.path, adapter.digest, adapter.scale, True)
        for name, adapter in settings.adapters.items()
    ]


def _server_info(settings: InferenceSettings) -> ServerInfo:
    return ServerInfo(
        engine_pb.RequestLimits(
            queued_requests=settings.engine.queued_requests,
            queued_tokens=settings.engine.queued_tokens,
            message_bytes=settings.server.max_message_bytes,
            prompt_bytes=settings.limits.prompt_bytes,
        ),
        started_at=time.monotonic(),
    )


def _snapshots(settings: InferenceSettings, pool: ModelPool) -> SnapshotService:
    folder, archive = snapshot_folder(settings), disk_cache_folder(settings)
    return SnapshotService(pool, SnapshotStore(folder), DiskPrefixCache(archive))


async def _vllm_engine(
    settings: InferenceSettings, loader: ModelLoader, pool: ModelPool, inference: InferenceServicer
) -> list[Service]:
    """The service for routers, if it is switched on. Raises `StartupError`."""
    if not settings.vllm_engine.enabled:
        return []
    # Imported here because few need it.
    from inference_svc.vllm_grpc.vllm_service import open_vllm_engine

    return [await open_vllm_engine(settings, loader.open_vocabulary, pool, inference)]


@asynccontextmanager
async def _background_tasks(
    added: AddedModelsService, pool: ModelPool, snapshots: SnapshotService
) -> AsyncIterator[None]:
    """Add the models of operators, unload idle models, and delete expired prefixes, until the
    context ends."""
    tasks = [
        asyncio.create_task(pool.unload_idle()),
        asyncio.create_task(_delete_expired(snapshots)),
    ]
    try:
        await added.start()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await added.close()


async def _delete_expired(snapshots: SnapshotService) -> None:
    while True:
        await snapshots.delete_expired()
        await asyncio.sleep(_EXPIRY_INTERVAL_S)


def _media_inputs(limits: LimitSettings, sandbox: SandboxPool) -> MediaInputs:
    documents = DocumentReader(
        sandbox, document_bytes=MAX_FETCHED_BYTES, text_bytes=limits.prompt_bytes
    )
    return MediaInputs(MediaFetcher(limits.media_hosts), documents)


def open_reconciler(
    settings: InferenceSettings,
    channel: grpc.aio.Channel | None,
    catalog: Catalog,
    adapters: AdapterService,
    outage_level: OutageLevel,
) -> Reconciler | None:
    """Create the reconciler for the control service behind `channel`; None without a channel.

    Sets the crash marker of all models. Raises `StartupError`.
    """
    if channel is None:
        return None
    folder = settings.data_dir / "desired"
    cache = AdapterCache(folder / "adapters", settings.adapter_cache_mib << 20)
    try:
        cache.open()
        frontend = frontend_id(folder / "frontend")
    except OSError as error:
        raise StartupError(f"cannot store adapters in {folder}: {error.strerror}") from error
    crash_marker = CrashMarker(folder / "marks")
    crash_marker.open()
    catalog.set_load_marker(crash_marker)
    connect = partial(_connect_control, settings, ("grpc.use_local_subchannel_pool", 1))
    control = GrpcControl(channel, connect)
    installer = AdapterInstaller(control, cache, crash_marker, catalog, adapters)
    return Reconciler(control, installer, folder, frontend, outage_level=outage_level)
