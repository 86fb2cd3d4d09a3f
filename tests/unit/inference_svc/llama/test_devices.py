"""The memory of GPUs, on a ggml that has some."""

import ctypes
from typing import Any

from inference_svc.llama.devices import free_bytes, free_bytes_at_start

CPU, GPU, INTEGRATED = 0, 1, 2


class FakeGgml:
    """Devices by their type and what is free on them."""

    def __init__(self, *devices: tuple[int, int]) -> None:
        self._devices = devices

    def ggml_backend_dev_count(self) -> int:
        """How many there are."""
        return len(self._devices)

    def ggml_backend_dev_get(self, index: int) -> int:
        """A handle."""
        return index

    def ggml_backend_dev_type(self, device: int) -> int:
        """Its type."""
        return self._devices[device][0]

    def ggml_backend_dev_memory(self, device: int, free: Any, total: Any) -> None:
        """Write both sizes where they are wanted."""
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = self._devices[device][1]
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = 1 << 40


def test_what_gpus_have_free_is_added_up() -> None:
    """Processors do not count, nor does a GPU that has no memory of its own."""
    ggml = FakeGgml((CPU, 7 << 30), (GPU, 5 << 30), (INTEGRATED, 7 << 30), (GPU, 24 << 30))

    assert free_bytes(ggml) == 29 << 30


def test_without_a_gpu_there_is_none() -> None:
    """The real library says so too, where these tests run without one, and no process is asked."""
    assert free_bytes(FakeGgml((CPU, 7 << 30))) == 0
    assert free_bytes_at_start() >= 0
