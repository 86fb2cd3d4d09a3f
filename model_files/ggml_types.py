"""Sizes of ggml's tensor types and KV cache types."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class TensorLayout(NamedTuple):
    """How a tensor type packs its values: `block_items` values take `block_bytes` bytes."""

    name: str
    block_items: int
    block_bytes: int


TENSOR_LAYOUTS: Final[Mapping[int, TensorLayout]] = MappingProxyType(
    {
        0: TensorLayout("f32", 1, 4),
        1: TensorLayout("f16", 1, 2),
        2: TensorLayout("q4_0", 32, 18),
        3: TensorLayout("q4_1", 32, 20),
        6: TensorLayout("q5_0", 32, 22),
        7: TensorLayout("q5_1", 32, 24),
        8: TensorLayout("q8_0", 32, 34),
        9: TensorLayout("q8_1", 32, 36),
        10: TensorLayout("q2_K", 256, 84),
        11: TensorLayout("q3_K", 256, 110),
        12: TensorLayout("q4_K", 256, 144),
        13: TensorLayout("q5_K", 256, 176),
        14: TensorLayout("q6_K", 256, 210),
        15: TensorLayout("q8_K", 256, 292),
        16: TensorLayout("iq2_xxs", 256, 66),
        17: TensorLayout("iq2_xs", 256, 74),
        18: TensorLayout("iq3_xxs", 256, 98),
        19: TensorLayout("iq1_s", 256, 50),
        20: TensorLayout("iq4_nl", 32, 18),
        21: TensorLayout("iq3_s", 256, 110),
        22: TensorLayout("iq2_s", 256, 82),
        23: TensorLayout("iq4_xs", 256, 136),
        24: TensorLayout("i8", 1, 1),
        25: TensorLayout("i16", 1, 2),
        26: TensorLayout("i32", 1, 4),
        27: TensorLayout("i64", 1, 8),
        28: TensorLayout("f64", 1, 8),
        29: TensorLayout("iq1_m", 256, 56),
        30: TensorLayout("bf16", 1, 2),
        34: TensorLayout("tq1_0", 256, 54),
        35: TensorLayout("tq2_0", 256, 66),
        39: TensorLayout("mxfp4", 32, 17),
        40: TensorLayout("nvfp4", 64, 36),
        41: TensorLayout("q1_0", 128, 18),
        42: TensorLayout("q2_0", 64, 18),
    }
)

_NUMBERS = {layout.name: number for number, layout in TENSOR_LAYOUTS.items()}


class KvType(enum.StrEnum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"

    @property
    def number(self) -> int:
        """The ggml type id."""
        return _NUMBERS[self.value]

    @property
    def bits(self) -> float:
        """Bits per value."""
        layout = TENSOR_LAYOUTS[self.number]
        return 8 * layout.block_bytes / layout.block_items

    @property
    def is_quantized(self) -> bool:
        """Whether values are packed in blocks. A quantized V cache requires flash attention."""
        return TENSOR_LAYOUTS[self.number].block_items > 1


REMOVED_TYPES: Final = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
