"""Placement of weights, attention settings, and load policy of a model."""

import enum
from dataclasses import dataclass

from model_files.ggml_types import KvType


class SplitMode(enum.StrEnum):
    """How a model is split across devices: not at all, by layers, or by rows of each matrix."""

    NONE = "none"
    LAYER = "layer"
    ROW = "row"


class FlashAttention(enum.StrEnum):
    """Whether flash attention is used. AUTO: if the device supports it."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class RopeScaling(enum.StrEnum):
    """Method of RoPE scaling for positions beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the weights of a model are placed.

    `gpu_layers` is the number of layers on GPUs, counted from the last, with the output as one more
    layer; -1 for all. `devices` are ggml names ("CUDA0"); empty for all devices. `tensor_split` is
    the share of each device. `main_device` is the index of the device that holds everything with
    split mode NONE. `maps_file` uses mmap instead of copying the weights; `locks_memory` prevents
    swapping.
    """

    gpu_layers: int = -1
    devices: tuple[str, ...] = ()
    split_mode: SplitMode = SplitMode.LAYER
    tensor_split: tuple[float, ...] = ()
    main_device: int = 0
    maps_file: bool = False
    locks_memory: bool = False

    @property
    def uses_devices(self) -> bool:
        """Whether GPUs are used. Named devices compute large batches even without any layers."""
        return self.gpu_layers != 0 or bool(self.devices)


ON_PROCESSOR = Placement(gpu_layers=0)


@dataclass(frozen=True, slots=True)
class Rope:
    """RoPE parameters; None is the value of the model file.

    A `frequency_scale` below 1 extends the context by its inverse; `original_context` is the
    trained context (YaRN).
    """

    scaling: RopeScaling | None = None
    frequency_base: float | None = None
    frequency_scale: float | None = None
    original_context: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention settings; `key_type` and `value_type` are the types of the KV cache."""

    key_type: KvType = KvType.F16
    value_type: KvType = KvType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO
    rope: Rope = Rope()


class LoadPolicy(enum.StrEnum):
    """When a model is loaded: at startup, by the first request, or only by an operator. An evicted
    model is loaded again by the next request, except with MANUAL."""

    START = "start"
    ON_DEMAND = "on_demand"
    MANUAL = "manual"
