"""What an engine takes of GPUs, on GPUs that a test fills."""

from collections.abc import Collection

from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.models.placement import ON_PROCESSOR, Placement


class Gpus(dict[str, int]):
    """What each has free."""

    def free_bytes(self, only: Collection[str]) -> dict[str, int]:
        """As `devices.free_bytes`."""
        return {name: free for name, free in self.items() if not only or name in only}


def test_what_is_taken_is_counted_where_it_was_taken() -> None:
    """Between the beginning and the end of the outermost context, and given back as well."""
    gpus = Gpus(CUDA0=100, CUDA1=50)
    memory = EngineMemory(Placement(), gpus.free_bytes)
    with memory.taking():
        gpus["CUDA0"] -= 60
        with memory.taking():
            gpus["CUDA0"] -= 10
    gpus["CUDA1"] -= 50  # somebody else

    assert memory.taken == {"CUDA0": 70}
    with memory.taking():
        gpus["CUDA0"] += 5
    assert memory.taken == {"CUDA0": 65}
    with memory.taking():
        gpus["CUDA0"] += 95  # others gave theirs back
    assert memory.taken == {}


def test_news_are_told_once() -> None:
    """And nothing is no news."""
    gpus = Gpus(CUDA0=100)
    memory = EngineMemory(Placement(), gpus.free_bytes)
    assert memory.news() is None
    with memory.taking():
        gpus["CUDA0"] -= 60

    assert memory.news() == {"CUDA0": 60}
    assert memory.news() is None


def test_a_load_that_fails_is_not_counted_for_ever() -> None:
    """The next one is."""
    gpus = Gpus(CUDA0=100)
    memory = EngineMemory(Placement(), gpus.free_bytes)
    try:
        with memory.taking():
            raise MemoryError
    except MemoryError:
        pass
    with memory.taking():
        gpus["CUDA0"] -= 60

    assert memory.taken == {"CUDA0": 60}


def test_gpus_that_are_not_the_models_are_not_asked() -> None:
    """Asking costs one some of its memory."""
    gpus = Gpus(CUDA0=100, CUDA1=50)
    chosen = EngineMemory(Placement(devices=("CUDA1",)), gpus.free_bytes)
    assert chosen.available_bytes(8) == 50

    def never(only: Collection[str]) -> dict[str, int]:
        raise AssertionError

    on_processor = EngineMemory(ON_PROCESSOR, never)
    with on_processor.taking():
        pass
    assert not on_processor.is_on_gpus
    assert on_processor.available_bytes(8) > 50
