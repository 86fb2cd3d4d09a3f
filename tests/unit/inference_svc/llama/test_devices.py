"""The free memory of GPUs, with a fake ggml."""

import ctypes
from typing import Any

from inference_svc.llama.devices import free_bytes, query_free_bytes

CPU, GPU, INTEGRATED = 0, 1, 2


class FakeGgml:
    """Devices with their type and free memory; `queried` are those whose memory was queried."""

    def __init__(self, *devices: tuple[int, int], total: int = 1 << 40) -> None:
        self._devices = devices
        self._total = total
        self.queried: list[int] = []

    def ggml_backend_dev_count(self) -> int:
        return len(self._devices)

    def ggml_backend_dev_get(self, index: int) -> int:
        return index

    def ggml_backend_dev_type(self, device: int) -> int:
        return self._devices[device][0]

    def ggml_backend_dev_memory(self, device: int, free: Any, total: Any) -> None:
        """Write both sizes through pointers."""
        self.queried.append(device)
        ctypes.cast(free, ctypes.POINTER(ctypes.c_size_t))[0] = self._devices[device][1]
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = self._total

    def ggml_backend_dev_name(self, device: int) -> bytes:
        return b"GGML%d" % device


MIXED = (CPU, 7 << 30), (GPU, 5 << 30), (INTEGRATED, 7 << 30), (GPU, 24 << 30)


def test_free_memory_is_returned_by_gpu_name() -> None:
    """Without CPUs and integrated GPUs."""
    assert free_bytes(ggml=FakeGgml(*MIXED)) == {"GGML1": 5 << 30, "GGML3": 24 << 30}


def test_only_named_gpus_are_queried() -> None:
    """A query initializes the driver of a GPU."""
    ggml = FakeGgml(*MIXED)

    assert free_bytes(["GGML3", "GGML0"], ggml) == {"GGML3": 24 << 30}
    assert ggml.queried == [3]


def test_a_gpu_without_memory_information_is_omitted() -> None:
    """A total of 0 bytes does not mean a full GPU."""
    assert free_bytes(ggml=FakeGgml((GPU, 0), total=0)) == {}


def test_a_child_process_returns_the_same_gpus() -> None:
    """As the real library in this process."""
    assert free_bytes(ggml=FakeGgml((CPU, 7 << 30))) == {}
    assert (query_free_bytes() or {}).keys() == free_bytes().keys()
