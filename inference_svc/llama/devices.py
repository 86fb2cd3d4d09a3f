"""Devices of ggml and the free memory of GPUs.

A query allocates some hundred megabytes of each GPU until the process exits, so processes that do
not use GPUs run it in a child process.
"""

import ctypes
import json
import logging
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

from llama_cpp.llama_cpp import _lib

from inference_svc.llama import library

log = logging.getLogger(__name__)

# Accessed through llama.cpp's library: wheels contain ggml under two names, and loading the other
# one creates a second device registry, which llama.cpp does not use.
ggml: Any = _lib
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
ggml.ggml_backend_dev_by_name.argtypes = [ctypes.c_char_p]
ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
ggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
_size = ctypes.POINTER(ctypes.c_size_t)
ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, _size, _size]
ggml.ggml_backend_dev_memory.restype = None

_GPU = 1  # GGML_BACKEND_DEVICE_TYPE_GPU; integrated GPUs (2) use the memory of the CPU
_TIMEOUT_S = 60.0


def list_devices(ggml: Any = ggml) -> list[Any]:
    """All devices, including the CPU."""
    library.load_backends()
    return [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]


def device_names() -> list[str]:
    """The names of all devices in ggml."""
    return [ggml.ggml_backend_dev_name(device).decode() for device in list_devices()]


def find_device(name: str) -> Any:
    """Return a device by its name, or None."""
    library.load_backends()
    return ggml.ggml_backend_dev_by_name(name.encode())


def device_array(devices: Sequence[Any]) -> Any:
    """Build the array for `llama_model_params.devices`.

    An empty one selects no device. Without an array llama.cpp selects all GPUs, and queries their
    memory even to load a vocabulary.
    """
    return (ctypes.c_void_p * (len(devices) + 1))(*devices, None)


def free_bytes(only: Collection[str] = (), ggml: Any = ggml) -> dict[str, int]:
    """Free memory of each GPU that reports it; `only` restricts the query to these GPUs."""
    sizes = {}
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for device in list_devices(ggml):
        name = ggml.ggml_backend_dev_name(device).decode()
        if ggml.ggml_backend_dev_type(device) == _GPU and (not only or name in only):
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            if total.value:
                sizes[name] = free.value
    return sizes


def query_free_bytes() -> dict[str, int] | None:
    """Query `free_bytes` in a child process; None if it fails."""
    if not library.can_use_gpu():
        return {}
    command = [sys.executable, "-P", "-m", "inference_svc.llama.devices"]
    try:
        child = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
        sizes: dict[str, int] = json.loads(child.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        log.warning("cannot read the free memory of the GPUs: %s", problem)
        return None
    return sizes


if __name__ == "__main__":
    json.dump(free_bytes(), sys.stdout)
