"""Loads a model in the engine process: weights, contexts, warm-up."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.embedder import Embedder
from inference_svc.engine.engine import Engine
from inference_svc.engine.engine_parts import EngineOptions
from inference_svc.engine_client.messages import EngineConfig, LoadPhase, LoadProgress, ModelReady
from inference_svc.engine_process.draft_load import load_draft
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.llama import library
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.embeddings import EmbeddingSettings, LlamaEmbedding
from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.llama.warmup import WarmUp, decode_full_batch, try_token_vectors, warm_up
from inference_svc.llama.weights import ModelLoadError, load_model
from inference_svc.models.file_identity import FileStamp, verify_files
from inference_svc.snapshots.snapshot import Fingerprint
from model_files.gguf import ModelFileInvalid


class LoadedEngine(NamedTuple):
    """A loaded model. `served` is None for a model that only embeds or ranks."""

    ready: ModelReady
    served: ServedEngine | None
    embedder: Embedder | None
    memory: EngineMemory


ReportProgress = Callable[[LoadProgress], None]


def load(config: EngineConfig, report: ReportProgress = lambda _: None) -> LoadedEngine:
    """Load and warm up the model; `report` receives progress. Raises `ModelLoadError` or
    `ModelTooLarge`."""
    stamps = _verify_files(config.stamps, config.digest)
    library.start()
    memory = EngineMemory(config.backend.placement)
    load_parts = _load_decoder if config.generates else _load_encoder
    try:
        with memory.tracking():
            loaded = load_parts(config, report, memory)
    except DecodeError as error:
        problem = f"{config.name} cannot decode a warm-up batch (llama.cpp code {error.code})"
        raise ModelLoadError(problem) from error
    _verify_files(stamps)  # reading a large file takes minutes, and it may be replaced meanwhile
    return loaded._replace(ready=replace(loaded.ready, device_bytes=memory.changed_usage() or {}))


def _verify_files(stamps: tuple[FileStamp, ...], digest: str = "") -> tuple[FileStamp, ...]:
    """Check that the files have not changed since they were described. An engine is restarted
    automatically, and a replaced file would be served under the digest of the old one."""
    try:
        return verify_files(stamps, digest)
    except ModelFileInvalid as problem:
        raise ModelLoadError(f"model {problem.path}: {problem.problem}") from problem


def _report_weights(report: ReportProgress) -> Callable[[float], None]:
    return lambda fraction: report(LoadProgress(LoadPhase.WEIGHTS, fraction))


def _load_decoder(
    config: EngineConfig, report: ReportProgress, memory: EngineMemory
) -> LoadedEngine:
    started = time.monotonic()
    backend = LlamaBackend(config.backend, _report_weights(report))
    report(LoadProgress(LoadPhase.WARM_UP, 1.0))
    measured = config.warm_up
    if measured is None:
        measured = warm_up(
            backend, cores=config.cores, threads=config.threads, budget_s=config.warm_up_budget_s
        )
    if memory.uses_gpus:
        decode_full_batch(backend)
    backend.set_threads(measured.threads)
    if config.takes_media:
        try_token_vectors(backend, config.backend.path)
    backend.prepare_guides()
    draft_model, measured = load_draft(config, backend, measured)
    options = EngineOptions(
        chunk_cap=config.chunk_cap,
        saved_bytes=config.saved_bytes,
        policy=config.policy,
        token_target_s=config.token_target_s,
        adapter_wait_s=config.adapter_wait_s,
        copy_costs=measured.copy_costs,
        step_times=measured.step_times,
        token_times=measured.token_times,
    )
    layout = _batch_layout(backend, measured)
    engine = Engine(
        config.name,
        backend,
        options,
        layout=layout,
        clock=time.monotonic,
        draft_model=draft_model,
    )
    embedder = None
    if config.embedding is not None:
        embedder = _make_embedder(backend.model, config.embedding, measured.threads, memory)
    limits = backend.limits
    ready = ModelReady(
        config.name,
        limits.slots,
        limits.slot_tokens,
        limits.batch_tokens,
        measured,
        time.monotonic() - started,
        embedder.limits if embedder is not None else None,
        config.embedding.pooling.value if config.embedding is not None else "",
        limits.cells,
        source_tokens=limits.source_tokens or 0,
    )
    served = ServedEngine(config.name, engine, _fingerprint(backend), limits.slot_tokens)
    return LoadedEngine(ready, served, embedder, memory)


def _batch_layout(backend: LlamaBackend, measured: WarmUp) -> BatchLayout:
    limits = backend.limits
    # In the unified layout any rows share a ubatch, so filling holes gains nothing.
    times = measured.step_times if limits.cells is None else {}
    return BatchLayout(times, limits.slots, can_fill=backend.can_trim)


def _fingerprint(backend: LlamaBackend) -> Fingerprint:
    """Without the digest of the model: the frontend computes it in the background."""
    return Fingerprint(backend.architecture, "", backend.cell_format, version("llama-cpp-python"))


def _load_encoder(
    config: EngineConfig, report: ReportProgress, memory: EngineMemory
) -> LoadedEngine:
    """Load a model that only embeds or ranks."""
    started = time.monotonic()
    if config.embedding is None:
        raise ModelLoadError(f"{config.name} supports neither generation nor embeddings")
    weights = load_model(config.backend.path, config.backend.placement, _report_weights(report))
    report(LoadProgress(LoadPhase.WARM_UP, 1.0))
    threads = config.threads or max(1, config.cores - 1)
    reason = "as configured" if config.threads else "the frontends need a core"
    embedder = _make_embedder(weights, config.embedding, threads, memory, open_now=True)
    embedder.warm_up()
    limits = embedder.limits
    ready = ModelReady(
        config.name,
        0,
        limits.input_tokens,
        limits.batch_tokens,
        WarmUp(threads, reason, {}),
        time.monotonic() - started,
        limits,
        config.embedding.pooling.value,
    )
    return LoadedEngine(ready, None, embedder, memory)


def _make_embedder(
    weights: Any,
    settings: EmbeddingSettings,
    threads: int,
    memory: EngineMemory,
    *,
    open_now: bool = False,
) -> Embedder:
    """Create an embedder; the first request opens its context, unless `open_now` is set."""
    backend = LlamaEmbedding(weights, replace(settings, threads=threads), memory)
    if open_now:
        backend.open()
    return Embedder(settings.name, backend, pack_tokens=settings.pack_tokens, clock=time.monotonic)
