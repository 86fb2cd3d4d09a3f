"""Devices of ggml and the free memory of GPUs.

Asking uses some hundred megabytes of a GPU for as long as the process lives, so it is asked in a
child process.
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

# Looked up through llama.cpp's library: a wheel holds ggml under two names, and loading it by the
# other one makes a second list of devices, which llama.cpp does not know.
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

_GPU = 1  # ggml's number; integrated ones (2) share the memory of the processor
_PATIENCE_S = 60.0


def handles(ggml: Any = ggml) -> list[Any]:
    """Every device, the processor among them."""
    return [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]


def names() -> list[str]:
    """What ggml calls them."""
    return [ggml.ggml_backend_dev_name(device).decode() for device in handles()]


def find(name: str) -> Any:
    """A device by its name; None where there is none."""
    return ggml.ggml_backend_dev_by_name(name.encode())


def as_list(devices: Sequence[Any]) -> Any:
    """What `llama_model_params.devices` points to. An empty one is no device at all, where no list
    stands for all GPUs, which llama.cpp then asks for their memory even for a vocabulary."""
    return (ctypes.c_void_p * (len(devices) + 1))(*devices, None)


def free_bytes(only: Collection[str] = (), ggml: Any = ggml) -> dict[str, int]:
    """What is free now on each GPU that tells; no other is asked than `only`, where some are
    named."""
    found = {}
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for device in handles(ggml):
        name = ggml.ggml_backend_dev_name(device).decode()
        if ggml.ggml_backend_dev_type(device) == _GPU and (not only or name in only):
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            if total.value:
                found[name] = free.value
    return found


def free_bytes_from_outside() -> dict[str, int] | None:
    """The same, for a process that must not use a GPU; None if unknown."""
    if not library.can_use_gpu():
        return {}
    command = [sys.executable, "-P", "-m", "inference_svc.llama.devices"]
    try:
        events = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        found: dict[str, int] = json.loads(events.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        log.warning("the free memory of the GPUs cannot be read: %s", problem)
        return None
    return found


if __name__ == "__main__":
    json.dump(free_bytes(), sys.stdout)
