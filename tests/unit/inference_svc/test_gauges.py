"""Exported gauges and the load over gRPC, for an engine client without a process."""

import asyncio
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import model_pb2 as model_pb
from prometheus_client import CollectorRegistry, generate_latest

from inference_svc.chat.templates import ChatTemplates
from inference_svc.engine.cost_model.step_clock import BOUNDS_S
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest
from inference_svc.engine.events import (
    DiskCacheLoad,
    DraftTokens,
    Embedded,
    ModelLoad,
    StepHistogram,
    TierLoad,
)
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.embedding_requests import PendingEmbedding
from inference_svc.engine_client.load import disk_cache_load
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import EngineConfig, ModelReady
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.gauges import EngineGauges, ModelGauges
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.model_pool.added_models import AddedModelsService
from inference_svc.model_pool.pool import ModelPool
from inference_svc.rpc import load_info, model_info
from inference_svc.rpc.adapters import AdapterService
from inference_svc.rpc.engine_servicer import Context, EngineServicer, ServerInfo
from inference_svc.rpc.explanation import Explanations
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.sessions import SessionLog
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import NO_SNAPSHOTS, SnapshotStore
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.pool import SandboxPool
from tests.support.fake_backend import VOCABULARY_SIZE
from tests.support.pooled import PoolHarness, make_entry
from tests.support.sandbox_jobs import InlineJobs
from tests.support.sequences import make_request

REPORT = ModelLoad(
    "m",
    num_used_cells=30,
    num_idle_cells=10,
    saved=TierLoad(2, 99, 512, 1000, 7, 3, 5, 1),
    num_followers=4,
    num_preempted=1,
    num_preemptions=5,
    num_moves=7,
    draft_tokens=9,
    accepted_draft_tokens=6,
    by_draft_model=DraftTokens(4, 3),
    step_times=(StepHistogram(2, False, (1, 3, *(0 for _ in BOUNDS_S[1:])), 0.25),),
)


def make_engine() -> EngineClient:
    """Two slots, one running and two waiting sequences, and half an embedding request."""
    settings = BackendSettings(Path("m.gguf"), 2, 50, 64, 64, 1, 1)
    engine = EngineClient(
        "m",
        LocalEngine(EngineConfig("m", settings, chunk_cap=16, threads=1, cores=1)).spawn,
        QueueLimits(4, 1000, 1000),
        ReaderLimits(100, 60.0),
    )
    limits = EmbeddingLimits(64, 64, 4, 256, 8, VOCABULARY_SIZE)
    engine.ready = ModelReady("m", 2, 50, 64, WarmUp(1, "", {}), 1.0, limits)
    engine.report = REPORT
    engine.disk_cache = DiskCacheLoad(2.0, TierLoad(4, 80, 256, 900, 1, 2, 6, 2))
    generation = OutputStream(
        "r", (0, 1, 2), ReaderLimits(9, 9.0), set_paused=lambda _: None, cancel=lambda: None
    )
    for i, (slot, priority) in enumerate([(0, 2), (None, 3), (None, 1)]):
        request = replace(make_request(i, priority=priority), model="m")
        engine.sequences.live[i] = ActiveSequence(
            request, generation, "", time.monotonic(), slot=slot
        )
    inputs = array("i", [1, 2]), array("i", [3, 4, 5])
    embedding_request = EmbeddingRequest(7, "m", inputs, request_id="e")
    result = asyncio.get_running_loop().create_future()
    engine.embeddings.live[7] = PendingEmbedding(embedding_request, result)
    engine.embeddings.deliver(Embedded(7, "m", 0, np.zeros(8, np.float32), 2, is_last=False))
    return engine


def make_pool(engine: EngineClient) -> ModelPool:
    harness = PoolHarness(make_entry("m"))
    harness["m"].engine = engine
    return harness.pool


def scrape(engine: EngineClient, *, vllm_names: bool = False) -> dict[str, float]:
    """Return all exported samples by name and labels."""
    registry = CollectorRegistry()
    registry.register(EngineGauges(lambda: [engine], vllm_names=vllm_names))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def test_gauges_are_exported_with_names_and_labels() -> None:
    """vLLM's names are not exported by default."""
    samples = scrape(make_engine())

    assert (
        samples.items()
        >= {
            'corral_num_requests_waiting{model="m"}': 2,
            'corral_num_requests_running{model="m"}': 1,
            'corral_kv_cache_usage{model="m"}': 0.3,
            'corral_slots{model="m"}': 2,
            'corral_kv_cells{model="m",state="running"}': 20,
            'corral_kv_cells{model="m",state="idle"}': 10,
            'corral_kv_cells{model="m",state="free"}': 70,
            'corral_queue_requests{model="m",priority="interactive"}': 1,
            'corral_queue_requests{model="m",priority="normal"}': 0,
            'corral_queue_tokens{model="m",priority="batch"}': 3,
            'corral_num_followers{model="m"}': 4,
            'corral_num_preempted{model="m"}': 1,
            'corral_saved_prefixes{model="m"}': 2,
            'corral_saved_prefix_bytes{model="m"}': 99,
            'corral_saved_prefix_limit_bytes{model="m"}': 1000,
            'corral_saved_prefix_events_total{event="hit",model="m"}': 7,
            'corral_saved_prefix_events_total{event="miss",model="m"}': 3,
            'corral_saved_prefix_events_total{event="written",model="m"}': 5,
            'corral_saved_prefix_events_total{event="evicted",model="m"}': 1,
            "corral_archive_files": 4,
            "corral_archive_bytes": 80,
            "corral_archive_limit_files": 256,
            "corral_archive_limit_bytes": 900,
            'corral_archive_events_total{event="hit",model="m"}': 1,
            'corral_archive_events_total{event="evicted",model="m"}': 2,
            "corral_snapshot_files": 0,
            "corral_snapshot_file_bytes": 0,
            'corral_embedding_requests{model="m"}': 1,
            'corral_embedding_inputs_left{model="m"}': 1,
            'corral_embedding_tokens_left{model="m"}': 3,
            'corral_draft_tokens_total{method="ngram",model="m",outcome="accepted"}': 3,
            'corral_draft_tokens_total{method="ngram",model="m",outcome="rejected"}': 2,
            'corral_draft_tokens_total{method="draft_model",model="m",outcome="accepted"}': 3,
            'corral_draft_tokens_total{method="draft_model",model="m",outcome="rejected"}': 1,
        }.items()
    )
    assert not [name for name in samples if name.startswith("vllm:")]


async def test_step_times_are_a_histogram_by_rows() -> None:
    """Buckets are cumulative."""
    samples = scrape(make_engine())
    labels = 'model="m",prompt="false",rows="2"'

    assert samples[f'corral_engine_step_seconds_bucket{{le="0.001",{labels}}}'] == 1
    assert samples[f'corral_engine_step_seconds_bucket{{le="0.0025",{labels}}}'] == 4
    assert samples[f'corral_engine_step_seconds_bucket{{le="+Inf",{labels}}}'] == 4
    assert samples[f"corral_engine_step_seconds_count{{{labels}}}"] == 4
    assert samples[f"corral_engine_step_seconds_sum{{{labels}}}"] == 0.25


async def test_what_routers_read_is_also_exported_with_vllm_names() -> None:
    """Names and labels of the model server protocol of the Gateway API Inference Extension."""
    engine = make_engine()
    for sequence_id, name in ((0, "french"), (0, "legal"), (1, "french")):
        adapter = Adapter(name, "m", *[None] * 3)  # type: ignore[arg-type]  # the name is enough
        engine.sequences.live[sequence_id].adapters += (adapter,)
    samples = scrape(engine, vllm_names=True)

    assert samples['vllm:num_requests_waiting{model_name="m"}'] == 2
    assert samples['vllm:num_requests_running{model_name="m"}'] == 1
    assert samples['vllm:kv_cache_usage_perc{model_name="m"}'] == 0.3
    labels = 'block_size="16",model_name="m",num_gpu_blocks="6"'
    assert samples[f"vllm:cache_config_info{{{labels}}}"] == 1
    labels = 'max_lora="2",running_lora_adapters="french,legal",waiting_lora_adapters="french"'
    assert abs(samples[f"vllm:lora_requests_info{{{labels}}}"] - time.time()) < 60


async def test_the_wait_of_the_oldest_request_is_exported_by_priority() -> None:
    """An alert can tell a queue that moves from one that does not."""
    engine = make_engine()
    engine.sequences.live[1].arrived_at -= 30
    samples = scrape(engine)

    assert 30 <= samples['corral_queue_oldest_seconds{model="m",priority="interactive"}'] < 90
    assert samples['corral_queue_oldest_seconds{model="m",priority="normal"}'] == 0


async def test_models_have_one_state() -> None:
    """Also those that are not loaded."""
    registry = CollectorRegistry()
    registry.register(ModelGauges([make_entry("m")]))
    states = {
        sample.labels["state"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }

    assert states == {"available": 1, "loading": 0, "ready": 0, "unloading": 0, "failed": 0}


async def test_an_engine_without_a_report_has_empty_gauges() -> None:
    """All cells are free."""
    engine = make_engine()
    engine.sequences.live.clear()
    engine.report = None
    samples = scrape(engine)

    assert samples['corral_num_requests_running{model="m"}'] == 0
    assert samples['corral_kv_cache_usage{model="m"}'] == 0
    assert samples['corral_kv_cells{model="m",state="free"}'] == 100


async def test_the_utilization_is_that_of_the_fullest_model() -> None:
    """Of its slots, also by what waits, or of its KV cache; one that embeds has no slots."""
    harness, busy, idle = PoolHarness("m", "n"), make_engine(), make_engine()
    harness["m"].engine, harness["n"].engine = busy, idle
    busy.sequences.slots = idle.sequences.slots = 2
    idle.sequences.live.clear()
    idle.embeddings.live.clear()
    found = [load_info.utilization(harness.pool)]
    busy.sequences.live.clear()
    found.append(load_info.utilization(harness.pool))
    busy.embeddings.live.clear()
    found.append(load_info.utilization(harness.pool))
    busy.report = idle.report = None
    found.append(load_info.utilization(harness.pool))

    assert found == [1.5, 1.0, 0.2, 0.0]
    assert load_info.utilization(PoolHarness().pool) == 0.0


async def test_the_load_over_grpc_has_the_same_values() -> None:
    """Including embedding requests, step histograms and both prefix caches."""
    load = load_info.load(make_pool(make_engine()))

    assert [(queue.priority, queue.num_requests, queue.num_tokens) for queue in load.queues] == [
        (1, 1, 3),
        (3, 1, 3),
    ]
    assert (load.num_followers, load.num_preempted, load.preemptions_total) == (4, 1, 5)
    assert load.moves_total == 7
    assert (load.draft_tokens_total, load.accepted_draft_tokens_total) == (9, 6)
    by_model = load.draft_model_tokens_total, load.accepted_draft_model_tokens_total
    assert by_model == (4, 3)
    embedding = load.embedding
    assert (embedding.num_requests, embedding.num_inputs, embedding.num_tokens) == (1, 1, 3)
    assert (embedding.inputs_total, embedding.tokens_total) == (1, 2)
    (steps,) = load.step_histograms
    assert (steps.model, steps.max_rows, steps.has_prompt) == ("m", 2, False)
    assert len(steps.counts) == len(steps.bounds) + 1
    assert sum(steps.counts) == 4
    saved, archive = load.saved_prefixes, load.archive
    assert (saved.num_entries, saved.num_bytes, saved.max_bytes) == (2, 99, 1000)
    assert (saved.hits_total, saved.misses_total) == (7, 3)
    assert (archive.num_entries, archive.max_entries, archive.max_bytes) == (4, 256, 900)
    assert (archive.written_total, archive.evicted_total) == (6, 2)


async def test_shared_cells_are_counted_once() -> None:
    """The size of a unified cache does not depend on the number of slots."""
    engine = make_engine()
    assert engine.ready is not None
    engine.ready = replace(engine.ready, shared_cells=64)
    entry = make_pool(engine).catalog.resolve("m", "p")
    limits = model_info.model(entry).resolved_limits

    assert limits.layout == model_pb.KV_LAYOUT_UNIFIED
    assert limits.kv_bytes == 64 * entry.model.file.kv_bytes_per_token


def test_the_disk_cache_load_of_several_engines_is_merged() -> None:
    """Event counts are summed; sizes of the shared folder are the latest ones."""
    latest = DiskCacheLoad(2.0, TierLoad(3, 30, 9, 99, 1, 1, 1, 1))
    earlier = DiskCacheLoad(1.0, TierLoad(5, 50, 9, 99, 1, 2, 3, 4))

    assert disk_cache_load([earlier, latest]) == TierLoad(3, 30, 9, 99, 2, 3, 4, 5)
    assert disk_cache_load([]) == TierLoad()


def make_servicer() -> EngineServicer:
    pool = make_pool(make_engine())
    info = ServerInfo(pb.RequestLimits(), 0.0)
    adapters = AdapterService(pool.catalog, InlineJobs(), (), Path())
    snapshots = SnapshotService(pool, SnapshotStore(NO_SNAPSHOTS), DiskPrefixCache(NO_SNAPSHOTS))
    explanations = Explanations(pool, ChatTemplates(InlineJobs()), SandboxPool())
    added = cast(AddedModelsService, None)
    sessions = SessionLog(EngineMetrics(CollectorRegistry()).divergences)
    return EngineServicer(pool, info, adapters, snapshots, added, explanations, sessions)


async def test_a_drain_counts_generations_and_embedding_requests() -> None:
    """One generation of three choices and one embedding request are two requests."""
    drained = await make_servicer().Drain(pb.DrainRequest(), cast(Context, None))

    assert drained.num_requests == 2


async def test_flushing_skips_an_engine_that_is_not_running() -> None:
    """It is no error."""
    flushed = await make_servicer().FlushCache(pb.FlushCacheRequest(), cast(Context, None))

    assert flushed.num_tokens == 0
