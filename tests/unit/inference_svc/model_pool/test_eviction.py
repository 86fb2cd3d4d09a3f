"""Tests of the rules for loading and evicting models."""

from typing import Any

import pytest

from inference_svc.model_pool.eviction import (
    Evict,
    Fits,
    InvalidTransition,
    LoadDecision,
    ModelState,
    Resident,
    Wait,
    find_over_budget,
    plan_load,
)
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import Placement
from svc_kit.errors import ModelTooLarge

ALL_ON_GPU = LayerSplit(Placement(), num_layers=31)


def make_resident(
    name: str,
    memory: int = 10,
    *,
    used_at: float = 0,
    uses: int = 0,
    pinned: bool = False,
    state: ModelState = ModelState.READY,
) -> Resident:
    return Resident(name, pinned, state, uses, used_at=used_at, memory=DeviceBytes(memory))


def decide(*residents: Resident, needed: int = 20, available: int = 1000) -> LoadDecision:
    candidate = Resident("new", state=ModelState.LOADING)
    available_bytes = DeviceBytes(available)
    return plan_load(
        candidate, [candidate, *residents], needed, budget_bytes=50, available=available_bytes
    )


def decide_on_gpus(
    *residents: Resident, layer_split: LayerSplit = ALL_ON_GPU, **free: int
) -> LoadDecision:
    """The decision for a candidate of 20 bytes that uses GPUs only."""
    candidate = Resident("new", state=ModelState.LOADING, layer_split=layer_split)
    available = DeviceBytes(1000, free)
    return plan_load(candidate, [candidate, *residents], 20, budget_bytes=2000, available=available)


def test_a_model_that_fits_may_use_all_free_memory() -> None:
    """The smaller of the budget's and the machine's."""
    assert decide() == Fits(50)
    assert decide(make_resident("a", 30)) == Fits(20)
    assert decide(available=25) == Fits(25)


def test_the_least_recently_used_idle_model_is_evicted() -> None:
    """Unless calls wait for it or it is pinned."""
    old, young = make_resident("old", 20, used_at=1), make_resident("young", 20, used_at=2)
    assert decide(young, old) == Evict(old)
    old.num_waiting = 1
    assert decide(young, old) == Evict(young)
    old.num_waiting, old.is_pinned = 0, True
    assert decide(young, old) == Evict(young)


def test_a_load_waits_for_models_in_use_and_for_unloading_ones() -> None:
    """Their memory becomes free later."""
    assert decide(make_resident("a", 40, uses=1)) == Wait(10)
    assert decide(make_resident("a", 40, state=ModelState.UNLOADING)) == Wait(10)


def test_nothing_is_evicted_for_a_model_that_cannot_fit() -> None:
    """The error has the memory that evictions would make available."""
    pinned = make_resident("a", 20, pinned=True)
    with pytest.raises(ModelTooLarge) as refusal:
        decide(pinned, make_resident("b", 20), needed=31)
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (31, 30)


def test_memory_that_the_machine_lacks_is_not_waited_for() -> None:
    """Nothing is evicted if the memory of all models would not suffice."""
    idle, used = make_resident("idle", 10), make_resident("used", 4, uses=1)
    for residents, available_bytes in ((), 5), ((idle,), 15), ((idle, used), 19):
        with pytest.raises(ModelTooLarge) as refusal:
            decide(*residents, available=5)
        assert refusal.value.available_bytes == available_bytes
    assert decide(idle, used, needed=19, available=5) == Evict(idle)
    assert decide(used, needed=9, available=5) == Wait(5)


def test_an_exceeded_budget_evicts_the_least_recently_used_model() -> None:
    """Except the model loaded last, and models in use."""
    old, young = make_resident("old", 30, used_at=1), make_resident("young", 30, used_at=2)

    assert find_over_budget([old, young], 60, young) is None
    assert find_over_budget([old, young], 59, young) is old
    assert find_over_budget([old, young], 59, old) is young
    assert find_over_budget([make_resident("used", 30, uses=1), young], 59, young) is None
    assert find_over_budget([young], 10, young) is None


def test_memory_of_the_machine_does_not_count_for_a_model_on_a_gpu() -> None:
    """The error has the GPU's free memory; models elsewhere are not evicted."""
    assert decide_on_gpus(CUDA0=24) == Fits(24)
    with pytest.raises(ModelTooLarge) as refusal:
        decide_on_gpus(make_resident("elsewhere", 100), CUDA0=19)
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (20, 19)


def test_only_a_model_on_the_full_gpu_is_evicted() -> None:
    """A model in the machine's memory stays, even if used less recently or if the other is busy."""
    elsewhere = make_resident("elsewhere", 100, used_at=1)
    on_gpu = make_resident("on_gpu", used_at=2)
    on_gpu.memory = DeviceBytes(1, {"CUDA0": 9})

    assert decide_on_gpus(elsewhere, on_gpu, CUDA0=15) == Evict(on_gpu)
    on_gpu.num_uses = 1
    assert decide_on_gpus(elsewhere, on_gpu, CUDA0=15) == Wait(15)


def test_models_on_two_full_gpus_are_evicted_one_after_the_other() -> None:
    """Neither eviction alone is enough for a model split across both."""
    elsewhere, *on_gpus = (make_resident(name, used_at=at) for at, name in enumerate("zab"))
    for resident, name in zip(on_gpus, ("CUDA0", "CUDA1"), strict=True):
        resident.memory = DeviceBytes(1, {name: 10})
    split = LayerSplit(Placement(tensor_split=(1.0, 1.0)), num_layers=31)
    free = {"CUDA0": 2, "CUDA1": 2}

    assert decide_on_gpus(elsewhere, *on_gpus, layer_split=split, **free) == Evict(on_gpus[0])
    free["CUDA0"] = 12
    assert decide_on_gpus(elsewhere, on_gpus[1], layer_split=split, **free) == Evict(on_gpus[1])


def test_a_model_cannot_skip_a_state() -> None:
    """That is a bug of the pool, not an error of a request."""
    model = Resident("a")
    for skip in (
        model.start_unloading,
        model.finish_unloading,
        model.cancel_loading,
        lambda: model.acquire(1.0),
    ):
        with pytest.raises(InvalidTransition):
            skip()
    model.start_loading()
    model.reserve(DeviceBytes(10))
    model.finish_loading(1.0)
    model.acquire(2.0)
    model.start_unloading()
    with pytest.raises(InvalidTransition):
        model.finish_unloading()
    model.release(3.0)
    model.finish_unloading()

    assert (model.state, model.memory.total, model.used_at) == (ModelState.AVAILABLE, 0, 3.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"used_at": 41.0}, False),
        ({"idle_ttl_s": None}, False),
        ({"is_pinned": True}, False),
        ({"num_uses": 1}, False),
        ({"num_waiting": 1}, False),
        ({"state": ModelState.LOADING}, False),
    ],
)
def test_a_model_expires_when_nobody_used_it_for_its_time(
    changes: dict[str, Any], expected: bool
) -> None:
    """Unless it is pinned, in use or wanted."""
    fields = {"state": ModelState.READY, "used_at": 40.0, "idle_ttl_s": 60.0, **changes}

    assert Resident("a", **fields).is_expired(100.0) is expected
