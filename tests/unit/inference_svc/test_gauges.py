"""Gauges in a scrape, and the same load over gRPC, of an engine without a process."""

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

from inference_svc.engine.cost_model.histograms import BOUNDS_S
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest
from inference_svc.engine.events import DiskCacheLoad, Embedded, ModelLoad, StepHistogram, TierLoad
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.embedding_requests import PendingEmbedding
from inference_svc.engine_client.load import disk_cache_load
from inference_svc.engine_client.messages import EngineConfig, ModelConfig, ModelReady
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.gauges import EngineGauges
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.warmup import WarmUp
from inference_svc.model_pool.pool import ModelPool
from inference_svc.rpc import load_info, model_info
from inference_svc.rpc.adapters import AdapterService
from inference_svc.rpc.engine_servicer import Context, EngineServicer, ServerInfo
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import NO_SNAPSHOTS, SnapshotStore
from svc_kit.sandbox.frames import InlineJobs
from tests.support.fake_backend import VOCABULARY_SIZE
from tests.support.pooled import PoolHarness, make_entry
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
    step_times=(StepHistogram(2, False, (1, 3, *(0 for _ in BOUNDS_S[1:])), 0.25),),
)


def make_engine() -> EngineClient:
    """Two slots, one running and two waiting, and an embedding request half done."""
    settings = BackendSettings(Path("m.gguf"), 2, 50, 64, 64, 1, 1)
    engine = EngineClient(
        EngineConfig(ModelConfig("m", settings, 16, 1), 1, "info", None, 0.0),
        QueueLimits(4, 1000),
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
            request, generation, "p", "", time.monotonic(), slot=slot
        )
    asked = EmbeddingRequest(7, "m", (array("i", [1, 2]), array("i", [3, 4, 5])), request_id="e")
    engine.embeddings.live[7] = PendingEmbedding(asked, asyncio.get_running_loop().create_future())
    engine.embeddings.deliver(Embedded(7, "m", 0, np.zeros(8, np.float32), 2, is_last=False))
    return engine


def a_pool(engine: EngineClient) -> ModelPool:
    """A pool with this engine's model."""
    harness = PoolHarness(make_entry("m"))
    harness["m"].engine = engine
    return harness.pool


def samples(engine: EngineClient, *, vllm_names: bool = False) -> dict[str, float]:
    """Every exported sample by name and labels."""
    registry = CollectorRegistry()
    registry.register(EngineGauges(lambda: [engine], vllm_names=vllm_names))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def test_gauges_have_their_names() -> None:
    """Dashboards and routers know them."""
    found = samples(make_engine())

    assert (
        found.items()
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
            'corral_draft_tokens_total{model="m",outcome="accepted"}': 6,
            'corral_draft_tokens_total{model="m",outcome="rejected"}': 3,
        }.items()
    )
    assert not [name for name in found if name.startswith("vllm:")]


async def test_step_time_is_a_histogram_by_rows() -> None:
    """Buckets add up, as Prometheus wants them."""
    found = samples(make_engine())
    labels = 'model="m",prompt="false",rows="2"'

    assert found[f'corral_engine_step_seconds_bucket{{le="0.001",{labels}}}'] == 1
    assert found[f'corral_engine_step_seconds_bucket{{le="0.0025",{labels}}}'] == 4
    assert found[f'corral_engine_step_seconds_bucket{{le="+Inf",{labels}}}'] == 4
    assert found[f"corral_engine_step_seconds_count{{{labels}}}"] == 4
    assert found[f"corral_engine_step_seconds_sum{{{labels}}}"] == 0.25


async def test_three_gauges_go_by_vllms_names_too() -> None:
    """Routers of the Gateway API inference extension look for exactly these."""
    found = samples(make_engine(), vllm_names=True)

    assert found['vllm:num_requests_waiting{model_name="m"}'] == 2
    assert found['vllm:num_requests_running{model_name="m"}'] == 1
    assert found['vllm:kv_cache_usage_perc{model_name="m"}'] == 0.3


async def test_an_engine_that_is_down_has_empty_gauges() -> None:
    """Nothing is left behind by the one before."""
    engine = make_engine()
    engine.sequences.live.clear()
    engine.report = None
    found = samples(engine)

    assert found['corral_num_requests_running{model="m"}'] == 0
    assert found['corral_kv_cache_usage{model="m"}'] == 0
    assert found['corral_kv_cells{model="m",state="free"}'] == 100


async def test_the_load_over_grpc_says_the_same() -> None:
    """Sums over the models, embedding requests and histograms with them."""
    load = load_info.load(a_pool(make_engine()))

    assert [(queue.priority, queue.num_requests, queue.num_tokens) for queue in load.queues] == [
        (1, 1, 3),
        (3, 1, 3),
    ]
    assert (load.num_followers, load.num_preempted, load.preemptions_total) == (4, 1, 5)
    assert load.moves_total == 7
    assert (load.draft_tokens_total, load.accepted_draft_tokens_total) == (9, 6)
    left = load.embedding
    assert (left.num_requests, left.num_inputs, left.num_tokens) == (1, 1, 3)
    assert (left.inputs_total, left.tokens_total) == (1, 2)
    (steps,) = load.step_histograms
    assert (steps.model, steps.max_rows, steps.has_prompt) == ("m", 2, False)
    assert len(steps.counts) == len(steps.bounds) + 1
    assert sum(steps.counts) == 4
    saved, archive = load.saved_prefixes, load.archive
    assert (saved.num_entries, saved.num_bytes, saved.max_bytes) == (2, 99, 1000)
    assert (saved.hits_total, saved.misses_total) == (7, 3)
    assert (archive.num_entries, archive.max_entries, archive.max_bytes) == (4, 256, 900)
    assert (archive.written_total, archive.evicted_total) == (6, 2)


async def test_cells_that_all_slots_share_are_counted_once() -> None:
    """In the unified layout the cache is as large as they are, whatever a slot may hold of them."""
    engine = make_engine()
    assert engine.ready is not None
    engine.ready = replace(engine.ready, shared_cells=64)
    entry = a_pool(engine).catalog.resolve("m", "p")
    limits = model_info.model(entry).resolved_limits

    assert limits.layout == model_pb.KV_LAYOUT_UNIFIED
    assert limits.kv_bytes == 64 * entry.model.file.kv_bytes_per_token


def test_engines_share_one_archive() -> None:
    """What happened is added up; the folder is as it was seen last, by whichever engine."""
    seen_last = DiskCacheLoad(2.0, TierLoad(3, 30, 9, 99, 1, 1, 1, 1))
    before = DiskCacheLoad(1.0, TierLoad(5, 50, 9, 99, 1, 2, 3, 4))

    assert disk_cache_load([before, seen_last]) == TierLoad(3, 30, 9, 99, 2, 3, 4, 5)
    assert disk_cache_load([]) == TierLoad()


def a_servicer() -> EngineServicer:
    """An `EngineServicer` over a pool with this engine."""
    pool = a_pool(make_engine())
    info = ServerInfo(pb.RequestLimits(), 0.0)
    loading = AdapterService(pool.catalog, InlineJobs(), (), Path())
    snapshots = SnapshotService(pool, SnapshotStore(NO_SNAPSHOTS), DiskPrefixCache(NO_SNAPSHOTS))
    return EngineServicer(pool, info, loading, snapshots)


async def test_a_drain_counts_embedding_requests_too() -> None:
    """One generation of three choices and one embedding request are two requests."""
    drained = await a_servicer().Drain(pb.DrainRequest(), cast(Context, None))

    assert drained.num_requests == 2


async def test_an_engine_that_is_not_up_has_nothing_to_forget() -> None:
    """The flush of the others does not fail for it."""
    flushed = await a_servicer().FlushCache(pb.FlushCacheRequest(), cast(Context, None))

    assert flushed.num_tokens == 0
