"""Memory that an engine process uses: free memory of the machine, usage of GPUs."""

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
        """`free_bytes` returns the free memory of the given GPUs, or of all."""
        self._placement = placement
        self._is_tracking = False
        self._free_bytes = free_bytes
        self._used: dict[str, int] = {}
        self.used_bytes: dict[str, int] = {}
        """Bytes in use on each GPU."""
        self._reported = self.used_bytes

    def available_bytes(self, num_layers: int) -> int:
        """Maximum size of a context over all layers, as the model is placed."""
        free = DeviceBytes(available_memory_bytes(), self._free())
        return LayerSplit(self._placement, num_layers).fitting_bytes(free)

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Add the memory allocated or freed inside the outermost such context to the usage."""
        if self._is_tracking:
            yield
            return
        before = self._free()
        self._is_tracking = True
        try:
            yield
        finally:
            self._is_tracking = False
        after = self._free()
        for name, free in before.items():
            used = self._used.get(name, 0) + free - after.get(name, free)
            self._used[name] = max(used, 0)
        self.used_bytes = {name: size for name, size in self._used.items() if size}

    def changed_usage(self) -> dict[str, int] | None:
        """`used_bytes`; None if unchanged since the last call."""
        if self.used_bytes == self._reported:
            return None
        self._reported = self.used_bytes
        return self._reported

    @property
    def uses_gpus(self) -> bool:
        """Whether the model is placed on a GPU of this machine."""
        return bool(self._free())

    def _free(self) -> Mapping[str, int]:
        return self._free_bytes(self._placement.devices) if self._placement.uses_devices else {}
