"""Items in timelines, on both databases: lists against a plain list, and nothing left behind."""

import asyncio
from collections.abc import Sequence
from itertools import product

from control_svc.base.ids import IdSource
from control_svc.base.pagination import Window
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    FunctionCall,
    Item,
    ItemFilter,
    ItemStatus,
    Message,
    TimelineItem,
    Role,
    Text,
)
from control_svc.items.queries import ItemRow, TimelineQueries
from tests.support.control import SetClock
from tests.support.rows import count_rows

P = "p"


class Items:
    """Makes items, of two kinds in turn."""

    def __init__(self) -> None:
        self._clock = SetClock()
        self._ids = IdSource(self._clock)

    def some(self, count: int) -> list[Item]:
        """New ones."""
        return [self._one(number) for number in range(count)]

    def _one(self, number: int) -> Item:
        content: Content = Message(role=Role.USER, content=(Text(text=f"number {number}"),))
        if number % 2:
            content = FunctionCall(call_id="call", name="f", arguments="{}")
        prefix = ITEM_PREFIXES[type(content)]
        return Item(
            id=self._ids.new(prefix),
            status=ItemStatus.COMPLETED,
            created_at=self._clock(),
            content=content,
        )


async def appended(database: Database, timeline: str, items: Sequence[Item]) -> None:
    """Keep items."""
    await database.transactions.write(lambda tx: TimelineQueries(tx).append(P, timeline, items))


def expected(items: Sequence[Item], window: Window, ids: Sequence[str]) -> list[Item]:
    """The window of a plain list; `ids` are all that there ever were, in order."""
    listed = list(reversed(items)) if window.newest_first else list(items)
    places = {item_id: place for place, item_id in enumerate(ids)}
    sign = -1 if window.newest_first else 1
    if window.after:
        after = sign * places[window.after]
        return [item for item in listed if sign * places[item.id] > after][: window.limit]
    if window.before:
        before = sign * places[window.before]
        return [item for item in listed if sign * places[item.id] < before][-window.limit :]
    return listed[: window.limit]


async def test_every_window_is_that_of_a_plain_list(database: Database) -> None:
    """From each cursor, also of an item that is gone, in both directions and orders."""
    items = Items().some(7)
    ids = [item.id for item in items]
    await appended(database, "thread_1", items)
    await appended(database, "thread_2", Items().some(3))
    gone = [items[0], items[3], items[6]]

    async def take_out(tx: Transaction) -> None:
        for item in gone:
            assert await TimelineQueries(tx).remove(P, "thread_1", item.id)

    await database.transactions.write(take_out)
    left = [item for item in items if item not in gone]

    async def pages(tx: Transaction) -> None:
        for newest_first, limit, cursor, is_after in product(
            (True, False), (1, 2, 9), ("", *ids), (True, False)
        ):
            window = Window(
                limit, cursor if is_after else "", newest_first, "" if is_after else cursor
            )
            found = await TimelineQueries(tx).page(P, "thread_1", window)
            assert [placed.item for placed in found] == expected(left, window, ids), window

    await database.transactions.read(pages)


async def test_positions_go_on_over_what_was_taken_out(database: Database) -> None:
    """And a filter leaves them as they are."""
    items = Items().some(4)
    await appended(database, "thread_1", items)

    async def check(tx: Transaction) -> list[TimelineItem]:
        timelines = TimelineQueries(tx)
        await timelines.remove(P, "thread_1", items[1].id)
        await timelines.append(P, "thread_1", Items().some(1), "run_1")
        made = await timelines.read(P, "thread_1", 0, ItemFilter(origin="run_1"))
        assert [placed.position for placed in made] == [4]
        assert await timelines.position_from_end(P, "thread_1", 2, ItemFilter(("message",))) == 2
        assert await timelines.position_from_end(P, "thread_1", 9) == 0
        return await timelines.read(P, "thread_1", 2)

    placed = await database.transactions.write(check)
    assert [each.position for each in placed] == [2, 3, 4]


async def test_an_item_lives_as_long_as_a_timeline_has_it(database: Database) -> None:
    """Its last timeline takes it along; another project's never sees it."""
    items = Items().some(2)
    await appended(database, "thread_1", items)

    async def share(tx: Transaction) -> None:
        timelines = TimelineQueries(tx)
        await timelines.link(P, "conv_1", items)
        assert await timelines.delete(P, "thread_1") == 2
        assert await timelines.get("q", "conv_1", items[0].id) is None
        found = await timelines.get(P, "conv_1", items[0].id)
        assert found is not None
        assert found.item == items[0]

    await database.transactions.write(share)
    assert await count_rows(database, ItemRow) == 2

    await database.transactions.write(lambda tx: TimelineQueries(tx).delete(P, "conv_1"))
    assert await count_rows(database, ItemRow) == 0


async def test_timelines_that_are_dropped_at_once_leave_no_item(database: Database) -> None:
    """Each finds the other's items still placed; whoever ends last takes them along."""
    items = Items().some(2)
    await appended(database, "thread_1", items)
    await database.transactions.write(lambda tx: TimelineQueries(tx).link(P, "conv_1", items))
    others: list[asyncio.Task[int]] = []

    async def drop_beside_another(tx: Transaction) -> None:
        await TimelineQueries(tx).delete(P, "thread_1")
        other = database.transactions.write(lambda tx: TimelineQueries(tx).delete(P, "conv_1"))
        others.append(asyncio.ensure_future(other))
        # It may not end before this one has: so it is waited for in vain.
        await asyncio.wait(others, timeout=0.1)

    await database.transactions.write(drop_beside_another)
    await asyncio.gather(*others)

    assert await count_rows(database, ItemRow) == 0


async def test_an_item_is_kept_as_it_was_written(database: Database) -> None:
    """Also what it became later."""
    item = Items().some(1)[0]
    await appended(database, "thread_1", [item])
    ended = item.with_content(
        Message(role=Role.ASSISTANT, content=(Text(text="\x00 é 你"),)), ItemStatus.INCOMPLETE
    )

    await database.transactions.write(lambda tx: TimelineQueries(tx).update(P, ended))

    found = await database.transactions.read(
        lambda tx: TimelineQueries(tx).get(P, "thread_1", item.id)
    )
    assert found == TimelineItem(0, ended)
