"""Where items are kept: in timelines, the ordered pasts of threads, conversations and responses.

A timeline has the id of its owner. Who appends to it or takes from it has locked the owner's row.
"""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ItemFilter:
    """Which items of a timeline; an empty one is all."""

    kinds: Collection[str] = field(default_factory=tuple)
    origin: str = ""
    """Those that this run or response made."""
    is_given: bool = False
    """Those that none made, but a caller gave."""


ALL_ITEMS = ItemFilter()
GIVEN_ITEMS = ItemFilter(is_given=True)
