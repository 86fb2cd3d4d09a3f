"""The composition of the inference service: settings in, a running server out."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import engine_service_pb2_grpc as engine_rpc
from corral.inference.v1 import inference_service_pb2_grpc as inference_rpc
from prometheus_client import CollectorRegistry

from inference_svc.api.adapter_loading import AdapterLoading, AdapterOrder
from inference_svc.api.embedding import Embedding, EmbeddingBounds
from inference_svc.api.engine_service import EngineServicer, ServerFacts
from inference_svc.api.generating import Generating, TextLimits
from inference_svc.api.inference_service import InferenceServicer
from inference_svc.api.ranking import Ranking
from inference_svc.api.snapshots import Snapshots
from inference_svc.catalog import Catalog, ServedModel
from inference_svc.chat.conversation import ConversationLimits
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tokenizing import PromptTokenizer
from inference_svc.config import EngineSettings, InferenceSettings, TurnFormatSettings
from inference_svc.constraints.compiler import GrammarCompiler
from inference_svc.engine.budget import Policy
from inference_svc.gauges import EngineGauges
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.metrics import EngineObserver
from inference_svc.models.description import ModelFile, Pooling
from inference_svc.models.memory import available_memory_bytes
from inference_svc.models.references import (
    BUNDLED_FOLDER,
    Download,
    RemoteFile,
    resolve_models,
)
from inference_svc.models.sizing import RequestedLimits, ResolvedLimits, plan_limits
from inference_svc.runtime.generation import ReaderLimits
from inference_svc.runtime.messages import Boot, ModelBoot
from inference_svc.runtime.pipe import available_cores
from inference_svc.runtime.worker import EngineState, EngineWorker, QueueLimits
from inference_svc.sandbox.pool import SandboxPool
from inference_svc.snapshots.folder import FolderLimits
from svc_kit.auth import build_authenticator
from svc_kit.errors import ModelCannot, ModelTooLarge
from svc_kit.management import ManagementServer
from svc_kit.rpc_server import RpcServer, Service
from svc_kit.signals import stop_on_signals
from svc_kit.startup import StartupError
from svc_kit.telemetry import EngineMetrics, ProcessMetrics

log = logging.getLogger(__name__)

_DIGEST_BLOCK = 1 << 20
_MOST_SAVED_BYTES = 1 << 30
_ENCODER_TOKENS = 8192  # an encoder's buffers grow with its longest input
_LAST_GRACE_S = 1.0  # for last messages to reach their readers


@dataclass(frozen=True)
class Inference:
    """The running service."""

    server: RpcServer
    worker: EngineWorker
    catalog: Catalog
    management: ManagementServer | None


@asynccontextmanager
async def build(settings: InferenceSettings) -> AsyncIterator[Inference]:
    """Open everything in order and close it in reverse. Raises `StartupError`.

    The port answers NOT_SERVING before the models are loaded: a port that is taken must not cost
    the time of loading, and probes must see a server that is coming up.
    """
    files = await asyncio.to_thread(
        resolve_models, settings.models, _downloads(settings.data_dir / "models")
    )
    _check_turn_formats(files, settings)
    limits = _plan(files, settings)
    registry = CollectorRegistry()
    ProcessMetrics(registry, service="inference", version=version("corral"))
    observer = EngineObserver(EngineMetrics(registry))
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(SandboxPool())
        server: RpcServer | None = None

        def on_state(state: EngineState) -> None:
            observer.on_state(state)
            if server is not None:
                server.set_serving(state is EngineState.SERVING and catalog.is_open)

        worker = EngineWorker(
            _boot(files, limits, settings),
            QueueLimits(settings.engine.queued_requests, settings.engine.queued_tokens),
            ReaderLimits(settings.engine.unread_events, settings.engine.reader_patience_s),
            on_state=on_state,
            on_event=observer.on_event,
        )
        observer.bind(worker)
        catalog = Catalog(worker.adapters)
        stack.callback(catalog.close)
        registry.register(EngineGauges(worker, vllm_names=settings.server.vllm_metric_names))
        templates = ChatTemplates(pool)
        generating = Generating(
            catalog, worker, templates, GrammarCompiler(pool), _text_limits(settings)
        )
        adapters = _adapter_loading(settings, catalog, worker, pool)
        server = _server(settings, registry, catalog, worker, generating, adapters)
        await server.start()
        stack.push_async_callback(server.drain, 0)
        management = await _management(settings, registry, server)
        if management is not None:
            stack.push_async_callback(management.close)
        stack.push_async_callback(worker.close)
        await worker.start()
        served = [await _served(file, worker, pool, templates, settings) for file in files]
        catalog.fill(served)
        await adapters.load_all(_adapter_orders(settings))
        server.set_serving(True)
        digests = asyncio.create_task(_compute_digests(served, catalog))
        stack.callback(digests.cancel)
        _announce(served, limits)
        yield Inference(server, worker, catalog, management)


async def serve(settings: InferenceSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises `StartupError`."""
    stopping = stop_on_signals()
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(stack.enter_async_context(build(settings)))
        told = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Loading a large model takes minutes; nobody should have to wait for it to stop.
            starting.cancel()
            await asyncio.wait((starting,))
            return
        inference = starting.result()
        await told
        await _drain(inference, settings.server.drain_grace_s)


async def _drain(inference: Inference, grace_s: float) -> None:
    log.info("draining")
    inference.server.set_serving(False)
    inference.worker.drain()
    try:
        async with asyncio.timeout(grace_s):
            await inference.worker.wait_idle()
    except TimeoutError:
        log.warning("some requests did not end within %g s", grace_s)
    await inference.server.drain(_LAST_GRACE_S)


def _downloads(folder: Path) -> Download:
    def download(remote: RemoteFile) -> Path:
        # Here, because its library takes as long to import as everything else and few need it.
        from inference_svc.models.huggingface import HuggingFaceDownloads

        return HuggingFaceDownloads(folder)(remote)

    return download


def _plan(files: Sequence[ModelFile], settings: InferenceSettings) -> list[ResolvedLimits]:
    try:
        for file in files:
            file.check_served()
    except ModelCannot as error:
        raise StartupError(error.message) from error
    try:
        return plan_limits(files, available_memory_bytes(), _requested(settings))
    except ModelTooLarge as error:
        raise StartupError(f"{error.message} Ask for fewer slots or a shorter context") from error


def _requested(settings: InferenceSettings) -> RequestedLimits:
    return RequestedLimits(settings.engine.slots, settings.engine.context_tokens)


def _boot(
    files: Sequence[ModelFile], limits: Sequence[ResolvedLimits], settings: InferenceSettings
) -> Boot:
    engine, cores = settings.engine, available_cores()
    models = [
        ModelBoot(
            file.name,
            BackendSettings(
                file.path,
                slots=sizes.slots,
                context_tokens=sizes.context_tokens,
                batch_tokens=engine.batch_tokens,
                ubatch_tokens=min(engine.ubatch_tokens, engine.batch_tokens),
                threads=engine.threads or cores,
                sampling_threads=min(engine.threads or cores, 8),
                gpu_layers=engine.gpu_layers,
                draft_tokens=engine.draft_tokens,
            ),
            chunk_cap=engine.prefill_chunk_tokens,
            threads=engine.threads,
            saved_bytes=_saved_bytes(settings, len(files)),
            policy=Policy(engine.policy),
            token_target_s=engine.token_target_ms / 1000,
            adapter_wait_s=engine.adapter_wait_ms / 1000,
            embedding=_embedding(file, sizes, engine, cores),
            generates=file.generates,
        )
        for file, sizes in zip(files, limits, strict=True)
    ]
    snapshots = FolderLimits(
        settings.snapshots.folder or settings.data_dir / "snapshots",
        settings.snapshots.max_mib << 20,
        settings.snapshots.max_files,
    )
    return Boot(tuple(models), cores, settings.log_level, None, engine.warm_up_s, snapshots)


def _saved_bytes(settings: InferenceSettings, num_models: int) -> int:
    """What is configured, or a small part of the memory that is there."""
    if settings.engine.saved_prefix_mib is not None:
        return settings.engine.saved_prefix_mib << 20
    return min(available_memory_bytes() // 32, _MOST_SAVED_BYTES) // num_models


def _embedding(
    file: ModelFile, sizes: ResolvedLimits, engine: EngineSettings, cores: int
) -> EmbeddingSettings:
    pooling = file.pooling
    if pooling is not Pooling.RANK:
        default = Pooling.LAST if file.generates else Pooling.MEAN
        pooling = Pooling(engine.pooling) if engine.pooling else pooling or default
    longest = sizes.context_tokens
    if not file.is_causal:  # its positions may be a table, which ends there
        longest = min(longest, file.trained_context_tokens)
        if engine.context_tokens is None:
            longest = min(longest, _ENCODER_TOKENS)
    return EmbeddingSettings(
        file.name,
        pooling=pooling,
        is_causal=file.is_causal,
        input_tokens=longest,
        pack_tokens=min(engine.ubatch_tokens, engine.batch_tokens),
        threads=engine.threads or cores,
        cell_bytes=file.kv_bytes_per_token if file.is_causal else 0,
    )


def _adapter_loading(
    settings: InferenceSettings, catalog: Catalog, worker: EngineWorker, pool: SandboxPool
) -> AdapterLoading:
    own = settings.data_dir / "adapters"
    folders = [*settings.adapter_folders, own, BUNDLED_FOLDER]
    return AdapterLoading(catalog, worker, pool, folders, copies=settings.data_dir)


def _adapter_orders(settings: InferenceSettings) -> list[AdapterOrder]:
    return [
        AdapterOrder(name, wanted.model, wanted.path, wanted.digest, wanted.scale, True)
        for name, wanted in settings.adapters.items()
    ]


def _server(
    settings: InferenceSettings,
    registry: CollectorRegistry,
    catalog: Catalog,
    worker: EngineWorker,
    generating: Generating,
    adapters: AdapterLoading,
) -> RpcServer:
    bounds = EmbeddingBounds(settings.limits.prompt_bytes, settings.server.max_message_bytes)
    embedding = Embedding(catalog, worker, bounds)
    ranking = Ranking(catalog, worker, bounds)
    facts = ServerFacts(
        engine_pb.RequestLimits(
            queued_requests=settings.engine.queued_requests,
            queued_tokens=settings.engine.queued_tokens,
            message_bytes=settings.server.max_message_bytes,
            prompt_bytes=settings.limits.prompt_bytes,
        ),
        started_at=time.monotonic(),
    )
    return RpcServer(
        [
            Service(
                inference_rpc.add_InferenceServiceServicer_to_server,
                InferenceServicer(catalog, worker, generating, embedding, ranking),
                "corral.inference.v1.InferenceService",
            ),
            Service(
                engine_rpc.add_EngineServiceServicer_to_server,
                EngineServicer(worker, facts, adapters, Snapshots(catalog, worker)),
                "corral.inference.v1.EngineService",
            ),
        ],
        listen=settings.listen,
        authenticator=build_authenticator(
            listen=settings.listen,
            keys=settings.keys,
            allow_keyless=settings.allow_keyless,
            service_token_file=settings.service_token_file,
        ),
        registry=registry,
        settings=settings.server,
        tls=settings.tls,
    )


def _text_limits(settings: InferenceSettings) -> TextLimits:
    limits = settings.limits
    conversation = ConversationLimits(limits.messages, limits.prompt_bytes)
    return TextLimits(limits.prompt_bytes, conversation, limits.caller_templates)


async def _management(
    settings: InferenceSettings, registry: CollectorRegistry, server: RpcServer
) -> ManagementServer | None:
    if settings.management_listen is None:
        return None
    management = ManagementServer(
        listen=settings.management_listen, registry=registry, is_ready=lambda: server.is_serving
    )
    await management.start()
    return management


async def _served(
    file: ModelFile,
    worker: EngineWorker,
    pool: SandboxPool,
    templates: ChatTemplates,
    settings: InferenceSettings,
) -> ServedModel:
    vocabulary = await asyncio.to_thread(Vocabulary.load, file.path)
    override = settings.turn_formats.get(file.name, TurnFormatSettings()).as_override()
    template = ModelTemplate.of_model(file.chat_template, vocabulary, override)
    return ServedModel(
        file=file,
        vocabulary=vocabulary,
        template=template,
        turn_format=await templates.find_format(template),
        tokenizer=PromptTokenizer(vocabulary, pool, file.path),
        requested=_requested(settings),
        requested_threads=settings.engine.threads,
        ready=worker.models[file.name],
        ready_at=datetime.now(UTC),
    )


def _check_turn_formats(files: Sequence[ModelFile], settings: InferenceSettings) -> None:
    names = {file.name for file in files}
    for name in settings.turn_formats:
        if name not in names:
            raise StartupError(
                f"turn_formats: no model is called {name!r}; there are {', '.join(sorted(names))}"
            )


async def _compute_digests(models: Sequence[ServedModel], catalog: Catalog) -> None:
    """Fill in the digests; reading large files must not delay serving."""
    for model in models:
        model.digest = await asyncio.to_thread(_digest, model.file.paths)
    catalog.digests_known.set()


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_DIGEST_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _announce(models: Sequence[ServedModel], limits: Sequence[ResolvedLimits]) -> None:
    for model, sizes in zip(models, limits, strict=True):
        warm_up = model.ready.warm_up
        if not model.file.generates:
            log.info(
                "model %s (%s): ready in %.1f s, inputs up to %d tokens, %d compute thread(s): %s",
                model.name,
                model.file.model_class.value,
                model.ready.load_s,
                model.ready.slot_tokens,
                warm_up.threads,
                warm_up.reason,
            )
            continue
        log.info("model %s: %s", model.name, sizes.reason)
        log.info(
            "model %s: ready in %.1f s, %d slots of %d tokens, %d compute thread(s): %s",
            model.name,
            model.ready.load_s,
            model.ready.slots,
            model.ready.slot_tokens,
            warm_up.threads,
            warm_up.reason,
        )
        log.info(
            "model %s: tool calls as %s, thinking as %s",
            model.name,
            model.turn_format.tool_calls,
            model.turn_format.reasoning,
        )
