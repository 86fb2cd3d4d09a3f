"""Tables and SQL of items and of the timelines that order them."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import creation_key, id_batches
from control_svc.base.pagination import Window, apply_cursors, restore_order
from control_svc.db.documents import Document, document_size, document_value
from control_svc.db.tables import Instant, Key, ObjectRow, OwnedRow, read_row
from control_svc.db.transaction import Queries
from control_svc.items.model import (
    ALL_ITEMS,
    APPROVAL_KINDS,
    CALL_KINDS,
    CallPart,
    Content,
    Item,
    ItemFilter,
    ItemRef,
    ItemStatus,
    TimelineItem,
)


class ItemRow(ObjectRow):
    __tablename__ = "items"

    status: Mapped[str] = mapped_column(sa.String(16))
    created_at: Mapped[datetime] = mapped_column(Instant)
    document: Mapped[Document]


class TimelineItemRow(OwnedRow):
    """The position of an item in a thread, a conversation or a response."""

    __tablename__ = "timeline_items"
    __table_args__ = (
        sa.ForeignKeyConstraint(["project", "item_id"], ["items.project", "items.id"]),
        sa.UniqueConstraint("project", "item_id", "timeline"),
        sa.Index(None, "project", "timeline", "kind", "position"),
        sa.Index(None, "project", "timeline", "origin", "position"),
        sa.Index(None, "project", "timeline", "age"),
    )

    timeline: Mapped[str] = mapped_column(Key, primary_key=True)
    position: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    item_id: Mapped[str] = mapped_column(Key)
    # copied from the item, for filters
    kind: Mapped[str] = mapped_column(sa.String(32))
    age: Mapped[str] = mapped_column(Key)  # the item id without prefix: ids increase with time
    origin: Mapped[str] = mapped_column(Key)  # run or response that created it; empty: a caller


# The bytes of a token may be invalid UTF-8.
_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_CONTENT: Final[TypeAdapter[Content]] = TypeAdapter(Content, config=_BYTES)


def encode_content(content: Content) -> bytes:
    return _CONTENT.dump_json(content, exclude_defaults=False)


def decode_content(document: bytes) -> Content:
    """Deserialize a content written by this release or an earlier one."""
    return _CONTENT.validate_json(document)


_TimelineSelect = sa.Select[int, str, ItemRow]


class TimelineQueries(Queries):
    """SQL of timelines."""

    async def append(self, timeline: str, items: Sequence[Item], origin: str = "") -> None:
        """Insert new items at the end. `origin` is the run or response that created them."""
        if items:
            await self._insert(ItemRow, *({"id": item.id, **_values(item)} for item in items))
        await self.link(timeline, items, origin)

    async def link(self, timeline: str, items: Sequence[Item | ItemRef], origin: str = "") -> None:
        """Append existing items to this timeline. They stay in their other timelines."""
        rows = [
            {
                "timeline": timeline,
                "position": position,
                "item_id": item.id,
                "kind": item.kind,
                "age": creation_key(item.id),
                "origin": origin,
            }
            for position, item in enumerate(items, await self.end(timeline))
        ]
        if rows:
            await self._insert(TimelineItemRow, *rows)

    async def end(self, timeline: str) -> int:
        """The position after the last item."""
        query = sa.select(sa.func.max(TimelineItemRow.position)).where(*self._in_timeline(timeline))
        last = (await self._session.execute(query)).scalar_one()
        return 0 if last is None else last + 1

    async def get(self, timeline: str, item_id: str) -> TimelineItem | None:
        """An item; None if the timeline does not contain it."""
        if not creation_key(item_id):
            return None  # databases reject some characters of malformed ids
        query = self._select_items(timeline).where(TimelineItemRow.item_id == item_id)
        row = (await self._session.execute(query)).one_or_none()
        return None if row is None else _timeline_item(row)

    async def contained(self, timeline: str, item_ids: Collection[str]) -> set[str]:
        """Those of the items that are in the timeline."""
        contained: set[str] = set()
        for ids in id_batches(item_ids):
            query = sa.select(TimelineItemRow.item_id).where(
                *self._in_timeline(timeline), TimelineItemRow.item_id.in_(ids)
            )
            contained |= set(await self._session.scalars(query))
        return contained

    async def get_many(self, item_ids: Collection[str]) -> dict[str, Item]:
        """The existing items with these ids, by id, in any timeline of the project."""
        items: dict[str, Item] = {}
        for ids in id_batches(item_ids):
            query = self._select(ItemRow, ItemRow.id.in_(ids))
            items |= {row.id: item_from_row(row) for row in await self._session.scalars(query)}
        return items

    async def existing_ids(self, item_ids: Collection[str]) -> set[str]:
        existing: set[str] = set()
        for ids in id_batches(item_ids):
            query = sa.select(ItemRow.id).where(self._mine(ItemRow), ItemRow.id.in_(ids))
            existing |= set(await self._session.scalars(query))
        return existing

    async def page(
        self, timeline: str, window: Window, item_filter: ItemFilter = ALL_ITEMS
    ) -> list[TimelineItem]:
        """The items of a window. The cursor item may have been removed."""
        cursors = window.after, window.before
        below, above = [await self._cursor_gap(timeline, item) for item in cursors]
        after = below.end if window.newest_first else below.start
        before = above.start if window.newest_first else above.end
        query = self._select_items(timeline, item_filter)
        query = apply_cursors(query, TimelineItemRow.position, window, after, before)
        rows = (await self._session.execute(query)).all()
        return restore_order([_timeline_item(row) for row in rows], window)

    async def read(
        self, timeline: str, start: int = 0, item_filter: ItemFilter = ALL_ITEMS
    ) -> list[TimelineItem]:
        """The items from position `start` on, in order."""
        query = self._select_items(timeline, item_filter)
        query = query.where(TimelineItemRow.position >= start).order_by(TimelineItemRow.position)
        return [_timeline_item(row) for row in (await self._session.execute(query)).all()]

    async def refs(self, timeline: str, item_filter: ItemFilter = ALL_ITEMS) -> list[ItemRef]:
        """The items in order, without their contents."""
        query = sa.select(TimelineItemRow.item_id, TimelineItemRow.kind).where(
            *self._in_timeline(timeline), *_filter_clauses(item_filter)
        )
        rows = await self._session.execute(query.order_by(TimelineItemRow.position))
        return [ItemRef(*row) for row in rows]

    async def call_parts(self, timeline: str) -> list[CallPart]:
        """The calls, outputs and approvals in order, read without arguments and texts."""
        query = self._select_items(timeline, ItemFilter(kinds=(*CALL_KINDS, *APPROVAL_KINDS)))
        return await read_call_parts(query.order_by(TimelineItemRow.position), self._session)

    async def num_bytes(self, timeline: str) -> int:
        """Total size of the documents of a timeline, computed by the database."""
        query = self._select_items(timeline).with_only_columns(
            sa.func.sum(document_size(ItemRow.document, self._session))
        )
        return (await self._session.execute(query)).scalar_one() or 0

    async def position_from_end(
        self, timeline: str, count: int, item_filter: ItemFilter = ALL_ITEMS
    ) -> int:
        """The position of the `count`-th item from the end; 0 if there are fewer."""
        query = (
            sa.select(TimelineItemRow.position)
            .where(*self._in_timeline(timeline), *_filter_clauses(item_filter))
            .order_by(TimelineItemRow.position.desc())
            .offset(count - 1)
            .limit(1)
        )
        return (await self._session.execute(query)).scalar_one_or_none() or 0

    async def update(self, item: Item) -> None:
        """Store the changed fields of an item."""
        update = self._update(ItemRow, ItemRow.id == item.id)
        await self._session.execute(update.values(_values(item)))

    async def remove(self, timeline: str, item_id: str) -> bool:
        """Remove an item; it is deleted if no other timeline contains it. False if it is not in the
        timeline."""
        if await self.get(timeline, item_id) is None:
            return False
        await self._session.execute(
            sa.delete(TimelineItemRow).where(
                *self._in_timeline(timeline), TimelineItemRow.item_id == item_id
            )
        )
        await self._delete_unlinked([item_id])
        return True

    async def delete(self, timeline: str) -> int:
        """Delete a timeline, and its items that no other one contains; return how many it had."""
        query = (
            sa.delete(TimelineItemRow)
            .where(*self._in_timeline(timeline))
            .returning(TimelineItemRow.item_id)
        )
        item_ids = list(await self._session.scalars(query))
        for batch in id_batches(item_ids):
            await self._delete_unlinked(batch)
        return len(item_ids)

    async def _delete_unlinked(self, item_ids: Sequence[str]) -> None:
        """Delete the items that no timeline contains.

        Items are locked first: two timelines of an item may be deleted at the same time, while a
        third one links it.
        """
        is_candidate = (self._mine(ItemRow), ItemRow.id.in_(item_ids))
        await self._session.execute(
            sa.select(ItemRow.id).where(*is_candidate).order_by(ItemRow.id).with_for_update()
        )
        is_linked = sa.exists().where(
            TimelineItemRow.project == ItemRow.project, TimelineItemRow.item_id == ItemRow.id
        )
        await self._session.execute(sa.delete(ItemRow).where(*is_candidate, ~is_linked))

    async def _cursor_gap(self, timeline: str, item_id: str) -> "_Gap":
        """The position of a cursor, or the positions around it if its item was removed."""
        if not item_id:
            return _Gap(None, None)
        exact = sa.select(TimelineItemRow.position).where(
            *self._in_timeline(timeline), TimelineItemRow.item_id == item_id
        )
        position = (await self._session.execute(exact)).scalar_one_or_none()
        if position is not None:
            return _Gap(position, position)
        older = sa.select(sa.func.max(TimelineItemRow.position)).where(
            *self._in_timeline(timeline), TimelineItemRow.age < creation_key(item_id)
        )
        last = (await self._session.execute(older)).scalar_one_or_none()
        return _Gap(-1, 0) if last is None else _Gap(last, last + 1)

    def _in_timeline(self, timeline: str) -> tuple[ColumnElement[bool], ...]:
        return (self._mine(TimelineItemRow), TimelineItemRow.timeline == timeline)

    def _select_items(self, timeline: str, item_filter: ItemFilter = ALL_ITEMS) -> _TimelineSelect:
        is_item = sa.and_(
            ItemRow.project == TimelineItemRow.project, ItemRow.id == TimelineItemRow.item_id
        )
        return (
            sa.select(TimelineItemRow.position, TimelineItemRow.origin, ItemRow)
            .join(ItemRow, is_item)
            .where(*self._in_timeline(timeline), *_filter_clauses(item_filter))
        )


class _Gap(NamedTuple):
    """Positions at or around a cursor; both None without a cursor."""

    start: int | None
    """Items after the cursor have higher positions."""
    end: int | None
    """Items before the cursor have lower positions."""


def _filter_clauses(item_filter: ItemFilter) -> list[ColumnElement[bool]]:
    clauses: list[ColumnElement[bool]] = []
    if item_filter.kinds:
        clauses.append(TimelineItemRow.kind.in_(item_filter.kinds))
    if item_filter.origin:
        clauses.append(TimelineItemRow.origin == item_filter.origin)
    if item_filter.is_input:
        clauses.append(TimelineItemRow.origin == "")
    return clauses


def _values(item: Item) -> dict[str, object]:
    return {
        "status": item.status.value,
        "created_at": item.created_at,
        "document": encode_content(item.content),
    }


def _timeline_item(row: sa.Row[int, str, ItemRow]) -> TimelineItem:
    position, origin, item = row
    return TimelineItem(position, item_from_row(item, origin))


async def read_call_parts(
    query: sa.Select[*tuple[Any, ...]], session: AsyncSession
) -> list[CallPart]:
    """Read what pairs the selected items, by a query of `ItemRow`."""
    document = sa.type_coerce(document_value(ItemRow.document, session), sa.JSON)
    ids = [document[name].as_string() for name in ("call_id", "approval_request_id")]
    call_id = sa.func.coalesce(*ids, "")
    row = TimelineItemRow
    rows = query.with_only_columns(row.item_id, row.kind, ItemRow.status, call_id)
    return [
        CallPart(item_id, kind, ItemStatus(status), call_id)
        for item_id, kind, status, call_id in await session.execute(rows)
    ]


def item_from_row(row: ItemRow, origin: str = "") -> Item:
    """Convert a row, whose origin is known by its timeline, to an item."""
    status, content = ItemStatus(row.status), decode_content(row.document)
    return read_row(Item, row, status=status, content=content, origin=origin)
