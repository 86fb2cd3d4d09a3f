"""Loading, using, sharing and freeing models, with engines that do as the test says."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from inference_svc.engine_client.client import EngineState
from inference_svc.engine_client.messages import LoadPhase, LoadProgress
from inference_svc.model_pool.catalog import Catalog
from inference_svc.model_pool.eviction import ModelState
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelFile
from inference_svc.models.placement import LoadPolicy, Placement
from svc_kit.errors import (
    Draining,
    InvalidField,
    MemoryInUse,
    ModelCannot,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
    ModelNotLoaded,
    ModelTooLarge,
    ModelUnloaded,
)
from svc_kit.lifecycle import StartupError
from tests.support.pooled import GIB, Pooled, a_known, settle


async def use(pooled: Pooled, name: str, stack: AsyncExitStack | None = None) -> str:
    """Use a model, until the stack closes where one is given; its name."""
    async with AsyncExitStack() as own:
        loaded = await (stack or own).enter_async_context(pooled.pool.use(pooled[name]))
        pooled.clock.now += 1
        return loaded.front.name


async def test_a_call_loads_the_model_it_names_by_name_or_alias() -> None:
    """On demand, once; the next call finds it there."""
    pooled = await Pooled(a_known("a", aliases=("gpt-4o",))).started()

    assert pooled["a"].state is ModelState.AVAILABLE
    assert [await use(pooled, name) for name in ("gpt-4o", "a", "")] == ["a", "a", "a"]
    assert len(pooled.loader.engines) == 1


async def test_what_nobody_knows_is_not_found() -> None:
    """Nothing is loaded for it."""
    pooled = await Pooled(a_known("a")).started()

    with pytest.raises(ModelNotFound):
        await use(pooled, "b")
    assert pooled.loader.engines == []


async def test_a_model_is_not_loaded_for_what_it_cannot_do() -> None:
    """The class is known before the load."""
    pooled = await Pooled(a_known("a")).started()

    with pytest.raises(ModelCannot):
        async with pooled.pool.use(pooled["a"], ModelFile.check_ranks):
            pass
    assert pooled.loader.engines == []


async def test_two_models_share_no_name() -> None:
    """An alias may not hide a model."""
    with pytest.raises(StartupError, match="'b' is given to 'a' and to 'b'"):
        Catalog([a_known("a", aliases=("b",)), a_known("b")])


async def test_models_of_the_start_are_there_before_calls_are_taken() -> None:
    """The others wait for their first call."""
    pooled = Pooled(a_known("a", policy=LoadPolicy.START), a_known("b"))
    with pytest.raises(ModelLoading):
        await use(pooled, "a")
    await pooled.started()

    assert [pooled[name].state for name in "ab"] == [ModelState.READY, ModelState.AVAILABLE]
    assert pooled.pool.state is EngineState.SERVING


async def test_models_of_the_start_that_do_not_fit_keep_the_service_from_starting() -> None:
    """With the sum of all of them."""
    start = LoadPolicy.START
    with pytest.raises(StartupError, match=r"needs \d+ bytes of memory, \d+ are available"):
        await Pooled(a_known("a", 6, policy=start), a_known("b", 6, policy=start)).started()


async def test_the_model_used_least_lately_gives_way() -> None:
    """Not the one that was loaded first."""
    pooled = await Pooled(a_known("a"), a_known("b"), a_known("c")).started()
    for name in "aba":
        await use(pooled, name)
    await use(pooled, "c")

    assert pooled.states() == {"a": "ready", "b": "available", "c": "ready"}
    assert pooled.loader.alive("b") == []


async def test_a_pinned_model_stays() -> None:
    """Though nobody has used it for longer."""
    pooled = await Pooled(a_known("a", pinned=True), a_known("b"), a_known("c")).started()
    for name in "abc":
        await use(pooled, name)

    assert pooled.states() == {"a": "ready", "b": "available", "c": "ready"}


async def test_a_model_in_use_is_waited_for() -> None:
    """A call for another one goes on when the use ends."""
    pooled = await Pooled(a_known("a", 6), a_known("b", 6)).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        call = asyncio.create_task(use(pooled, "b"))
        await settle()
        assert not call.done()
        assert pooled.states() == {"a": "ready", "b": "loading"}

    assert await call == "b"
    assert pooled.states() == {"a": "available", "b": "ready"}


async def test_a_call_does_not_wait_for_memory_for_ever() -> None:
    """It is refused with the sum, and nothing is wrong with the model."""
    pooled = await Pooled(a_known("a", 6), a_known("b", 6), patience_s=0).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        with pytest.raises(MemoryInUse) as refusal:
            await use(pooled, "b")

    assert refusal.value.needed_bytes > 6 * GIB > refusal.value.available_bytes
    assert pooled["b"].state is ModelState.AVAILABLE


async def test_what_can_never_fit_is_refused_with_the_sum() -> None:
    """Nobody gives way for nothing, and a load in the background is refused at once too."""
    pooled = await Pooled(a_known("a"), a_known("huge", 11)).started()
    await use(pooled, "a")
    with pytest.raises(ModelTooLarge) as refusal:
        await use(pooled, "huge")
    with pytest.raises(ModelTooLarge):
        await pooled.pool.load(pooled["huge"], wait=False)

    assert refusal.value.needed_bytes > 11 * GIB
    assert refusal.value.available_bytes == 10 * GIB
    assert [pooled[name].state.value for name in ("a", "huge")] == ["ready", "available"]


async def test_a_model_has_the_room_of_its_gpu() -> None:
    """Not that of the machine: what holds the GPU gives way, and what cannot fit there is refused
    with what it has."""
    on_gpu = LayerSplit(Placement(), num_layers=31)
    free = DeviceBytes(100 * GIB, {"CUDA0": 8 * GIB})
    models = [a_known(name, gib, spread=on_gpu) for name, gib in (("a", 4), ("b", 5), ("huge", 9))]
    pooled = await Pooled(a_known("c", 4), *models, budget=100 * GIB, free=free).started()
    for name in "cab":
        await use(pooled, name)
    with pytest.raises(ModelTooLarge) as refusal:
        await use(pooled, "huge")

    assert refusal.value.needed_bytes > 9 * GIB
    assert refusal.value.available_bytes == 8 * GIB
    assert pooled.num_looks == 4  # before each load
    states = {"a": "available", "b": "ready", "c": "ready", "huge": "available"}
    assert pooled.states() == states


async def test_an_engine_that_died_takes_its_room_again() -> None:
    """What it left of its GPU meanwhile is nobody else's: who needs it has the model go."""
    on_gpu = LayerSplit(Placement(), num_layers=31)
    free = DeviceBytes(100 * GIB, {"CUDA0": 8 * GIB})
    models = [a_known(name, gib, spread=on_gpu) for name, gib in (("a", 4), ("b", 5))]
    pooled = await Pooled(*models, budget=100 * GIB, free=free).started()
    await use(pooled, "a")
    pooled.loader.engines[0].dies()
    await use(pooled, "b")

    assert pooled.states() == {"a": "available", "b": "ready"}


async def test_an_engine_that_died_takes_its_room_also_while_its_model_goes() -> None:
    """A call still uses it, so it is started again; who needs the room has to wait for that."""
    on_gpu = LayerSplit(Placement(), num_layers=31)
    free = DeviceBytes(100 * GIB, {"CUDA0": 8 * GIB})
    models = [a_known(name, gib, spread=on_gpu) for name, gib in (("a", 4), ("b", 5))]
    pooled = await Pooled(*models, budget=100 * GIB, free=free).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        pooled.loader.engines[0].dies()
        await pooled.pool.unload(pooled["a"], force=False, wait=False)
        waiting = asyncio.create_task(use(pooled, "b"))
        await settle()
        during = pooled.states(), len(pooled.loader.engines)
    await waiting

    assert during == ({"a": "unloading", "b": "loading"}, 1)
    assert pooled.states() == {"a": "available", "b": "ready"}


async def test_an_operator_is_refused_by_what_is_free_now() -> None:
    """A GPU may have been full when it was looked at last."""
    on_gpu = LayerSplit(Placement(), num_layers=31)
    full, free = (DeviceBytes(100 * GIB, {"CUDA0": size}) for size in (0, 8 * GIB))
    pooled = await Pooled(a_known("a", 4, spread=on_gpu), free=full).started()
    with pytest.raises(ModelTooLarge):
        await pooled.pool.load(pooled["a"], wait=True)
    pooled.becomes_free = free
    await pooled.pool.load(pooled["a"], wait=True)

    assert pooled["a"].state is ModelState.READY


async def test_models_that_take_more_than_planned_cost_others_their_place() -> None:
    """The budget is kept by what was measured."""
    pooled = await Pooled(a_known("a", 3), a_known("b", 3), a_known("c", 2)).started()
    await use(pooled, "a")
    pooled.loader.excess = 2 * GIB
    for name in "bc":
        await use(pooled, name)

    assert pooled.states() == {"a": "available", "b": "ready", "c": "ready"}


async def test_an_unload_may_begin_while_the_load_still_keeps_the_budget() -> None:
    """The calls of the model go on until they end, and so does the unload."""
    pooled = await Pooled(a_known("a", 3), a_known("b", 5)).started()
    await use(pooled, "a")
    first = pooled.loader.engines[0]
    first.may_end.clear()
    pooled.loader.excess = 3 * GIB
    load = asyncio.create_task(pooled.pool.load(pooled["b"], wait=True))
    await settle()
    assert pooled.states() == {"a": "unloading", "b": "ready"}
    async with AsyncExitStack() as stack:
        await use(pooled, "b", stack)
        unload = asyncio.create_task(pooled.pool.unload(pooled["b"], force=False, wait=True))
        await settle()
        first.may_end.set()
        await load
        assert pooled.states() == {"a": "available", "b": "unloading"}
        assert not pooled.loader.engines[1].is_closed
    await unload

    assert pooled.states() == {"a": "available", "b": "available"}


async def test_a_load_in_the_background_holds_nobody_up() -> None:
    """Calls of a loaded model go on, and a call waits no longer than it should."""
    pooled = await Pooled(a_known("a"), a_known("b"), wait_s=0.01).started()
    await use(pooled, "a")
    pooled.loader.at_once = False
    await pooled.pool.load(pooled["b"], wait=False)
    await settle()

    assert pooled["b"].state is ModelState.LOADING
    assert await use(pooled, "a") == "a"
    with pytest.raises(ModelLoading):
        await use(pooled, "b")
    pooled.loader.loading()[0].loads()
    await settle()
    assert await use(pooled, "b") == "b"


async def test_many_calls_for_a_model_load_it_once() -> None:
    """All of them wait for the same load."""
    pooled = await Pooled(a_known("a")).started(at_once=False)
    calls = [asyncio.create_task(use(pooled, "a")) for _ in range(5)]
    await settle()
    (engine,) = pooled.loader.engines
    engine.loads()

    assert await asyncio.gather(*calls) == ["a"] * 5


async def test_a_model_that_calls_wait_for_does_not_give_way_before_they_had_it() -> None:
    """Even though it is idle for a moment between its load and its first use."""
    pooled = await Pooled(a_known("a", 6), a_known("b", 6)).started(at_once=False)
    calls = [asyncio.create_task(use(pooled, name)) for name in "ab"]
    await settle()
    pooled.loader.at_once = True
    pooled.loader.loading()[0].loads()

    assert await asyncio.gather(*calls) == ["a", "b"]
    assert [engine.name for engine in pooled.loader.engines] == ["a", "b"]


async def test_a_load_that_fails_is_not_tried_again_by_calls() -> None:
    """They hear why; an operator may try again."""
    pooled = await Pooled(a_known("a")).started(at_once=False)
    call = asyncio.create_task(use(pooled, "a"))
    await settle()
    pooled.loader.engines[0].breaks("no such tensor")
    for attempt in (call, use(pooled, "a")):
        with pytest.raises(ModelLoadFailed, match="no such tensor"):
            await attempt
    assert (pooled["a"].state, len(pooled.loader.engines)) == (ModelState.FAILED, 1)
    pooled.loader.at_once = True
    await pooled.pool.load(pooled["a"], wait=True)

    assert await use(pooled, "a") == "a"


async def test_some_models_are_loaded_by_operators_only() -> None:
    """A call is refused and loads nothing."""
    pooled = await Pooled(a_known("a", policy=LoadPolicy.MANUAL)).started()
    with pytest.raises(ModelNotLoaded):
        await use(pooled, "a")
    await pooled.pool.load(pooled["a"], wait=True)

    assert await use(pooled, "a") == "a"


async def test_limits_are_for_a_model_that_is_not_loaded() -> None:
    """Sizes cannot change under running requests."""
    pooled = await Pooled(a_known("a")).started()
    await pooled.pool.load(pooled["a"], RequestedLimits(slots=3), wait=True)
    with pytest.raises(InvalidField, match="unload it first"):
        await pooled.pool.load(pooled["a"], RequestedLimits(slots=4), wait=True)
    await pooled.pool.load(pooled["a"], RequestedLimits(slots=3), wait=True)

    assert pooled["a"].requested.slots == 3


async def test_limits_that_cannot_fit_change_nothing() -> None:
    """The next load is as the last one was."""
    pooled = await Pooled(a_known("a")).started()
    with pytest.raises(ModelTooLarge):
        await pooled.pool.load(pooled["a"], RequestedLimits(1, 10**12), wait=True)

    assert await use(pooled, "a") == "a"


async def test_an_unload_waits_for_the_last_use() -> None:
    """New calls wait for it too, and load the model again."""
    pooled = await Pooled(a_known("a")).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        unload = asyncio.create_task(pooled.pool.unload(pooled["a"], force=False, wait=True))
        late = asyncio.create_task(use(pooled, "a"))
        await settle()
        assert not unload.done()
        assert pooled["a"].state is ModelState.UNLOADING
        assert not pooled.loader.engines[0].is_closed
    await unload

    assert await late == "a"
    assert [engine.is_closed for engine in pooled.loader.engines] == [True, False]


async def test_who_comes_too_late_to_an_engine_hears_why() -> None:
    """The server does not shut down; this model was unloaded."""
    pooled = await Pooled(a_known("a")).started()
    await use(pooled, "a")
    await pooled.pool.unload(pooled["a"], force=False, wait=True)

    assert pooled.loader.engines[0].closed_with == ModelUnloaded(model="a")


async def test_an_operator_loads_a_model_that_is_still_being_unloaded() -> None:
    """Once it is gone; who does not wait for that is told to come again."""
    pooled = await Pooled(a_known("a")).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        await pooled.pool.unload(pooled["a"], force=False, wait=False)
        with pytest.raises(ModelLoading):
            await pooled.pool.load(pooled["a"], wait=False)
        load = asyncio.create_task(pooled.pool.load(pooled["a"], RequestedLimits(3), wait=True))
        await settle()
        assert not load.done()
    await load

    assert (pooled["a"].state, pooled["a"].requested.slots) == (ModelState.READY, 3)
    assert [engine.is_closed for engine in pooled.loader.engines] == [True, False]


async def test_a_forced_unload_ends_the_uses() -> None:
    """Also one that was waiting for them already."""
    pooled = await Pooled(a_known("a")).started()
    async with AsyncExitStack() as stack:
        await use(pooled, "a", stack)
        await pooled.pool.unload(pooled["a"], force=False, wait=False)
        assert not pooled.loader.engines[0].is_closed
        await pooled.pool.unload(pooled["a"], force=True, wait=False)
        assert pooled.loader.engines[0].closed_with == ModelUnloaded(model="a")
        assert pooled.states() == {"a": "unloading"}
    await settle()

    assert pooled.states() == {"a": "available"}


async def test_an_unload_stops_a_load() -> None:
    """Those who wait for it hear so."""
    pooled = await Pooled(a_known("a")).started(at_once=False)
    call = asyncio.create_task(use(pooled, "a"))
    await settle()
    await pooled.pool.unload(pooled["a"], force=False, wait=True)
    with pytest.raises(ModelUnloaded):
        await call

    assert pooled["a"].state is ModelState.AVAILABLE
    assert pooled.loader.alive("a") == []


async def test_a_load_that_follows_is_not_ended_by_force() -> None:
    """Whoever began it did so after the unload."""
    pooled = await Pooled(a_known("a")).started(at_once=False)
    await pooled.pool.load(pooled["a"], wait=False)
    await settle()
    (first,) = pooled.loader.engines
    first.may_end.clear()
    unload = asyncio.create_task(pooled.pool.unload(pooled["a"], force=True, wait=False))
    await settle()
    load = asyncio.create_task(pooled.pool.load(pooled["a"], wait=True))
    await settle()
    first.may_end.set()
    await unload
    second = pooled.loader.engines[1]
    assert not second.is_closed
    second.loads()
    await load

    assert pooled["a"].state is ModelState.READY


async def test_what_is_not_loaded_is_unloaded_already() -> None:
    """No error: that is what was wanted."""
    pooled = await Pooled(a_known("a")).started()
    await pooled.pool.unload(pooled["a"], force=False, wait=True)

    assert pooled["a"].state is ModelState.AVAILABLE


async def test_a_drain_lets_calls_end_and_takes_no_new_ones() -> None:
    """Waiting for a load is a call too."""
    pooled = await Pooled(a_known("a")).started(at_once=False)
    call = asyncio.create_task(use(pooled, "a"))
    await settle()
    pooled.pool.drain()
    idle = asyncio.create_task(pooled.pool.wait_idle())
    with pytest.raises(Draining):
        await use(pooled, "a")
    assert (pooled.pool.state, idle.done()) == (EngineState.DRAINING, False)
    pooled.loader.engines[0].loads()
    await idle
    pooled.pool.undrain()

    assert (await call, await use(pooled, "a")) == ("a", "a")


async def test_the_service_serves_while_one_engine_does() -> None:
    """A model whose engine died is loading; the others are not asked."""
    pooled = await Pooled(a_known("a"), a_known("b")).started()
    for name in "ab":
        await use(pooled, name)
    states = [pooled.pool.state]
    for engine in pooled.loader.engines:
        engine.dies()
        states.append(pooled.pool.state)

    serving, restarting = EngineState.SERVING, EngineState.RESTARTING
    assert states == [serving, serving, restarting]
    assert pooled["a"].state is ModelState.LOADING


async def test_an_engine_that_died_shows_its_progress_until_it_is_back() -> None:
    """The pool has no part in its coming back."""
    pooled = await Pooled(a_known("a")).started()
    await use(pooled, "a")
    (engine,) = pooled.loader.engines
    engine.dies()
    pooled.loader.progress("a", 0.5)
    during = pooled["a"].state, pooled["a"].progress
    engine.recovers()

    assert during == (ModelState.LOADING, LoadProgress(LoadPhase.WEIGHTS, 0.5))
    assert (pooled["a"].state, pooled["a"].progress) == (ModelState.READY, None)


async def test_a_watcher_sees_every_model_and_then_its_changes() -> None:
    """With the progress of loads, and the end of it."""
    pooled = await Pooled(a_known("a"), a_known("b")).started(at_once=False)
    watch = pooled.pool.watch(list(pooled.catalog))
    first = [(await anext(watch)).name for _ in range(2)]
    load = asyncio.create_task(pooled.pool.load(pooled["b"], wait=True))
    seen = []
    for fraction in (0.0, 0.25, 0.5):
        await settle()
        if fraction:
            pooled.loader.progress("b", fraction)
        known = await anext(watch)
        seen.append((known.name, known.state.value, known.progress and known.progress.fraction))
    pooled.loader.engines[0].loads()
    await load
    last = await anext(watch)

    assert first == ["a", "b"]
    assert seen == [("b", "loading", fraction) for fraction in (0.0, 0.25, 0.5)]
    assert (last.state, last.progress) == (ModelState.READY, None)
