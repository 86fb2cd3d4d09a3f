"""Loads a model in the engine process: weights, warm-up, first step."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.embedder import Embedder
from inference_svc.engine.engine import Engine
from inference_svc.engine_client.messages import EngineConfig, LoadPhase, LoadProgress, ModelReady
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.llama import library
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.embeddings import EmbeddingSettings, LlamaEmbedding
from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.llama.warmup import WarmUp, compute_full_batch, warm_up
from inference_svc.llama.weights import ModelLoadError, load_model
from inference_svc.models.file_identity import FileStamp, verify_files
from inference_svc.snapshots.snapshot import Fingerprint
from model_files.gguf import ModelFileInvalid


class LoadedEngine(NamedTuple):
    """What serves a model; only one that generates has `served`."""

    ready: ModelReady
    served: ServedEngine | None
    embedder: Embedder | None
    memory: EngineMemory


ReportProgress = Callable[[LoadProgress], None]


def load(boot: EngineConfig, tell: ReportProgress = lambda _: None) -> LoadedEngine:
    """Load and warm the model, reporting progress through `tell`. Raises `ModelLoadError` or
    `ModelTooLarge`.
    """
    stamps = _verify_files(boot.model.stamps, boot.model.digest)
    library.start()
    memory = EngineMemory(boot.model.backend.placement)
    load_parts = _load_decoder if boot.model.generates else _load_encoder
    try:
        with memory.taking():
            loaded = load_parts(boot, tell, memory)
    except DecodeError as error:
        problem = f"{boot.model.name} cannot compute a first input (code {error.code})"
        raise ModelLoadError(problem) from error
    _verify_files(stamps)  # a large one takes minutes to read
    return loaded._replace(ready=replace(loaded.ready, device_bytes=memory.news() or {}))


def _verify_files(stamps: tuple[FileStamp, ...], digest: str = "") -> tuple[FileStamp, ...]:
    """An engine that dies comes back without anybody looking: a file that took the place of its
    model's would answer under the old one's digest."""
    try:
        return verify_files(stamps, digest)
    except ModelFileInvalid as problem:
        raise ModelLoadError(f"model {problem.path}: {problem.problem}") from problem


def _reading(tell: ReportProgress) -> Callable[[float], None]:
    return lambda fraction: tell(LoadProgress(LoadPhase.WEIGHTS, fraction))


def _load_decoder(boot: EngineConfig, tell: ReportProgress, memory: EngineMemory) -> LoadedEngine:
    model, started = boot.model, time.monotonic()
    backend = LlamaBackend(model.backend, _reading(tell))
    tell(LoadProgress(LoadPhase.WARM_UP, 1.0))
    measured = model.warm_up
    if measured is None:
        measured = warm_up(
            backend, cores=boot.cores, threads=model.threads, budget_s=boot.warm_up_budget_s
        )
    if memory.is_on_gpus:
        compute_full_batch(backend)
    backend.set_threads(measured.threads)
    backend.prepare_guides()
    engine = Engine(
        model.name,
        backend,
        layout=_batch_layout(backend, measured),
        chunk_cap=model.chunk_cap,
        clock=time.monotonic,
        copy_costs=measured.copy_costs,
        saved_bytes=model.saved_bytes,
        step_times=measured.step_times,
        token_times=measured.token_times,
        policy=model.policy,
        token_target_s=model.token_target_s,
        adapter_wait_s=model.adapter_wait_s,
    )
    embedder = None
    if model.embedding is not None:
        embedder = _embedder(backend.model, model.embedding, measured.threads, memory)
    limits = backend.limits
    ready = ModelReady(
        model.name,
        limits.slots,
        limits.slot_tokens,
        limits.batch_tokens,
        measured,
        time.monotonic() - started,
        embedder.limits if embedder is not None else None,
        model.embedding.pooling.value if model.embedding is not None else "",
        limits.cells,
    )
    served = ServedEngine(model.name, engine, _fingerprint(backend), limits.slot_tokens)
    return LoadedEngine(ready, served, embedder, memory)


def _batch_layout(backend: LlamaBackend, measured: WarmUp) -> BatchLayout:
    """In the unified layout any rows share a compute batch: there are no holes."""
    limits = backend.limits
    times = measured.step_times if limits.cells is None else {}
    return BatchLayout(times, limits.slots, can_fill=backend.can_trim)


def _fingerprint(backend: LlamaBackend) -> Fingerprint:
    """Without the digest of the model, which takes the frontend a while."""
    return Fingerprint(backend.architecture, "", backend.cells, version("llama-cpp-python"))


def _load_encoder(boot: EngineConfig, tell: ReportProgress, memory: EngineMemory) -> LoadedEngine:
    """One that only embeds or ranks: its one context is made now."""
    model, started = boot.model, time.monotonic()
    if model.embedding is None:
        raise ModelLoadError(f"{model.name} neither generates nor embeds")
    weights = load_model(model.backend.path, model.backend.placement, _reading(tell))
    tell(LoadProgress(LoadPhase.WARM_UP, 1.0))
    threads = model.threads or max(1, boot.cores - 1)
    reason = "as configured" if model.threads else "the frontends need a core"
    embedder = _embedder(weights, model.embedding, threads, memory, now=True)
    embedder.warm_up()
    limits = embedder.limits
    ready = ModelReady(
        model.name,
        0,
        limits.input_tokens,
        limits.batch_tokens,
        WarmUp(threads, reason, {}),
        time.monotonic() - started,
        limits,
        model.embedding.pooling.value,
    )
    return LoadedEngine(ready, None, embedder, memory)


def _embedder(
    weights: Any,
    settings: EmbeddingSettings,
    threads: int,
    memory: EngineMemory,
    *,
    now: bool = False,
) -> Embedder:
    """An embedder whose context is made with its first request, or `now`."""
    backend = LlamaEmbedding(weights, replace(settings, threads=threads), memory)
    if now:
        backend.open()
    return Embedder(settings.name, backend, pack_tokens=settings.pack_tokens, clock=time.monotonic)
