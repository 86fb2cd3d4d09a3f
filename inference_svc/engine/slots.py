"""The slots of the KV cache: the sequences that run in them, and the prefixes cached in idle ones.

`Slot.tokens` always matches the cells in the native cache. The prefix in an idle slot is reused by
requests with the same prefix and the same key. The key identifies the owner of the prefix, so that
others cannot learn from response times what was sent.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One slot of the KV cache."""

    index: int
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    key: bytes = b""
    owner: int | None = None
    """The id of the running sequence; None if idle."""
    is_saved: bool = False
    """Whether the cells of an idle slot are also saved in memory, for its preempted sequence."""
    kept_for: str = ""
    """The owner for whom the cells are archived; empty if none."""
    project: str = ""
    """The project of the last sequence: only its own prompts are compared with these tokens."""
    num_archived: int = 0
    """How many of its first tokens are on disk, as far as that was looked up."""

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs in this slot."""
        return self.owner is None


class SlotTable:
    """All slots of one model."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]

    def occupy(
        self, slot: Slot, sequence_id: int, key: bytes, kept_for: str = "", project: str = ""
    ) -> None:
        """Assign a slot to a sequence of a project. With an empty key its prefix is not reused; it
        is archived for the owner `kept_for`, if any."""
        slot.owner = sequence_id
        slot.key = key
        slot.is_saved = False
        slot.kept_for = kept_for
        slot.project = project
        slot.num_archived = 0

    def release(self, slot: Slot, *, keep: bool) -> None:
        """Make a slot idle. If `keep`, its prefix may be reused."""
        slot.owner = None
        if not keep:
            slot.key, slot.kept_for = b"", ""

    @staticmethod
    def swap(left: Slot, right: Slot) -> None:
        """Swap everything but the indexes, after the cells of two slots were swapped."""
        for name in ("tokens", "key", "owner", "is_saved", "kept_for", "project", "num_archived"):
            left_value, right_value = getattr(left, name), getattr(right, name)
            setattr(left, name, right_value)
            setattr(right, name, left_value)

    @property
    def has_idle(self) -> bool:
        return any(slot.is_idle for slot in self.slots)

    @property
    def num_used_cells(self) -> int:
        """Tokens in all slots."""
        return sum(len(slot.tokens) for slot in self.slots)

    @property
    def num_idle_cells(self) -> int:
        return sum(len(slot.tokens) for slot in self.slots if slot.is_idle)


def common_prefix(left: Sequence[int], right: Sequence[int], *, limit: int) -> int:
    """The length of the common prefix, at most `limit`, by binary search."""
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
