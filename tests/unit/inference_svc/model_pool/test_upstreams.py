"""Tests of models that upstream engines serve in the pool, with fake engines."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from pydantic import ValidationError

from inference_svc.chat.templates import ChatTemplates
from inference_svc.config import InferenceSettings
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.features import Features
from inference_svc.engine_client.messages import ModelReady
from inference_svc.llama.warmup import WarmUp
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.discovery import find_models, make_upstream_entry
from inference_svc.model_pool.engine_config import upstream_target
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.loader import ModelLoader
from inference_svc.model_pool.settings_models import SettingsModels
from inference_svc.model_settings import ModelSettings
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelClass, ModelFile, fileless_model
from inference_svc.models.placement import LoadPolicy
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import FolderLimits, SnapshotStore
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit import errors
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.sandbox.pool import SandboxPool
from tests.support.pooled import GIB, PoolHarness, make_entry, settle
from tests.unit.inference_svc.models.test_memory_plan import make_model_file

UPSTREAM = UpstreamSettings(urls=["http://127.0.0.1:9"], tokenizer="bundled")


def upstream_entry(name: str = "up", problem: str = "", **settings: object) -> ModelEntry:
    file = replace(make_model_file(name=name), problem=problem)
    return make_upstream_entry(file, UPSTREAM, ModelSettings.model_validate(settings))


def start_model(name: str) -> ModelEntry:
    return make_entry(name, policy=LoadPolicy.START)


async def start(*models: ModelEntry | str) -> PoolHarness:
    """A pool whose local engines load at once, and whose upstreams are away. It does not wait."""
    return await PoolHarness(*models, wait_s=0).start()


async def connect(harness: PoolHarness, name: str = "up") -> None:
    harness.loader.alive(name)[-1].finish_load()
    await settle()


async def test_an_engine_that_is_away_delays_neither_the_start_nor_other_models() -> None:
    """Not even their loads, one of which runs at a time."""
    harness = await start(upstream_entry(), start_model("a"), "b")

    assert harness.states() == {"up": "loading", "a": "ready", "b": "available"}
    with pytest.raises(errors.ModelLoading) as refused:
        async with harness.pool.use(harness["up"]):
            pass
    assert refused.value.retry_after is not None
    await harness.pool.load(harness["b"], wait=True)
    await connect(harness)
    async with harness.pool.use(harness[""]) as used:
        assert used.processor.name == "up"


async def test_a_model_of_an_upstream_needs_no_memory_and_is_never_evicted() -> None:
    """Of two models that do not fit together the other one makes room, and nothing for one that
    takes more memory than planned."""
    harness = await start(upstream_entry(), make_entry("a", 6), make_entry("b", 6))
    await connect(harness)
    for name in "ab":
        harness.clock.now += 1
        await harness.pool.load(harness[name], wait=True)
        assert harness["up"].state is ModelState.READY

    assert harness.states() == {"up": "ready", "a": "available", "b": "ready"}
    assert harness["up"].resident.memory.total == 0
    harness.loader.excess = 100 * GIB
    await harness.pool.load(harness["a"], wait=True)
    assert harness.states() == {"up": "ready", "a": "ready", "b": "available"}


async def test_a_refused_engine_fails_its_model_until_an_operator_tries_again() -> None:
    """The service starts, even if it has no other model: the engine may be another one later. What
    the engine said is not told to callers."""
    harness = PoolHarness(upstream_entry(), wait_s=0)
    starting = asyncio.create_task(harness.start())
    await settle()
    harness.loader.engines[0].fail_load("http://10.0.0.5: another vocabulary")
    await starting
    await settle()

    assert harness["up"].resident.problem == "http://10.0.0.5: another vocabulary"
    with pytest.raises(errors.ModelLoadFailed, match="operators see why") as refused:
        await use(harness)
    assert "10.0.0.5" not in str(refused.value)
    await harness.pool.load(harness["up"], wait=False)
    await settle()
    await connect(harness)
    assert harness.states() == {"up": "ready"}


async def test_a_lost_engine_is_no_state_of_the_service() -> None:
    """Its model is loading until it is back."""
    harness = await start(upstream_entry())
    await connect(harness)
    engine = harness.loader.alive("up")[0]
    engine.crash()

    assert harness.pool.state is EngineState.SERVING
    assert harness.states() == {"up": "loading"}
    with pytest.raises(errors.EngineRestarting):
        async with harness.pool.use(harness["up"]):
            pass
    engine.recover()
    assert harness.states() == {"up": "ready"}


async def test_an_upstream_has_no_limits_of_memory() -> None:
    harness = await start(upstream_entry(load="manual"))

    assert harness.states() == {"up": "available"}
    with pytest.raises(errors.InvalidField, match="upstream"):
        await harness.pool.load(harness["up"], RequestedLimits(slots=2), wait=False)


async def test_a_call_waits_while_an_engine_on_demand_connects() -> None:
    harness = await PoolHarness(upstream_entry(load="on_demand"), wait_s=60).start()
    call = asyncio.create_task(use(harness))
    await settle()
    await connect(harness)

    assert await call == "up"


async def test_a_call_during_whose_load_the_engine_is_refused_is_not_told_why() -> None:
    harness = await PoolHarness(upstream_entry(load="on_demand"), wait_s=60).start()
    call = asyncio.create_task(use(harness))
    await settle()
    harness.loader.engines[0].fail_load("http://10.0.0.5: another vocabulary")

    with pytest.raises(errors.ModelLoadFailed, match="operators see why") as refused:
        await call
    assert "10.0.0.5" not in str(refused.value)


async def use(harness: PoolHarness) -> str:
    async with harness.pool.use(harness["up"]) as used:
        return used.processor.name


async def test_a_service_without_a_usable_tokenizer_does_not_start() -> None:
    with pytest.raises(StartupError, match="no such file"):
        await start(upstream_entry(problem="no such file"))


async def test_an_upstream_that_has_changed_in_the_settings_is_connected_anew(
    tmp_path: Path,
) -> None:
    """After its running calls; a new one is added and another is removed."""
    upstreams = {"up": UPSTREAM, "old": UPSTREAM}
    before = InferenceSettings(upstreams=upstreams, data_dir=tmp_path)
    harness = await start(*find_models(before))
    await connect(harness)
    moved = UpstreamSettings(urls=["http://127.0.0.1:10"], tokenizer="bundled")
    async with harness.pool.use(harness["up"]):
        settings = InferenceSettings(upstreams={"up": moved, "new": UPSTREAM}, data_dir=tmp_path)
        await SettingsModels(harness.pool).follow(settings)
        await settle()
        assert harness.states() == {"up": "unloading", "new": "loading"}
    await settle()

    assert harness.states() == {"up": "loading", "new": "loading"}
    assert harness["up"].upstream == moved
    assert [each.is_closed for each in harness.loader.engines if each.name == "up"] == [True, False]


async def test_the_adapters_of_an_upstream_follow_the_settings(tmp_path: Path) -> None:
    """Each is a model of its own, while the engine lists it."""
    before, after = (
        InferenceSettings(
            upstreams={"up": UPSTREAM.model_copy(update={"adapters": adapters})}, data_dir=tmp_path
        )
        for adapters in (["a", "b"], ["b", "c"])
    )
    harness = await start(*find_models(before))
    await connect(harness)
    names = [[each.name for each in harness.catalog.visible_models("p")]]
    await SettingsModels(harness.pool).follow(after)
    await settle()
    await connect(harness)
    harness["up"].adapters.on_listed(frozenset({"b", "c"}))
    names.append([each.name for each in harness.catalog.visible_models("p")])

    assert names == [["a", "b", "up"], ["b", "c", "up"]]
    assert harness.catalog.resolve("c", "p").model is harness["up"]
    with pytest.raises(errors.ModelNotFound):
        harness.catalog.resolve("a", "p")


@pytest.mark.parametrize("tokenizer", ["", "engine"])
async def test_an_upstream_changes_its_kind_of_tokenizer_only_at_the_next_start(
    tmp_path: Path, tokenizer: str
) -> None:
    """As its tokenizer; without one it is used in text mode."""
    harness = await start(
        *find_models(InferenceSettings(upstreams={"up": UPSTREAM}, data_dir=tmp_path))
    )
    await connect(harness)
    changed = UpstreamSettings(urls=["http://127.0.0.1:9"], tokenizer=tokenizer)
    settings = InferenceSettings(upstreams={"up": changed}, data_dir=tmp_path)
    await SettingsModels(harness.pool).follow(settings)
    await settle()

    assert harness.states() == {"up": "ready"}
    assert harness["up"].upstream == UPSTREAM


async def test_an_upstream_runs_no_adapters_and_saves_no_snapshots(tmp_path: Path) -> None:
    """Each refusal names the model."""
    harness = await start(upstream_entry())
    await connect(harness)
    adapters = AdapterService(harness.catalog, cast(JobRunner, None), [tmp_path], tmp_path)
    folder, archive = FolderLimits(tmp_path, 1, 1), FolderLimits(tmp_path / "archive", 1, 1)
    snapshots = SnapshotService(harness.pool, SnapshotStore(folder), DiskPrefixCache(archive))

    with pytest.raises(errors.FeatureUnsupported, match="adapters of 'up'"):
        await adapters.load(AdapterOrder("voice", "up", "voice.gguf"))
    with pytest.raises(errors.FeatureUnsupported, match="snapshots of 'up'"):
        await snapshots.restore(engine_pb.RestoreSnapshotRequest(snapshot_id="s"))


def embedder(name: str = "vec") -> ModelEntry:
    """A model that embeds in text mode, as its settings say."""
    settings = UpstreamSettings(urls=["http://127.0.0.1:9"], task="embed")
    return make_upstream_entry(fileless_model(name), settings, ModelSettings())


def test_the_first_encoder_embeds_where_no_model_is_named() -> None:
    """Also that of an upstream, which otherwise is no default of a class; else a local model does.
    It is the default of other requests if it is first."""
    catalog = Catalog([upstream_entry(), make_entry("a")])
    with_embedder = Catalog([upstream_entry(), make_entry("a"), embedder()])

    assert catalog.find_model("").name == "up"
    assert catalog.find_model("", ModelClass.ENCODER).name == "a"
    assert with_embedder.find_model("", ModelClass.ENCODER).name == "vec"
    assert with_embedder.find_model("", ModelClass.DECODER).name == "a"


@pytest.mark.parametrize(
    ("file_class", "generates", "expected"),
    [
        (ModelClass.DECODER, True, ModelClass.DECODER),
        (ModelClass.DECODER, False, ModelClass.ENCODER),
        (ModelClass.ENCODER, True, ModelClass.DECODER),
        (ModelClass.RERANKER, False, ModelClass.RERANKER),
    ],
)
def test_the_engine_says_what_class_a_model_has(
    tmp_path: Path, file_class: ModelClass, generates: bool, expected: ModelClass
) -> None:
    """Not the file with its tokenizer, which may be of a model that is used in another way."""
    entry = upstream_entry()
    entry.file = replace(entry.file, model_class=file_class)
    features = Features("vllm", frozenset(), generates=generates, vector_size=4)
    ready = ModelReady("up", 4, 512, 512, WarmUp(0, "", {}), 0.0, features=features)
    entry.engine = cast(EngineClient, SimpleNamespace(ready=ready))
    loader = ModelLoader(
        InferenceSettings(data_dir=tmp_path),
        num_models=1,
        sandbox=cast(SandboxPool, None),
        templates=cast(ChatTemplates, None),
        metrics=cast(EngineMetrics, None),
    )
    loader.on_ready(entry, None)

    assert entry.file.model_class is expected


async def test_a_call_is_refused_by_what_the_engine_was_found_to_be() -> None:
    """Though it began before that was known."""
    harness = await PoolHarness(upstream_entry(load="on_demand"), wait_s=60).start()

    async def generate() -> None:
        async with harness.pool.use(harness["up"], ModelFile.check_generates):
            pass

    call = asyncio.create_task(generate())
    await settle()
    entry = harness["up"]
    entry.file = replace(entry.file, model_class=ModelClass.ENCODER)
    await connect(harness)

    with pytest.raises(errors.ModelCannot, match="class encoder"):
        await call


@pytest.mark.parametrize(
    ("settings", "is_valid"),
    [
        ({"task": "embed"}, True),
        ({"task": "embed", "kind": "openai"}, True),
        ({"task": "generate"}, True),
        ({"task": "embed", "tokenizer": "bundled"}, False),
        ({"task": "rerank"}, False),
    ],
)
def test_a_task_is_only_of_text_mode(settings: dict[str, str], is_valid: bool) -> None:
    """An engine with a tokenizer is asked."""
    fields = {"urls": ["http://127.0.0.1:9"], **settings}
    if is_valid:
        assert UpstreamSettings.model_validate(fields).task == settings["task"]
        return
    with pytest.raises(ValidationError, match="task"):
        UpstreamSettings.model_validate(fields)


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [
        ({"tokenizer": "bundled"}, None),
        ({"tokenizer": "bundled", "concurrency": 8}, 0),
        ({"tokenizer": "bundled", "concurrency": 8, "batch_ahead": 4}, 4),
        ({}, 0),
        ({"batch_ahead": 4}, 4),
    ],
)
def test_lines_of_batches_wait_in_engines_whose_slots_are_not_set(
    settings: dict[str, object], ahead: int | None
) -> None:
    """As many as they have slots; in text mode none."""
    upstream = UpstreamSettings.model_validate({"urls": ["http://127.0.0.1:9"], **settings})
    assert upstream_target("up", upstream).batch_ahead == ahead
