"""Memory that an engine process has taken, of the machine and of GPUs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from inference_svc.llama import devices
from inference_svc.machine import available_memory_bytes
from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import ON_PROCESSOR, Placement


class EngineMemory:
    """The memory of one engine. Only its step thread may use it."""

    def __init__(
        self,
        placement: Placement = ON_PROCESSOR,
        free_bytes: Callable[[Collection[str]], Mapping[str, int]] = devices.free_bytes,
    ) -> None:
        """`free_bytes` covers the named GPUs, or all."""
        self._placement = placement
        self._is_counting = False
        self._free_bytes = free_bytes
        self._taken: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def available_bytes(self, num_layers: int) -> int:
        """The most that a context over all layers may take, as its model is placed."""
        free = DeviceBytes(available_memory_bytes(), self._free())
        return LayerSplit(self._placement, num_layers).fitting_bytes(free)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Count what is taken, or given back, until the outermost of such contexts ends."""
        if self._is_counting:
            yield
            return
        before = self._free()
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False
        after = self._free()
        for name, free in before.items():
            taken = self._taken.get(name, 0) + free - after.get(name, free)
            self._taken[name] = max(taken, 0)

    @property
    def taken(self) -> dict[str, int]:
        """What it has of each GPU."""
        return {name: size for name, size in self._taken.items() if size}

    def news(self) -> dict[str, int] | None:
        """The same where it has changed since it was asked for last."""
        if self.taken == self._told:
            return None
        self._told = self.taken
        return self._told

    @property
    def is_on_gpus(self) -> bool:
        """Whether the model uses any GPU that is there."""
        return bool(self._free())

    def _free(self) -> Mapping[str, int]:
        return self._free_bytes(self._placement.devices) if self._placement.uses_devices else {}
