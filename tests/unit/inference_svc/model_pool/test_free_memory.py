"""What GPUs can give, from what they say now and then and what engines hold."""

import pytest

from inference_svc.model_pool.pool import FreeMemory
from inference_svc.models.device_memory import DeviceBytes


class Machine:
    """GPUs that say what they have free, and what engines hold of them, `held_meanwhile` from when
    they are asked."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.held: dict[str, int] = {}
        self.held_meanwhile: dict[str, int] | None = None
        self.answers = True
        self.num_asked = 0
        self.memory = FreeMemory(lambda: DeviceBytes(7, self.held), self.ask)

    def ask(self) -> dict[str, int] | None:
        """What they have free."""
        self.num_asked += 1
        self.held = self.held if self.held_meanwhile is None else self.held_meanwhile
        return dict(self.free) if self.answers else None

    @property
    def told(self) -> dict[str, int]:
        """What can be taken of each."""
        return dict(self.memory.now().devices)


async def test_between_two_looks_engines_are_counted() -> None:
    """What they take, and what they give back."""
    machine = Machine(CUDA0=100, CUDA1=50)
    await machine.memory.look()
    machine.held = {"CUDA0": 30}
    assert machine.told == {"CUDA0": 70, "CUDA1": 50}

    machine.free["CUDA0"] = 65  # a driver took some besides
    await machine.memory.look()
    assert machine.told == {"CUDA0": 65, "CUDA1": 50}
    machine.held = {"CUDA1": 10}
    assert machine.told == {"CUDA0": 95, "CUDA1": 40}


async def test_what_others_take_is_seen_by_the_next_look() -> None:
    """Other programs use GPUs too."""
    machine = Machine(CUDA0=100)
    await machine.memory.look()
    machine.free["CUDA0"] = 20
    assert machine.told == {"CUDA0": 100}

    await machine.memory.look()
    assert machine.told == {"CUDA0": 20}


async def test_a_gpu_that_says_nothing_any_more_is_full() -> None:
    """There is no room for the process that asks; where that cannot ask, what was known stays."""
    machine = Machine(CUDA0=100, CUDA1=50)
    await machine.memory.look()
    del machine.free["CUDA0"]
    await machine.memory.look()
    assert machine.told == {"CUDA0": 0, "CUDA1": 50}

    machine.answers = False
    await machine.memory.look()
    assert machine.told == {"CUDA0": 0, "CUDA1": 50}


async def test_without_a_gpu_nobody_is_asked_twice() -> None:
    """And what the machine has is always known."""
    machine = Machine()
    await machine.memory.look()
    await machine.memory.look()

    assert machine.num_asked == 1
    assert machine.told == {}
    assert machine.memory.now().host > 0


async def test_a_gpu_that_could_not_be_asked_at_first_is_asked_again() -> None:
    """A driver may be slow once."""
    machine = Machine(CUDA0=100)
    machine.answers = False
    await machine.memory.look()
    assert machine.told == {}

    machine.answers = True
    await machine.memory.look()
    assert machine.told == {"CUDA0": 100}


@pytest.mark.parametrize(("before", "after"), [(0, 30), (30, 0)])
async def test_what_engines_do_during_a_look_never_promises_too_much(
    before: int, after: int
) -> None:
    """Whether the answer knows of it cannot be told: it counts as taken, and as not given back."""
    machine = Machine(CUDA0=100)
    machine.held = {"CUDA0": before}
    await machine.memory.look()
    machine.held_meanwhile = {"CUDA0": after}
    machine.free["CUDA0"] = 50
    await machine.memory.look()

    assert machine.told == {"CUDA0": 50 - after}
