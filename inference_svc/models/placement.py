"""Settings of where weights are placed and how the context attends."""

import enum
from dataclasses import dataclass

from model_files.ggml_types import KvType


class SplitMode(enum.StrEnum):
    """How several devices share a model: not at all, by layers, by rows of each matrix."""

    NONE = "none"
    LAYER = "layer"
    ROW = "row"


class FlashAttention(enum.StrEnum):
    """Whether attention is computed in one fused operation. AUTO: where the device can."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class RopeScaling(enum.StrEnum):
    """How positions beyond the trained context are squeezed into it."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights go.

    `gpu_layers` is how many layers leave the processor, counted from the last, the output as one
    more; -1 for all. `devices` are ggml's names ("CUDA0"), none for all there are; `tensor_split`
    gives each its share, `main_device` (an index) has everything where nothing is split.
    `maps_file` leaves weights in their file, mapped, where they would otherwise be copied;
    `locks_memory` keeps them from being swapped out.
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
        """Whether GPUs have a part in it. Those that are named compute large batches even where no
        layer is theirs."""
        return self.gpu_layers != 0 or bool(self.devices)


ON_PROCESSOR = Placement(gpu_layers=0)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions; what is None is as the model's file says.

    A `frequency_scale` below 1 stretches the context by its inverse; `original_context` is what the
    model was trained for (YaRN).
    """

    scaling: RopeScaling | None = None
    frequency_base: float | None = None
    frequency_scale: float | None = None
    original_context: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """`key_type` and `value_type` are what the KV cache is kept in."""

    key_type: KvType = KvType.F16
    value_type: KvType = KvType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO
    rope: Rope = Rope()


class LoadPolicy(enum.StrEnum):
    """Who loads a model: the server at its start, the first request, or only an operator. One that
    gave way to another is loaded again by a request, unless only an operator may."""

    START = "start"
    ON_DEMAND = "on_demand"
    MANUAL = "manual"
