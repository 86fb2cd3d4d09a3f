"""Tables and SQL of items and of the timelines that order them."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import (
    BigInteger,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    Row,
    Select,
    String,
    UniqueConstraint,
    and_,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import creation_key
from control_svc.base.pagination import Window, apply_cursors, restore_order
from control_svc.db.tables import Instant, Key, Project, Table
from control_svc.db.transaction import Transaction
from control_svc.items.model import ALL_ITEMS, Content, Item, ItemFilter, ItemStatus, TimelineItem


class ItemRow(Table):
    """An item, a document; timelines order items."""

    __tablename__ = "items"

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    document: Mapped[bytes] = mapped_column(LargeBinary)


class TimelineItemRow(Table):
    """An item's place in the past of a thread, a conversation or a response."""

    __tablename__ = "timeline_items"
    __table_args__ = (
        ForeignKeyConstraint(["project", "item_id"], ["items.project", "items.id"]),
        UniqueConstraint("project", "item_id", "timeline"),
        Index(None, "project", "timeline", "kind", "position"),
        Index(None, "project", "timeline", "origin", "position"),
        Index(None, "project", "timeline", "age"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    timeline: Mapped[str] = mapped_column(Key, primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    item_id: Mapped[str] = mapped_column(Key)
    # of the item, for lists
    kind: Mapped[str] = mapped_column(String(32))
    age: Mapped[str] = mapped_column(Key)  # its id without the prefix: ids grow with time
    origin: Mapped[str] = mapped_column(Key)  # the run or response that made it; empty: a caller


# The bytes of a token need not be text.
_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_CONTENT: Final[TypeAdapter[Content]] = TypeAdapter(Content, config=_BYTES)


def encode_content(content: Content) -> bytes:
    """The document of a content."""
    return _CONTENT.dump_json(content, exclude_defaults=False)


def decode_content(document: bytes) -> Content:
    """The content of a document that `encode_content` made, in this release or an earlier one."""
    return _CONTENT.validate_json(document)


_ITEMS_AT_ONCE: Final = 500
_Placed = Select[int, ItemRow]


class TimelineQueries:
    """Timelines in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def append(
        self, project: str, timeline: str, items: Sequence[Item], origin: str = ""
    ) -> list[TimelineItem]:
        """Keep new items at the end; `origin` is the run or response that made them."""
        if items:
            rows = [{"project": project, "id": item.id, **_values(item)} for item in items]
            await self._session.execute(insert(ItemRow), rows)
        return await self.link(project, timeline, items, origin)

    async def link(
        self, project: str, timeline: str, items: Sequence[Item], origin: str = ""
    ) -> list[TimelineItem]:
        """Put items that another timeline has at the end of this one, too."""
        if not items:
            return []
        last = select(func.max(TimelineItemRow.position)).where(*_of(project, timeline))
        found = (await self._session.execute(last)).scalar_one()
        first = 0 if found is None else found + 1
        placed = [TimelineItem(position, item) for position, item in enumerate(items, first)]
        await self._session.execute(
            insert(TimelineItemRow),
            [
                {
                    "project": project,
                    "timeline": timeline,
                    "position": each.position,
                    "item_id": each.item.id,
                    "kind": each.item.kind,
                    "age": creation_key(each.item.id),
                    "origin": origin,
                }
                for each in placed
            ],
        )
        return placed

    async def get(self, project: str, timeline: str, item_id: str) -> TimelineItem | None:
        """One item; None: the timeline has none of this id."""
        if not creation_key(item_id):
            return None  # not asked for: a database may refuse its characters
        query = _placed(project, timeline).where(TimelineItemRow.item_id == item_id)
        found = (await self._session.execute(query)).one_or_none()
        return None if found is None else _placed_item(found)

    async def get_many(self, project: str, item_ids: Collection[str]) -> dict[str, Item]:
        """Those of the items that the project has, in whatever timelines, by id."""
        found: dict[str, Item] = {}
        for some in _at_once(item_ids):
            query = select(ItemRow).where(ItemRow.project == project, ItemRow.id.in_(some))
            found |= {row.id: item_from_row(row) for row in await self._session.scalars(query)}
        return found

    async def existing_ids(self, project: str, item_ids: Collection[str]) -> set[str]:
        """Those of the ids that items of the project have."""
        found: set[str] = set()
        for some in _at_once(item_ids):
            query = select(ItemRow.id).where(ItemRow.project == project, ItemRow.id.in_(some))
            found |= set(await self._session.scalars(query))
        return found

    async def page(
        self, project: str, timeline: str, window: Window, item_filter: ItemFilter = ALL_ITEMS
    ) -> list[TimelineItem]:
        """The items of a window, which may begin at one that has been taken out."""
        cursors = window.after, window.before
        below, above = [await self._around(project, timeline, item) for item in cursors]
        after = below.end if window.newest_first else below.start
        before = above.start if window.newest_first else above.end
        query = _placed(project, timeline, item_filter)
        query = apply_cursors(query, TimelineItemRow.position, window, after, before)
        found = (await self._session.execute(query)).all()
        return restore_order([_placed_item(row) for row in found], window)

    async def read(
        self, project: str, timeline: str, position: int = 0, item_filter: ItemFilter = ALL_ITEMS
    ) -> list[TimelineItem]:
        """The items from a position on, in order."""
        query = _placed(project, timeline, item_filter).where(TimelineItemRow.position >= position)
        found = await self._session.execute(query.order_by(TimelineItemRow.position))
        return [_placed_item(row) for row in found.all()]

    async def num_bytes(self, project: str, timeline: str) -> int:
        """How long the documents of a timeline are; nothing is read for it."""
        query = _placed(project, timeline).with_only_columns(
            func.sum(func.length(ItemRow.document))
        )
        return (await self._session.execute(query)).scalar_one() or 0

    async def position_from_end(
        self, project: str, timeline: str, count: int, item_filter: ItemFilter = ALL_ITEMS
    ) -> int:
        """The position of the last of so many items, counted from the end; 0: there are fewer."""
        query = (
            select(TimelineItemRow.position)
            .where(*_of(project, timeline), *_filter_clauses(item_filter))
            .order_by(TimelineItemRow.position.desc())
            .offset(count - 1)
            .limit(1)
        )
        return (await self._session.execute(query)).scalar_one_or_none() or 0

    async def update(self, project: str, item: Item) -> None:
        """Keep what has changed of an item."""
        await self._session.execute(
            update(ItemRow)
            .where(ItemRow.project == project, ItemRow.id == item.id)
            .values(_values(item))
        )

    async def remove(self, project: str, timeline: str, item_id: str) -> bool:
        """Take an item out; it is forgotten where no other timeline has it. False: it was not
        there."""
        if await self.get(project, timeline, item_id) is None:
            return False
        await self._session.execute(
            delete(TimelineItemRow).where(
                *_of(project, timeline), TimelineItemRow.item_id == item_id
            )
        )
        await self._delete_unlinked(project, [item_id])
        return True

    async def delete(self, project: str, timeline: str) -> int:
        """Forget a timeline, and the items that no other one has; how many it had."""
        query = (
            delete(TimelineItemRow)
            .where(*_of(project, timeline))
            .returning(TimelineItemRow.item_id)
        )
        dropped = list(await self._session.scalars(query))
        for first in range(0, len(dropped), _ITEMS_AT_ONCE):
            await self._delete_unlinked(project, dropped[first : first + _ITEMS_AT_ONCE])
        return len(dropped)

    async def _delete_unlinked(self, project: str, item_ids: Sequence[str]) -> None:
        """Forget those that no timeline has. They are locked before it is looked: two timelines of
        an item may be dropped at the same time, and a third may be about to get it."""
        some = (ItemRow.project == project, ItemRow.id.in_(item_ids))
        await self._session.execute(
            select(ItemRow.id).where(*some).order_by(ItemRow.id).with_for_update()
        )
        placed = exists().where(
            TimelineItemRow.project == ItemRow.project, TimelineItemRow.item_id == ItemRow.id
        )
        await self._session.execute(delete(ItemRow).where(*some, ~placed))

    async def _around(self, project: str, timeline: str, item_id: str) -> "_Gap":
        """The position of a cursor, or, if its item is deleted, the position by age."""
        if not item_id:
            return _Gap(None, None)
        exact = select(TimelineItemRow.position).where(
            *_of(project, timeline), TimelineItemRow.item_id == item_id
        )
        found = (await self._session.execute(exact)).scalar_one_or_none()
        if found is not None:
            return _Gap(found, found)
        older = select(func.max(TimelineItemRow.position)).where(
            *_of(project, timeline), TimelineItemRow.age < creation_key(item_id)
        )
        last = (await self._session.execute(older)).scalar_one_or_none()
        return _Gap(-1, 0) if last is None else _Gap(last, last + 1)


class _Gap(NamedTuple):
    """Positions at, or else around, a cursor."""

    start: int | None
    """What is after the cursor is beyond this one."""
    end: int | None
    """What is before the cursor is below this one."""


def _at_once(item_ids: Collection[str]) -> Iterator[list[str]]:
    """The ids that may be asked for (a database may refuse the characters of others), in parts."""
    known = [item_id for item_id in item_ids if creation_key(item_id)]
    for first in range(0, len(known), _ITEMS_AT_ONCE):
        yield known[first : first + _ITEMS_AT_ONCE]


def _of(project: str, timeline: str) -> tuple[ColumnElement[bool], ...]:
    return (TimelineItemRow.project == project, TimelineItemRow.timeline == timeline)


def _filter_clauses(item_filter: ItemFilter) -> list[ColumnElement[bool]]:
    limits: list[ColumnElement[bool]] = []
    if item_filter.kinds:
        limits.append(TimelineItemRow.kind.in_(item_filter.kinds))
    if item_filter.origin:
        limits.append(TimelineItemRow.origin == item_filter.origin)
    if item_filter.is_input:
        limits.append(TimelineItemRow.origin == "")
    return limits


def _placed(project: str, timeline: str, item_filter: ItemFilter = ALL_ITEMS) -> _Placed:
    return (
        select(TimelineItemRow.position, ItemRow)
        .join(
            ItemRow,
            and_(ItemRow.project == TimelineItemRow.project, ItemRow.id == TimelineItemRow.item_id),
        )
        .where(*_of(project, timeline), *_filter_clauses(item_filter))
    )


def _values(item: Item) -> dict[str, object]:
    return {
        "status": item.status.value,
        "created_at": item.created_at,
        "document": encode_content(item.content),
    }


def _placed_item(found: Row[int, ItemRow]) -> TimelineItem:
    position, row = found
    return TimelineItem(position, item_from_row(row))


def item_from_row(row: ItemRow) -> Item:
    """An item out of its row."""
    return Item(
        id=row.id,
        status=ItemStatus(row.status),
        created_at=row.created_at,
        content=decode_content(row.document),
    )
