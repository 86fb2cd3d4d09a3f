"""Initializes llama.cpp once per process and forwards its log."""

import ctypes
import logging
from collections import deque
from functools import cache
from typing import Any

import llama_cpp
from llama_cpp.llama_cpp import _base_path, _lib

log = logging.getLogger("llama.cpp")

_LOAD_ERROR = "error loading model: "
_load_errors: deque[str] = deque(maxlen=1)

# ggml's levels: 1 debug, 2 info, 3 warning, 4 error, 5 continuation. Forwarded one level lower.
_LEVELS = {2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes function type
def _log_line(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").strip()
    if _LOAD_ERROR in line:
        _load_errors.append(line.split(_LOAD_ERROR)[1])
    if line and log.isEnabledFor(_LEVELS.get(level, logging.DEBUG)):
        log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def pop_load_error() -> str:
    """Return llama.cpp's reason why it could not load the last model, and forget it."""
    return _load_errors.pop() if _load_errors else "llama.cpp gives no reason"


def start() -> None:
    """Initialize the library and redirect its log. May be called again."""
    # llama.cpp stores a bare pointer to the callback; as a module attribute it is never freed.
    llama_cpp.llama_log_set(_log_line, ctypes.c_void_p(0))
    load_backends()
    llama_cpp.llama_backend_init()


@cache
def load_backends() -> None:
    """Load the backends of a build that has them in files of their own (GGML_BACKEND_DL).

    ggml searches the folder of the program, Python's, and chooses the best CPU variant by itself.
    """
    _lib.ggml_backend_reg_count.restype = ctypes.c_size_t
    if not _lib.ggml_backend_reg_count():
        _lib.ggml_backend_load_all_from_path(str(_base_path).encode())


def can_use_gpu() -> bool:
    """Whether llama.cpp was built with a GPU backend that finds a device."""
    load_backends()
    return bool(llama_cpp.llama_supports_gpu_offload())


def system_info() -> str:
    """llama.cpp's description of the CPU features it uses."""
    load_backends()
    text: Any = llama_cpp.llama_print_system_info()
    return text.decode() if text else ""
