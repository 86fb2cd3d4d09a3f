"""Sizes of models that load together, on a machine with GPUs."""

import pytest

from inference_svc.model_pool.catalog import KnownModel
from inference_svc.model_pool.lifecycle import Memory, plan_start
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import plan_limits, planned_bytes
from inference_svc.models.placement import ON_PROCESSOR, Placement
from svc_kit.errors import ModelTooLarge
from tests.support.pooled import GIB, a_known

MACHINE = DeviceBytes(126 * GIB, {"CUDA0": 24 * GIB, "CUDA1": 24 * GIB})


def on(*devices: str) -> Placement:
    """All layers on these GPUs."""
    return Placement(devices=devices)


def a_placed(name: str, gib: float, placement: Placement) -> KnownModel:
    """A model with 128 KiB of cache a token."""
    spread = LayerSplit(placement, num_layers=31)
    return a_known(name, gib, spread=spread, file={"kv_bytes_per_token": 128 << 10})


def planned(*models: KnownModel, budget_gib: int = 1000) -> list[int]:
    """What each model is to take, in bytes."""
    limits = plan_start(models, Memory(budget_gib * GIB, lambda: MACHINE, patience_s=1))
    return [planned_bytes(known.file, each) for known, each in zip(models, limits, strict=True)]


def test_sizes_are_those_of_the_gpu_that_holds_them() -> None:
    """The machine's memory does not make its cells fit: with 126 GiB of it llama.cpp would be asked
    for 32 GiB of cache on a GPU of 24."""
    known = a_placed("m", 4, on("CUDA0"))
    (limits,) = plan_start([known], Memory(1000 * GIB, lambda: MACHINE, patience_s=1))

    assert [limits] == plan_limits([known.file], 24 * GIB, [known.requested])
    assert planned_bytes(known.file, limits) < 24 * GIB


def test_models_in_other_places_do_not_share() -> None:
    """Each has what its own GPU, or the machine, has."""
    models = a_placed("a", 15, on("CUDA0")), a_placed("b", 15, on("CUDA1"))
    large = a_placed("c", 60, ON_PROCESSOR)

    assert all(15 * GIB < size < 24 * GIB for size in planned(*models))
    assert planned(*models, large)[:2] == planned(*models)
    assert planned(large, *models)[1:] == planned(*models)


def test_models_on_one_gpu_share_it() -> None:
    """Together they fit; where they cannot, the refusal is about that GPU."""
    sizes = planned(a_placed("a", 8, on("CUDA0")), a_placed("b", 8, on("CUDA0")))
    assert sum(sizes) < 24 * GIB

    with pytest.raises(ModelTooLarge) as refusal:
        planned(a_placed("a", 12, on("CUDA0")), a_placed("b", 12, on("CUDA0")))
    assert refusal.value.available_bytes == 24 * GIB


def test_one_that_needs_a_part_of_everything_finds_it() -> None:
    """Whoever is planned first leaves the least that the others need, also where a load divides a
    model by what it sees free and knows nothing of those after it."""
    both, one = a_placed("both", 20, on("CUDA0", "CUDA1")), a_placed("one", 8, on("CUDA0"))

    for models in ((both, one), (one, both)):
        free = MACHINE
        for known, size in zip(models, planned(*models), strict=True):
            taken = known.resident.spread.divide(size, free)
            assert free.without(taken) + taken == free
            free = free.without(taken)


def test_the_budget_is_for_all_of_them() -> None:
    """Wherever they are."""
    models = a_placed("gpu", 8, on("CUDA0")), a_placed("processor", 8, ON_PROCESSOR)

    assert sum(planned(*models, budget_gib=24)) < 24 * GIB
    with pytest.raises(ModelTooLarge):
        planned(*models, budget_gib=16)
