"""Which sequence holds which slot of the KV cache, and what idle slots still remember.

A slot's `tokens` are exactly those whose cells the native cache holds. An idle slot keeps them for
the next request with the same beginning under the same key; the key names whose they are, so that
nobody else can tell what was sent.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One KV stream; `is_saved` says that an idle slot's cells are in memory too, for the preempted
    sequence that they are of, `kept_for` which stored object they are part of (empty: none)."""

    index: int
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    key: bytes = b""
    owner: int | None = None
    is_saved: bool = False
    kept_for: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs here."""
        return self.owner is None


class SlotTable:
    """All slots of one model."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]

    def occupy(self, slot: Slot, sequence_id: int, key: bytes) -> None:
        """Assign a slot to a sequence; with an empty key its prefix is not shared."""
        slot.owner = sequence_id
        slot.key = key
        slot.is_saved = False
        slot.kept_for = ""

    def release(self, slot: Slot, *, keep: bool, kept_for: str = "") -> None:
        """The sequence is gone; what was computed stays for reuse where `keep`, as part of a stored
        object where one is named."""
        slot.owner = None
        if keep:
            slot.kept_for = kept_for
        else:
            slot.key = b""

    @staticmethod
    def swap(one: Slot, other: Slot) -> None:
        """The cells of two slots have changed places, and with them whose they are."""
        for name in ("tokens", "key", "owner", "is_saved", "kept_for"):
            mine, its = getattr(one, name), getattr(other, name)
            setattr(one, name, its)
            setattr(other, name, mine)

    @property
    def has_idle(self) -> bool:
        """Whether a sequence could start."""
        return any(slot.is_idle for slot in self.slots)

    @property
    def num_used_cells(self) -> int:
        """Tokens held in all slots."""
        return sum(len(slot.tokens) for slot in self.slots)

    @property
    def num_idle_cells(self) -> int:
        """Tokens held in idle slots."""
        return sum(len(slot.tokens) for slot in self.slots if slot.is_idle)


def common_prefix(left: Sequence[int], right: Sequence[int], *, limit: int) -> int:
    """The length of the common beginning, at most `limit`. Compares halves, so long prefixes cost
    few steps."""
    high = min(len(left), len(right), limit)
    if high <= 0 or left[0] != right[0]:
        return 0
    if left[:high] == right[:high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
