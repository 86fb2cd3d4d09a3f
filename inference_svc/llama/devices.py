"""The devices of this machine as ggml tells of them, and the memory that GPUs have free: the
difference is what a model took.

Asking costs a GPU some hundred megabytes for as long as the process lives (its driver sets itself
up). So only engines ask, which use the GPU anyway, and a process of a moment's life for the
frontend, which must know before the first load.
"""

import ctypes
import logging
import subprocess
import sys
from typing import Any

from llama_cpp._ggml import libggml

from inference_svc.llama import library

log = logging.getLogger(__name__)

_libggml: Any = libggml
_libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
_libggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
_libggml.ggml_backend_dev_get.restype = ctypes.c_void_p
_libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
_size = ctypes.POINTER(ctypes.c_size_t)
_libggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, _size, _size]
_libggml.ggml_backend_dev_memory.restype = None

_GPU = 1  # ggml's number; integrated ones (2) share the memory of the processor
_PATIENCE_S = 60.0


def handles(ggml: Any = _libggml) -> list[Any]:
    """Every device, the processor among them."""
    return [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]


def free_bytes(ggml: Any = _libggml) -> int:
    """What is free now on all GPUs together; 0 where there is none."""
    free, total, sum_free = ctypes.c_size_t(), ctypes.c_size_t(), 0
    for device in handles(ggml):
        if ggml.ggml_backend_dev_type(device) == _GPU:
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            sum_free += free.value
    return sum_free


def free_bytes_at_start() -> int:
    """The same for a process that is not to use a GPU; 0 where it cannot be told."""
    if not library.can_use_gpu():
        return 0
    command = [sys.executable, "-P", "-m", "inference_svc.llama.devices"]
    try:
        told = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        return int(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        log.warning("the memory of GPUs is not counted: %s", problem)
        return 0


if __name__ == "__main__":
    sys.stdout.write(str(free_bytes()))
