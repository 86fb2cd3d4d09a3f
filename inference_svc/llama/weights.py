"""Loads the weights of a model onto its devices, with progress."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from inference_svc.llama import devices, library
from inference_svc.models.placement import Placement, SplitMode


class ModelLoadError(Exception):
    """llama.cpp could not load the model or create its context."""


_SPLIT_MODES = {
    SplitMode.NONE: llama_cpp.LLAMA_SPLIT_MODE_NONE,
    SplitMode.LAYER: llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    SplitMode.ROW: llama_cpp.LLAMA_SPLIT_MODE_ROW,
}

# Keyed by (maps_file, locks_memory). Weights are not mapped by default: mapped pages have 4 KiB,
# and TLB misses take up to an eighth of a step.
_LOAD_MODES = {
    (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
    (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
    (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
    (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


def load_model(
    path: Path, placement: Placement, on_progress: Callable[[float], None] = lambda _: None
) -> Any:
    """Load weights; the caller frees them.

    `on_progress` receives the fraction read, 0 to 1, at most once per percent. Raises
    `ModelLoadError`.
    """
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = placement.gpu_layers
    params.split_mode = _SPLIT_MODES[placement.split_mode]
    params.main_gpu = placement.main_device
    params.load_mode = _LOAD_MODES[placement.maps_file, placement.locks_memory]
    # llama.cpp reads these through bare pointers: local variables keep them alive during the call.
    selected, tensor_split = _devices(placement), _tensor_split(placement)
    params.devices = ctypes.cast(selected, ctypes.c_void_p) if selected else None
    params.tensor_split = tensor_split
    progress = llama_cpp.llama_progress_callback(_Progress(on_progress))
    params.progress_callback = progress
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelLoadError(f"llama.cpp cannot load {path}: {library.pop_load_error()}")
    return model


class _Progress:
    """Forwards llama.cpp's progress, at most once per percent."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._last_percent = -1

    def __call__(self, fraction: float, _: object) -> bool:
        percent = int(fraction * 100)
        if percent > self._last_percent:
            self._last_percent = percent
            self._report(percent / 100)
        return True  # continue loading


def _devices(placement: Placement) -> Any:
    """The array of devices to use, or None for all GPUs."""
    if not placement.uses_devices:
        return devices.device_array(())
    if not placement.devices:
        return None
    handles = [devices.find_device(name) for name in placement.devices]
    for name, handle in zip(placement.devices, handles, strict=True):
        if not handle:
            available = ", ".join(devices.device_names())
            raise ModelLoadError(f"unknown device {name!r}; available devices: {available}")
    return devices.device_array(handles)


def _tensor_split(placement: Placement) -> Any:
    """The share of each possible device, or None to split by free memory."""
    if not placement.tensor_split:
        return None
    limit = int(llama_cpp.llama_max_devices())
    if (count := len(placement.tensor_split)) > limit:
        raise ModelLoadError(f"tensor_split has {count} shares; at most {limit} are allowed")
    return (ctypes.c_float * limit)(*placement.tensor_split)
