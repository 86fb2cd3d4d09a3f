"""Tests of loading, using, sharing and unloading models, with fake engines."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from inference_svc.engine_client.client import EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.eviction import ModelState
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy, Placement
from svc_kit import errors
from svc_kit.lifecycle import StartupError
from tests.support.pooled import GIB, PoolHarness, make_entry, settle

ON_GPU = LayerSplit(Placement(), num_layers=31)
GPU_MACHINE = DeviceBytes(100 * GIB, {"CUDA0": 8 * GIB})


async def use(harness: PoolHarness, name: str, stack: AsyncExitStack | None = None) -> str:
    """Use a model, until `stack` closes if given; returns its name."""
    async with AsyncExitStack() as own_stack:
        loaded = await (stack or own_stack).enter_async_context(harness.pool.use(harness[name]))
        harness.clock.now += 1
        return loaded.processor.name


def gpu_harness(free: DeviceBytes = GPU_MACHINE, **sizes: float) -> PoolHarness:
    """A machine with one GPU; the models named by `sizes` (GiB) go there, the model "cpu" not."""
    models = [make_entry(name, gib, layer_split=ON_GPU) for name, gib in sizes.items()]
    return PoolHarness("cpu", *models, budget=100 * GIB, free=free)


async def test_a_call_loads_a_model_by_name_or_alias_once() -> None:
    """An empty name is the first model."""
    harness = await PoolHarness(make_entry("a", aliases=("gpt-4o",))).start()

    assert harness["a"].state is ModelState.AVAILABLE
    assert [await use(harness, name) for name in ("gpt-4o", "a", "")] == ["a", "a", "a"]
    assert len(harness.loader.engines) == 1


async def test_an_unknown_model_is_not_found() -> None:
    harness = await PoolHarness("a").start()

    with pytest.raises(errors.ModelNotFound):
        await use(harness, "b")
    assert harness.loader.engines == []


async def test_a_model_is_not_loaded_for_an_operation_that_it_does_not_support() -> None:
    """The class is checked before the load."""
    harness = await PoolHarness("a").start()

    with pytest.raises(errors.ModelCannot):
        async with harness.pool.use(harness["a"], ModelFile.check_ranks):
            pass
    assert harness.loader.engines == []


async def test_model_names_and_aliases_are_unique() -> None:
    """An alias may not hide a model."""
    with pytest.raises(StartupError, match="'b' is given to 'a' and to 'b'"):
        Catalog([make_entry("a", aliases=("b",)), make_entry("b")])


async def test_models_with_policy_start_are_loaded_before_calls_are_accepted() -> None:
    """The others are loaded by their first call."""
    harness = PoolHarness(make_entry("a", policy=LoadPolicy.START), "b")
    with pytest.raises(errors.ModelLoading):
        await use(harness, "a")
    await harness.start()

    assert [harness[name].state for name in "ab"] == [ModelState.READY, ModelState.AVAILABLE]
    assert harness.pool.state is EngineState.SERVING


async def test_startup_fails_if_the_models_with_policy_start_do_not_fit() -> None:
    """The message has the sum of their sizes."""
    models = [make_entry(name, 6, policy=LoadPolicy.START) for name in "ab"]
    with pytest.raises(
        StartupError, match=r"needs \d+ bytes of memory, but only \d+ are available"
    ):
        await PoolHarness(*models).start()


@pytest.mark.parametrize(("pinned", "uses"), [(False, "aba"), (True, "ab")])
async def test_the_least_recently_used_model_is_evicted_unless_pinned(
    pinned: bool, uses: str
) -> None:
    """Load order does not matter."""
    harness = await PoolHarness(make_entry("a", pinned=pinned), "b", "c").start()
    for name in (*uses, "c"):
        await use(harness, name)

    assert harness.states() == {"a": "ready", "b": "available", "c": "ready"}
    assert harness.loader.alive("b") == []


async def test_a_load_waits_for_memory_of_a_model_in_use() -> None:
    """It continues when the use ends."""
    harness = await PoolHarness(make_entry("a", 6), make_entry("b", 6)).start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        call = asyncio.create_task(use(harness, "b"))
        await settle()
        assert not call.done()
        assert harness.states() == {"a": "ready", "b": "loading"}

    assert await call == "b"
    assert harness.states() == {"a": "available", "b": "ready"}


async def test_waiting_for_memory_times_out_with_memory_in_use() -> None:
    """The model stays available."""
    harness = await PoolHarness(make_entry("a", 6), make_entry("b", 6), memory_wait_s=0).start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        with pytest.raises(errors.MemoryInUse) as refusal:
            await use(harness, "b")

    assert refusal.value.needed_bytes > 6 * GIB > refusal.value.available_bytes
    assert harness["b"].state is ModelState.AVAILABLE


async def test_a_model_that_can_never_fit_is_refused_without_evictions() -> None:
    """A background load is refused at once too."""
    harness = await PoolHarness("a", make_entry("huge", 11)).start()
    await use(harness, "a")
    with pytest.raises(errors.ModelTooLarge) as refusal:
        await use(harness, "huge")
    with pytest.raises(errors.ModelTooLarge):
        await harness.pool.load(harness["huge"], wait=False)

    assert refusal.value.needed_bytes > 11 * GIB
    assert refusal.value.available_bytes == 10 * GIB
    assert harness.states() == {"a": "ready", "huge": "available"}


async def test_a_model_on_a_gpu_is_limited_by_the_memory_of_the_gpu() -> None:
    """Models on the GPU are evicted for it, those in the machine's memory are not."""
    harness = await gpu_harness(a=4, b=5, huge=9).start()
    for name in ("cpu", "a", "b"):
        await use(harness, name)
    with pytest.raises(errors.ModelTooLarge) as refusal:
        await use(harness, "huge")

    assert refusal.value.needed_bytes > 9 * GIB
    assert refusal.value.available_bytes == 8 * GIB
    assert harness.num_refreshes == 4  # before each load
    states = {"cpu": "ready", "a": "available", "b": "ready", "huge": "available"}
    assert harness.states() == states


async def test_memory_of_a_restarting_engine_is_reserved() -> None:
    """Another load evicts the model instead of using the memory."""
    harness = await gpu_harness(a=4, b=5).start()
    await use(harness, "a")
    harness.loader.engines[0].crash()
    await use(harness, "b")

    assert harness.states() == {"cpu": "available", "a": "available", "b": "ready"}


async def test_memory_of_a_restarting_engine_is_reserved_while_its_model_unloads() -> None:
    """The engine restarts because a call still uses it, so other loads wait."""
    harness = await gpu_harness(a=4, b=5).start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        harness.loader.engines[0].crash()
        await harness.pool.unload(harness["a"], force=False, wait=False)
        waiting = asyncio.create_task(use(harness, "b"))
        await settle()
        states, num_engines = harness.states(), len(harness.loader.engines)
    await waiting

    assert (states["a"], states["b"], num_engines) == ("unloading", "loading", 1)
    assert harness.states() == {"cpu": "available", "a": "available", "b": "ready"}


async def test_a_load_by_an_operator_refreshes_the_free_memory() -> None:
    """The GPU may have been full at the last reading."""
    harness = await gpu_harness(DeviceBytes(100 * GIB, {"CUDA0": 0}), a=4).start()
    with pytest.raises(errors.ModelTooLarge):
        await harness.pool.load(harness["a"], wait=True)
    harness.free_after_refresh = GPU_MACHINE
    await harness.pool.load(harness["a"], wait=True)

    assert harness["a"].state is ModelState.READY


async def test_a_model_that_uses_more_than_planned_evicts_others() -> None:
    """The budget applies to measured memory."""
    models = [make_entry("a", 3), make_entry("b", 3), make_entry("c", 2)]
    harness = await PoolHarness(*models).start()
    await use(harness, "a")
    harness.loader.excess = 2 * GIB
    for name in "bc":
        await use(harness, name)

    assert harness.states() == {"a": "available", "b": "ready", "c": "ready"}


async def test_an_unload_may_start_while_the_load_still_enforces_the_budget() -> None:
    """Calls of the model continue until they end, and so does the unload."""
    harness = await PoolHarness(make_entry("a", 3), make_entry("b", 5)).start()
    await use(harness, "a")
    first = harness.loader.engines[0]
    first.may_close.clear()
    harness.loader.excess = 3 * GIB
    load = asyncio.create_task(harness.pool.load(harness["b"], wait=True))
    await settle()
    assert harness.states() == {"a": "unloading", "b": "ready"}
    async with AsyncExitStack() as stack:
        await use(harness, "b", stack)
        unload = asyncio.create_task(harness.pool.unload(harness["b"], force=False, wait=True))
        await settle()
        first.may_close.set()
        await load
        assert harness.states() == {"a": "available", "b": "unloading"}
        assert not harness.loader.engines[1].is_closed
    await unload

    assert harness.states() == {"a": "available", "b": "available"}


async def test_a_background_load_does_not_block_other_models() -> None:
    """A call for the loading model waits for `wait_s` at most."""
    harness = await PoolHarness("a", "b", wait_s=0.01).start()
    await harness.pool.load(harness["a"], wait=True)
    harness.loader.loads_immediately = False
    await harness.pool.load(harness["b"], wait=False)
    await settle()

    assert harness["b"].state is ModelState.LOADING
    assert await use(harness, "a") == "a"
    with pytest.raises(errors.ModelLoading):
        await use(harness, "b")
    harness.loader.loading()[0].finish_load()
    await settle()
    assert await use(harness, "b") == "b"


async def test_concurrent_calls_share_one_load() -> None:
    """All of them wait for it."""
    harness = await PoolHarness("a").start(loads_immediately=False)
    calls = [asyncio.create_task(use(harness, "a")) for _ in range(5)]
    await settle()
    (engine,) = harness.loader.engines
    engine.finish_load()

    assert await asyncio.gather(*calls) == ["a"] * 5


async def test_a_model_with_waiting_calls_is_not_evicted_before_they_use_it() -> None:
    """It is idle for a moment between its load and its first use."""
    harness = PoolHarness(make_entry("a", 6), make_entry("b", 6))
    await harness.start(loads_immediately=False)
    calls = [asyncio.create_task(use(harness, name)) for name in "ab"]
    await settle()
    harness.loader.loads_immediately = True
    harness.loader.loading()[0].finish_load()

    assert await asyncio.gather(*calls) == ["a", "b"]
    assert [engine.name for engine in harness.loader.engines] == ["a", "b"]


async def test_calls_do_not_retry_a_failed_load() -> None:
    """They get the error; an operator may retry."""
    harness = await PoolHarness("a").start(loads_immediately=False)
    call = asyncio.create_task(use(harness, "a"))
    await settle()
    harness.loader.engines[0].fail_load("no such tensor")
    for attempt in (call, use(harness, "a")):
        with pytest.raises(errors.ModelLoadFailed, match="no such tensor"):
            await attempt
    assert (harness["a"].state, len(harness.loader.engines)) == (ModelState.FAILED, 1)
    harness.loader.loads_immediately = True
    await harness.pool.load(harness["a"], wait=True)

    assert await use(harness, "a") == "a"


async def test_calls_do_not_load_a_model_with_policy_manual() -> None:
    """Only an operator loads it."""
    harness = await PoolHarness(make_entry("a", policy=LoadPolicy.MANUAL)).start()
    with pytest.raises(errors.ModelNotLoaded):
        await use(harness, "a")
    await harness.pool.load(harness["a"], wait=True)

    assert await use(harness, "a") == "a"


async def test_the_limits_of_a_loaded_model_cannot_change() -> None:
    """The same limits are accepted."""
    harness = await PoolHarness("a").start()
    await harness.pool.load(harness["a"], RequestedLimits(slots=3), wait=True)
    with pytest.raises(errors.InvalidField, match="unload it first"):
        await harness.pool.load(harness["a"], RequestedLimits(slots=4), wait=True)
    await harness.pool.load(harness["a"], RequestedLimits(slots=3), wait=True)

    assert harness["a"].requested.slots == 3


async def test_limits_that_do_not_fit_are_not_stored() -> None:
    """The next load uses the previous ones."""
    harness = await PoolHarness("a").start()
    with pytest.raises(errors.ModelTooLarge):
        await harness.pool.load(harness["a"], RequestedLimits(1, 10**12), wait=True)

    assert await use(harness, "a") == "a"


async def test_an_unload_waits_for_the_last_use() -> None:
    """New calls wait for the unload and load the model again."""
    harness = await PoolHarness("a").start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        unload = asyncio.create_task(harness.pool.unload(harness["a"], force=False, wait=True))
        pending = asyncio.create_task(use(harness, "a"))
        await settle()
        assert not unload.done()
        assert harness["a"].state is ModelState.UNLOADING
        assert not harness.loader.engines[0].is_closed
    await unload

    assert await pending == "a"
    assert [engine.is_closed for engine in harness.loader.engines] == [True, False]


async def test_an_unloaded_engine_is_closed_with_model_unloaded() -> None:
    """Late requests get this error, not DRAINING."""
    harness = await PoolHarness("a").start()
    await use(harness, "a")
    await harness.pool.unload(harness["a"], force=False, wait=True)

    assert harness.loader.engines[0].closed_with == errors.ModelUnloaded(model="a")


async def test_an_engine_archives_its_prefixes_before_it_is_closed() -> None:
    """Not if the unload is forced."""
    harness = await PoolHarness("a").start()
    for force in (False, True):
        await use(harness, "a")
        await harness.pool.unload(harness["a"], force=force, wait=True)

    assert [engine.is_archived for engine in harness.loader.engines] == [True, False]


async def test_a_load_by_an_operator_waits_for_a_running_unload() -> None:
    """Without `wait` it is refused."""
    harness = await PoolHarness("a").start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        await harness.pool.unload(harness["a"], force=False, wait=False)
        with pytest.raises(errors.ModelLoading):
            await harness.pool.load(harness["a"], wait=False)
        load = asyncio.create_task(harness.pool.load(harness["a"], RequestedLimits(3), wait=True))
        await settle()
        assert not load.done()
    await load

    assert (harness["a"].state, harness["a"].requested.slots) == (ModelState.READY, 3)
    assert [engine.is_closed for engine in harness.loader.engines] == [True, False]


async def test_a_forced_unload_ends_running_uses() -> None:
    """Even if an unload already waits for them."""
    harness = await PoolHarness("a").start()
    async with AsyncExitStack() as stack:
        await use(harness, "a", stack)
        await harness.pool.unload(harness["a"], force=False, wait=False)
        assert not harness.loader.engines[0].is_closed
        await harness.pool.unload(harness["a"], force=True, wait=False)
        assert harness.loader.engines[0].closed_with == errors.ModelUnloaded(model="a")
        assert harness.states() == {"a": "unloading"}
    await settle()

    assert harness.states() == {"a": "available"}


async def test_an_unload_cancels_a_load() -> None:
    harness = await PoolHarness("a").start(loads_immediately=False)
    call = asyncio.create_task(use(harness, "a"))
    await settle()
    await harness.pool.unload(harness["a"], force=False, wait=True)
    with pytest.raises(errors.ModelUnloaded):
        await call

    assert harness["a"].state is ModelState.AVAILABLE
    assert harness.loader.alive("a") == []


async def test_a_forced_unload_does_not_end_a_load_that_follows_it() -> None:
    """The load was requested after the unload."""
    harness = await PoolHarness("a").start(loads_immediately=False)
    await harness.pool.load(harness["a"], wait=False)
    await settle()
    (first,) = harness.loader.engines
    first.may_close.clear()
    unload = asyncio.create_task(harness.pool.unload(harness["a"], force=True, wait=False))
    await settle()
    load = asyncio.create_task(harness.pool.load(harness["a"], wait=True))
    await settle()
    first.may_close.set()
    await unload
    second = harness.loader.engines[1]
    assert not second.is_closed
    second.finish_load()
    await load

    assert harness["a"].state is ModelState.READY


async def test_unloading_a_model_that_is_not_loaded_does_nothing() -> None:
    """It is no error."""
    harness = await PoolHarness("a").start()
    await harness.pool.unload(harness["a"], force=False, wait=True)

    assert harness["a"].state is ModelState.AVAILABLE


async def test_a_drain_finishes_running_calls_and_refuses_new_ones() -> None:
    harness = await PoolHarness("a").start(loads_immediately=False)
    call = asyncio.create_task(use(harness, "a"))
    await settle()
    harness.pool.drain()
    idle = asyncio.create_task(harness.pool.wait_idle())
    with pytest.raises(errors.Draining):
        await use(harness, "a")
    assert (harness.pool.state, idle.done()) == (EngineState.DRAINING, False)
    harness.loader.engines[0].finish_load()
    await idle
    harness.pool.undrain()

    assert (await call, await use(harness, "a")) == ("a", "a")


async def test_the_pool_serves_while_any_engine_does() -> None:
    """A model whose engine restarts is shown as loading."""
    harness = await PoolHarness("a", "b").start()
    for name in "ab":
        await use(harness, name)
    states = [harness.pool.state]
    for engine in harness.loader.engines:
        engine.crash()
        states.append(harness.pool.state)

    serving, restarting = EngineState.SERVING, EngineState.RESTARTING
    assert states == [serving, serving, restarting]
    assert harness["a"].state is ModelState.LOADING


async def test_a_restarting_engine_shows_its_progress() -> None:
    """Until it serves again."""
    harness = await PoolHarness("a").start()
    await use(harness, "a")
    (engine,) = harness.loader.engines
    engine.crash()
    harness.loader.report_progress("a", 0.5)
    during = harness["a"].state, harness["a"].progress
    engine.recover()

    assert during == (ModelState.LOADING, LoadProgress(LoadPhase.WEIGHTS, 0.5))
    assert (harness["a"].state, harness["a"].progress) == (ModelState.READY, None)


async def test_a_watch_yields_every_model_and_then_its_changes() -> None:
    """Including the progress and the end of loads."""
    harness = await PoolHarness("a", "b").start(loads_immediately=False)
    watch = harness.pool.watch()

    async def change() -> ModelEntry:
        entry = await anext(watch)
        assert isinstance(entry, ModelEntry)
        return entry

    first = [(await change()).name for _ in range(2)]
    load = asyncio.create_task(harness.pool.load(harness["b"], wait=True))
    changes = []
    for fraction in (0.0, 0.25, 0.5):
        await settle()
        if fraction:
            harness.loader.report_progress("b", fraction)
        entry = await change()
        changes.append((entry.name, entry.state.value, entry.progress and entry.progress.fraction))
    harness.loader.engines[0].finish_load()
    await load
    last = await change()

    assert first == ["a", "b"]
    assert changes == [("b", "loading", fraction) for fraction in (0.0, 0.25, 0.5)]
    assert (last.state, last.progress) == (ModelState.READY, None)
