"""Who may come into memory, and who has to go."""

import pytest

from inference_svc.model_pool.eviction import (
    Fits,
    InvalidTransition,
    MakeRoom,
    ModelState,
    Resident,
    Verdict,
    Wait,
    over_budget,
    plan_load,
)
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import Placement
from svc_kit.errors import ModelTooLarge


def a_resident(
    name: str,
    held: int = 10,
    *,
    used_at: float = 0,
    uses: int = 0,
    pinned: bool = False,
    state: ModelState = ModelState.READY,
) -> Resident:
    """A model in memory."""
    return Resident(
        name, is_pinned=pinned, state=state, uses=uses, used_at=used_at, held=DeviceBytes(held)
    )


def verdict(*others: Resident, needed: int = 20, available: int = 1000) -> Verdict:
    """What a newcomer hears in a budget of 50."""
    newcomer = Resident("new", state=ModelState.LOADING)
    residents = [newcomer, *others]
    return plan_load(newcomer, residents, needed, budget_bytes=50, available=DeviceBytes(available))


def test_what_fits_may_load() -> None:
    """With all that is free, of the budget and of the machine."""
    assert verdict() == Fits(50)
    assert verdict(a_resident("a", 30)) == Fits(20)
    assert verdict(available=25) == Fits(25)


def test_the_one_used_least_lately_goes_first() -> None:
    """Of those that nobody uses, waits for, or has pinned."""
    old, young = a_resident("old", 20, used_at=1), a_resident("young", 20, used_at=2)
    assert verdict(young, old) == MakeRoom(old)
    old.awaited = 1
    assert verdict(young, old) == MakeRoom(young)
    old.awaited, old.is_pinned = 0, True
    assert verdict(young, old) == MakeRoom(young)


def test_models_in_use_are_waited_for() -> None:
    """And so is one that is going."""
    assert verdict(a_resident("a", 40, uses=1)) == Wait(10)
    assert verdict(a_resident("a", 40, state=ModelState.UNLOADING)) == Wait(10)


def test_nobody_goes_for_what_cannot_fit_anyway() -> None:
    """The refusal says what there would be at most."""
    pinned = a_resident("a", 20, pinned=True)
    with pytest.raises(ModelTooLarge) as refusal:
        verdict(pinned, a_resident("b", 20), needed=31)
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (31, 30)


def test_what_the_machine_does_not_have_is_not_waited_for() -> None:
    """And nobody goes for it, where all that they hold would not be enough."""
    idle, used = a_resident("idle", 10), a_resident("used", 4, uses=1)
    for others, most in ((), 5), ((idle,), 15), ((idle, used), 19):
        with pytest.raises(ModelTooLarge) as refusal:
            verdict(*others, available=5)
        assert refusal.value.available_bytes == most
    assert verdict(idle, used, needed=19, available=5) == MakeRoom(idle)
    assert verdict(used, needed=9, available=5) == Wait(5)


def test_a_budget_that_is_overrun_costs_the_oldest_its_place() -> None:
    """Never the one just loaded, whoever was used since, and nobody who is used."""
    old, young = a_resident("old", 30, used_at=1), a_resident("young", 30, used_at=2)

    assert over_budget([old, young], 60, young) is None
    assert over_budget([old, young], 59, young) is old
    assert over_budget([old, young], 59, old) is young
    assert over_budget([a_resident("used", 30, uses=1), young], 59, young) is None
    assert over_budget([young], 10, young) is None


ALL_ON_GPU = LayerSplit(Placement(), num_layers=31)


def verdict_on_gpus(
    *others: Resident, needed: int = 20, spread: LayerSplit = ALL_ON_GPU, **free: int
) -> Verdict:
    """What one hears that is computed on GPUs alone, on a machine with much memory."""
    newcomer = Resident("new", state=ModelState.LOADING, spread=spread)
    available = DeviceBytes(1000, free)
    return plan_load(newcomer, [newcomer, *others], needed, budget_bytes=2000, available=available)


def test_what_the_machine_has_is_no_room_on_a_gpu() -> None:
    """The refusal says what the GPU has, and another model goes only for what it holds there."""
    assert verdict_on_gpus(CUDA0=24) == Fits(24)
    with pytest.raises(ModelTooLarge) as refusal:
        verdict_on_gpus(a_resident("elsewhere", 100), CUDA0=19)
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (20, 19)


def test_who_gives_way_holds_what_is_short() -> None:
    """One in the machine's memory stays, though it was used less lately, and also where all have to
    wait for the one that holds it."""
    elsewhere, there = a_resident("elsewhere", 100, used_at=1), a_resident("there", used_at=2)
    there.held = DeviceBytes(1, {"CUDA0": 9})

    assert verdict_on_gpus(elsewhere, there, CUDA0=15) == MakeRoom(there)
    there.uses = 1
    assert verdict_on_gpus(elsewhere, there, CUDA0=15) == Wait(15)


def test_where_two_gpus_are_short_both_are_freed() -> None:
    """Neither model alone makes room for one that has equal shares of both."""
    elsewhere, *there = (a_resident(name, used_at=at) for at, name in enumerate("zab"))
    for resident, name in zip(there, ("CUDA0", "CUDA1"), strict=True):
        resident.held = DeviceBytes(1, {name: 10})
    spread = LayerSplit(Placement(tensor_split=(1.0, 1.0)), num_layers=31)
    free = {"CUDA0": 2, "CUDA1": 2}

    assert verdict_on_gpus(elsewhere, *there, spread=spread, **free) == MakeRoom(there[0])
    free["CUDA0"] = 12
    assert verdict_on_gpus(elsewhere, there[1], spread=spread, **free) == MakeRoom(there[1])


def test_a_model_cannot_skip_a_state() -> None:
    """That would be a defect of the pool, not of a request."""
    model = Resident("a")
    for skip in (model.retire, model.gone, model.abandon, lambda: model.acquire(1.0)):
        with pytest.raises(InvalidTransition):
            skip()
    model.begin()
    model.plan(DeviceBytes(10))
    model.ready(1.0)
    model.acquire(2.0)
    model.retire()
    with pytest.raises(InvalidTransition):
        model.gone()
    model.release(3.0)
    model.gone()

    assert (model.state, model.held_bytes, model.used_at) == (ModelState.AVAILABLE, 0, 3.0)
