"""Where items are kept: in timelines, the ordered pasts of threads, conversations and responses.

A timeline has the id of its owner. Who appends to it or takes from it has locked the owner's row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from control_svc.domain.items import Item, PlacedItem
from control_svc.domain.listing import Window


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


class TimelineRepository(Protocol):
    """The items of timelines."""

    async def append(
        self, project: str, timeline: str, items: Sequence[Item], origin: str = ""
    ) -> list[PlacedItem]:
        """Keep new items at the end; `origin` is the run or response that made them."""

    async def link(
        self, project: str, timeline: str, items: Sequence[Item], origin: str = ""
    ) -> list[PlacedItem]:
        """Put items that another timeline has at the end of this one, too."""

    async def get(self, project: str, timeline: str, item_id: str) -> PlacedItem | None:
        """One item; None: the timeline has none of this id."""

    async def stored(self, project: str, item_ids: Collection[str]) -> dict[str, Item]:
        """Those of the items that the project has, in whatever timelines, by id."""

    async def taken(self, project: str, item_ids: Collection[str]) -> set[str]:
        """Those of the ids that items of the project have."""

    async def page(
        self, project: str, timeline: str, window: Window, wanted: ItemFilter = ALL_ITEMS
    ) -> list[PlacedItem]:
        """The items of a window, which may begin at one that has been taken out."""

    async def since(
        self, project: str, timeline: str, position: int = 0, wanted: ItemFilter = ALL_ITEMS
    ) -> list[PlacedItem]:
        """The items from a position on, in order."""

    async def num_bytes(self, project: str, timeline: str) -> int:
        """How long the documents of a timeline are; nothing is read for it."""

    async def place_of_last(
        self, project: str, timeline: str, count: int, wanted: ItemFilter = ALL_ITEMS
    ) -> int:
        """The position of the last of so many items, counted from the end; 0: there are fewer."""

    async def update(self, project: str, item: Item) -> None:
        """Keep what has changed of an item."""

    async def remove(self, project: str, timeline: str, item_id: str) -> bool:
        """Take an item out; it is forgotten where no other timeline has it. False: it was not
        there."""

    async def drop(self, project: str, timeline: str) -> int:
        """Forget a timeline, and the items that no other one has; how many it had."""
