"""Loads the weights of a model onto its devices, with progress."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from inference_svc.llama import devices
from inference_svc.models.placement import Placement, SplitMode


class ModelLoadError(Exception):
    """llama.cpp could not load the model or make its context."""


_SPLIT_MODES = {
    SplitMode.NONE: llama_cpp.LLAMA_SPLIT_MODE_NONE,
    SplitMode.LAYER: llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    SplitMode.ROW: llama_cpp.LLAMA_SPLIT_MODE_ROW,
}

# By whether the file is mapped, and whether memory is locked. Weights are copied by default: mapped
# pages have 4 KiB, and looking up their addresses takes up to an eighth of a step.
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

    `on_progress` hears the fraction that is read, 0 to 1, once a percent at most. Raises
    `ModelLoadError`.
    """
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = placement.gpu_layers
    params.split_mode = _SPLIT_MODES[placement.split_mode]
    params.main_gpu = placement.main_device
    params.load_mode = _LOAD_MODES[placement.maps_file, placement.locks_memory]
    # llama.cpp reads these through bare pointers for as long as the call lasts.
    chosen, shares = _devices(placement), _shares(placement)
    params.devices = ctypes.cast(chosen, ctypes.c_void_p) if chosen else None
    params.tensor_split = shares
    progress = llama_cpp.llama_progress_callback(_Progress(on_progress))
    params.progress_callback = progress
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelLoadError(f"llama.cpp cannot load {path}")
    return model


class _Progress:
    """Forwards the progress of llama.cpp, without repetitions."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._told = -1

    def __call__(self, fraction: float, _: object) -> bool:
        percent = int(fraction * 100)
        if percent > self._told:
            self._told = percent
            self._tell(percent / 100)
        return True  # go on


def _devices(placement: Placement) -> Any:
    """The devices to use, or None for all GPUs."""
    if not placement.uses_devices:
        return devices.as_list(())
    if not placement.devices:
        return None
    found = [devices.find(name) for name in placement.devices]
    for name, device in zip(placement.devices, found, strict=True):
        if not device:
            there = ", ".join(devices.names())
            raise ModelLoadError(f"there is no device {name!r}; there are {there}")
    return devices.as_list(found)


def _shares(placement: Placement) -> Any:
    """A share for each device there may be, or None to split by their memory."""
    if not placement.tensor_split:
        return None
    most = int(llama_cpp.llama_max_devices())
    if len(placement.tensor_split) > most:
        given = len(placement.tensor_split)
        raise ModelLoadError(f"tensor_split has {given} shares, and there may be {most} devices")
    return (ctypes.c_float * most)(*placement.tensor_split)
