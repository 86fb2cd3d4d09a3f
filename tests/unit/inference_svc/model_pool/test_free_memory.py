"""Tests of the free memory of GPUs, from readings and the memory that engines use."""

import pytest

from inference_svc.model_pool.pool import FreeMemory
from inference_svc.models.device_memory import DeviceBytes


class Machine:
    """GPUs with `free` bytes, of which engines use `used`, and `used_after_reading` once read."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.used: dict[str, int] = {}
        self.used_after_reading: dict[str, int] | None = None
        self.is_readable = True
        self.num_readings = 0
        self.memory = FreeMemory(lambda: DeviceBytes(7, self.used), self.read)

    def read(self) -> dict[str, int] | None:
        self.num_readings += 1
        self.used = self.used if self.used_after_reading is None else self.used_after_reading
        return dict(self.free) if self.is_readable else None

    @property
    def available(self) -> dict[str, int]:
        """What can be allocated on each GPU."""
        return dict(self.memory.available().devices)


async def test_engine_allocations_between_readings_are_counted() -> None:
    """Both allocated and freed memory."""
    machine = Machine(CUDA0=100, CUDA1=50)
    await machine.memory.refresh()
    machine.used = {"CUDA0": 30}
    assert machine.available == {"CUDA0": 70, "CUDA1": 50}

    machine.free["CUDA0"] = 65  # the driver allocated 5
    await machine.memory.refresh()
    assert machine.available == {"CUDA0": 65, "CUDA1": 50}
    machine.used = {"CUDA1": 10}
    assert machine.available == {"CUDA0": 95, "CUDA1": 40}


async def test_allocations_of_other_programs_are_found_by_the_next_reading() -> None:
    """They are unknown until then."""
    machine = Machine(CUDA0=100)
    await machine.memory.refresh()
    machine.free["CUDA0"] = 20
    assert machine.available == {"CUDA0": 100}

    await machine.memory.refresh()
    assert machine.available == {"CUDA0": 20}


async def test_a_gpu_missing_from_a_reading_counts_as_full() -> None:
    """If no reading succeeds, the last one stays."""
    machine = Machine(CUDA0=100, CUDA1=50)
    await machine.memory.refresh()
    del machine.free["CUDA0"]
    await machine.memory.refresh()
    assert machine.available == {"CUDA0": 0, "CUDA1": 50}

    machine.is_readable = False
    await machine.memory.refresh()
    assert machine.available == {"CUDA0": 0, "CUDA1": 50}


async def test_a_machine_without_gpus_is_read_once() -> None:
    """Its own memory is always available."""
    machine = Machine()
    await machine.memory.refresh()
    await machine.memory.refresh()

    assert machine.num_readings == 1
    assert machine.available == {}
    assert machine.memory.available().host > 0


async def test_a_failed_first_reading_is_repeated() -> None:
    """The driver may be slow once."""
    machine = Machine(CUDA0=100)
    machine.is_readable = False
    await machine.memory.refresh()
    assert machine.available == {}

    machine.is_readable = True
    await machine.memory.refresh()
    assert machine.available == {"CUDA0": 100}


@pytest.mark.parametrize(("before", "after"), [(0, 30), (30, 0)])
async def test_changes_during_a_reading_never_overestimate_free_memory(
    before: int, after: int
) -> None:
    """An allocation counts as not yet included in the reading, a release as included."""
    machine = Machine(CUDA0=100)
    machine.used = {"CUDA0": before}
    await machine.memory.refresh()
    machine.used_after_reading = {"CUDA0": after}
    machine.free["CUDA0"] = 50
    await machine.memory.refresh()

    assert machine.available == {"CUDA0": 50 - after}
