"""The memory of GPUs, on a ggml that has some."""

import ctypes
from typing import Any

from inference_svc.llama.devices import free_bytes, free_bytes_from_outside

CPU, GPU, INTEGRATED = 0, 1, 2


class FakeGgml:
    """Devices by their type and what is free on them; `asked` are those asked for their memory."""

    def __init__(self, *devices: tuple[int, int], total: int = 1 << 40) -> None:
        self._devices = devices
        self._total = total
        self.asked: list[int] = []

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
        self.asked.append(device)
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = self._devices[device][1]
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = self._total

    def ggml_backend_dev_name(self, device: int) -> bytes:
        """Its number."""
        return b"GGML%d" % device


MIXED = (CPU, 7 << 30), (GPU, 5 << 30), (INTEGRATED, 7 << 30), (GPU, 24 << 30)


def test_gpus_are_told_by_name_with_what_they_have_free() -> None:
    """Processors do not count, nor does a GPU that has no memory of its own."""
    assert free_bytes(ggml=FakeGgml(*MIXED)) == {"GGML1": 5 << 30, "GGML3": 24 << 30}


def test_only_gpus_that_are_named_are_asked() -> None:
    """The driver of each sets itself up for it."""
    ggml = FakeGgml(*MIXED)

    assert free_bytes(["GGML3", "GGML0"], ggml) == {"GGML3": 24 << 30}
    assert ggml.asked == [3]


def test_a_gpu_that_cannot_tell_is_left_out() -> None:
    """Nothing free of nothing is no full GPU."""
    assert free_bytes(ggml=FakeGgml((GPU, 0), total=0)) == {}


def test_without_a_gpu_there_is_none() -> None:
    """The real library says the same of its own devices, and so does a process that asks it."""
    assert free_bytes(ggml=FakeGgml((CPU, 7 << 30))) == {}
    assert (free_bytes_from_outside() or {}).keys() == free_bytes().keys()
