"""Tests of the limits of models that load together on a machine with GPUs."""

import pytest

from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.lifecycle import MemoryBudget, plan_start
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.memory_plan import plan_limits, planned_bytes
from inference_svc.models.placement import ON_PROCESSOR, Placement
from svc_kit.errors import ModelTooLarge
from tests.support.pooled import GIB, make_entry

MACHINE = DeviceBytes(126 * GIB, {"CUDA0": 24 * GIB, "CUDA1": 24 * GIB})


def make_placed(name: str, gib: float, *devices: str) -> ModelEntry:
    """A model on these GPUs, or on the processor, with 128 KiB of KV cache per token."""
    placement = Placement(devices=devices) if devices else ON_PROCESSOR
    layer_split = LayerSplit(placement, num_layers=31)
    return make_entry(name, gib, layer_split=layer_split, file={"kv_bytes_per_token": 128 << 10})


def plan(*models: ModelEntry, budget_gib: int = 1000) -> list[int]:
    limits = plan_start(models, MemoryBudget(budget_gib * GIB, lambda: MACHINE, memory_wait_s=1))
    return [planned_bytes(entry.file, each) for entry, each in zip(models, limits, strict=True)]


def test_limits_are_planned_from_the_memory_of_the_gpu() -> None:
    """Planned from the machine's 126 GiB, the model would get a KV cache of 32 GiB on a GPU of
    24 GiB."""
    entry = make_placed("m", 4, "CUDA0")
    (limits,) = plan_start([entry], MemoryBudget(1000 * GIB, lambda: MACHINE, memory_wait_s=1))

    assert [limits] == plan_limits([entry.file], 24 * GIB, [entry.requested])
    assert planned_bytes(entry.file, limits) < 24 * GIB


def test_models_on_different_devices_do_not_share_memory() -> None:
    """Each uses that of its own GPU or of the machine."""
    models = make_placed("a", 15, "CUDA0"), make_placed("b", 15, "CUDA1")
    large = make_placed("c", 60)

    assert all(15 * GIB < size < 24 * GIB for size in plan(*models))
    assert plan(*models, large)[:2] == plan(*models)
    assert plan(large, *models)[1:] == plan(*models)


def test_models_single_share_its_memory() -> None:
    """The error of models that do not fit has the GPU's memory."""
    assert sum(plan(make_placed("a", 8, "CUDA0"), make_placed("b", 8, "CUDA0"))) < 24 * GIB

    with pytest.raises(ModelTooLarge) as refusal:
        plan(make_placed("a", 12, "CUDA0"), make_placed("b", 12, "CUDA0"))
    assert refusal.value.available_bytes == 24 * GIB


def test_a_model_planned_early_leaves_the_minimum_that_later_ones_need() -> None:
    """Even though its load divides it by the memory that is free before the others load."""
    split, single = make_placed("both", 20, "CUDA0", "CUDA1"), make_placed("one", 8, "CUDA0")

    for models in ((split, single), (single, split)):
        free = MACHINE
        for entry, size in zip(models, plan(*models), strict=True):
            used = entry.resident.layer_split.divide(size, free)
            assert free.without(used) + used == free
            free = free.without(used)


def test_the_budget_applies_to_all_models() -> None:
    """Regardless of their devices."""
    models = make_placed("gpu", 8, "CUDA0"), make_placed("processor", 8)

    assert sum(plan(*models, budget_gib=24)) < 24 * GIB
    with pytest.raises(ModelTooLarge):
        plan(*models, budget_gib=16)
