"""Tracking of GPU memory, with simulated GPUs."""

from collections.abc import Collection

import pytest

from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.models.placement import ON_PROCESSOR, Placement


class Gpus(dict[str, int]):
    """The free memory of each GPU."""

    def free_bytes(self, only: Collection[str]) -> dict[str, int]:
        return {name: free for name, free in self.items() if not only or name in only}


@pytest.fixture
def gpus() -> Gpus:
    """Two GPUs."""
    return Gpus(CUDA0=100, CUDA1=50)


@pytest.fixture
def memory(gpus: Gpus) -> EngineMemory:
    """An engine that may use all of them."""
    return EngineMemory(Placement(), gpus.free_bytes)


def test_usage_changes_only_inside_the_outermost_context(gpus: Gpus, memory: EngineMemory) -> None:
    """Allocations and frees count; usage never becomes negative."""
    with memory.tracking():
        gpus["CUDA0"] -= 60
        with memory.tracking():
            gpus["CUDA0"] -= 10
    gpus["CUDA1"] -= 50  # another process

    assert memory.used_bytes == {"CUDA0": 70}
    with memory.tracking():
        gpus["CUDA0"] += 5
    assert memory.used_bytes == {"CUDA0": 65}
    with memory.tracking():
        gpus["CUDA0"] += 95  # another process frees memory
    assert memory.used_bytes == {}


def test_changed_usage_is_reported_once(gpus: Gpus, memory: EngineMemory) -> None:
    """No usage is not a change."""
    assert memory.changed_usage() is None
    with memory.tracking():
        gpus["CUDA0"] -= 60

    assert memory.changed_usage() == {"CUDA0": 60}
    assert memory.changed_usage() is None


def test_tracking_works_after_a_failed_load(gpus: Gpus, memory: EngineMemory) -> None:
    """The context is left even if the load raises."""
    with pytest.raises(MemoryError), memory.tracking():
        raise MemoryError
    with memory.tracking():
        gpus["CUDA0"] -= 60

    assert memory.used_bytes == {"CUDA0": 60}


def test_only_the_gpus_of_the_model_are_queried(gpus: Gpus) -> None:
    """A query allocates memory of a GPU."""
    placed = EngineMemory(Placement(devices=("CUDA1",)), gpus.free_bytes)
    assert placed.available_bytes(8) == 50

    def fail(only: Collection[str]) -> dict[str, int]:
        raise AssertionError

    on_cpu = EngineMemory(ON_PROCESSOR, fail)
    with on_cpu.tracking():
        pass
    assert not on_cpu.uses_gpus
    assert on_cpu.available_bytes(8) > 50
