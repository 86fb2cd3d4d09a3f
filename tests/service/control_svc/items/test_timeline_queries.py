"""SQL of timelines, on both databases: pages compared with a Python list, and deletion of items."""

import asyncio
from collections.abc import Sequence
from itertools import product

from control_svc.base.ids import IdSource
from control_svc.base.pagination import Window
from control_svc.db.engine import Database
from control_svc.db.transaction import CrossProjectTransaction, Transaction
from control_svc.items.model import (
    INPUT_ITEMS,
    ITEM_PREFIXES,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemFilter,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Role,
    Text,
    TimelineItem,
)
from control_svc.items.queries import ItemRow, TimelineQueries
from control_svc.items.service import call_parts
from tests.support.control import SetClock
from tests.support.rows import count_rows

P = "p"
COMPLETED = ItemStatus.COMPLETED


def make_items(count: int) -> list[Item]:
    """New messages and function calls, alternating."""
    clock = SetClock()
    ids = IdSource(clock)
    items = []
    for number in range(count):
        content: Content = Message(role=Role.USER, content=(Text(text=f"number {number}"),))
        if number % 2:
            content = FunctionCall(call_id="call", name="f", arguments="{}")
        item_id = ids.new(ITEM_PREFIXES[type(content)])
        items.append(
            Item(id=item_id, status=ItemStatus.COMPLETED, created_at=clock(), content=content)
        )
    return items


async def append_new(database: Database, timeline: str, count: int) -> list[Item]:
    items = make_items(count)
    await database.transactions.of(P).write(lambda tx: TimelineQueries(tx).append(timeline, items))
    return items


def expected_page(items: Sequence[Item], window: Window, ids: Sequence[str]) -> list[Item]:
    """The window of a Python list. `ids` are the ids of all items, also removed ones, in order."""
    ordered = list(reversed(items)) if window.newest_first else list(items)
    sign = -1 if window.newest_first else 1
    positions = {item_id: sign * position for position, item_id in enumerate(ids)}
    if window.after:
        after = positions[window.after]
        return [item for item in ordered if positions[item.id] > after][: window.limit]
    if window.before:
        before = positions[window.before]
        return [item for item in ordered if positions[item.id] < before][-window.limit :]
    return ordered[: window.limit]


async def test_every_page_equals_that_of_a_list(database: Database) -> None:
    """From each cursor, also of a removed item, in both directions and orders."""
    items = await append_new(database, "thread_1", 7)
    ids = [item.id for item in items]
    await append_new(database, "thread_2", 3)
    removed = [items[0], items[3], items[6]]

    async def remove(tx: Transaction) -> None:
        for item in removed:
            assert await TimelineQueries(tx).remove("thread_1", item.id)

    await database.transactions.of(P).write(remove)
    remaining = [item for item in items if item not in removed]

    async def check_pages(tx: Transaction) -> None:
        for newest_first, limit, cursor, is_after in product(
            (True, False), (1, 2, 9), ("", *ids), (True, False)
        ):
            window = Window(
                limit, cursor if is_after else "", newest_first, "" if is_after else cursor
            )
            page = await TimelineQueries(tx).page("thread_1", window)
            expected = expected_page(remaining, window, ids)
            assert [entry.item for entry in page] == expected, window

    await database.transactions.of(P).read(check_pages)


async def test_positions_of_removed_items_are_not_reused(database: Database) -> None:
    """Filters do not change positions."""
    items = await append_new(database, "thread_1", 4)

    async def check(tx: Transaction) -> list[TimelineItem]:
        timelines = TimelineQueries(tx)
        await timelines.remove("thread_1", items[1].id)
        await timelines.append("thread_1", make_items(1), "run_1")
        created = await timelines.read("thread_1", 0, ItemFilter(origin="run_1"))
        assert [entry.position for entry in created] == [4]
        assert await timelines.position_from_end("thread_1", 2, ItemFilter(("message",))) == 2
        assert await timelines.position_from_end("thread_1", 9) == 0
        return await timelines.read("thread_1", 2)

    entries = await database.transactions.of(P).write(check)
    assert [entry.position for entry in entries] == [2, 3, 4]


async def test_what_pairs_items_is_read_without_their_contents(database: Database) -> None:
    contents: list[Content] = [
        Message(role=Role.USER, content=(Text(text="Hi"),)),
        FunctionCall(call_id="c1", name="f", arguments="{}"),
        FunctionCallOutput(call_id="c1", output=(Text(text="x"),)),
        CustomToolCall(call_id="c2", name="f", input="x"),
        CustomToolCallOutput(call_id="c2", output=()),
        McpApprovalRequest(server_label="s", name="n", arguments="{}"),
        McpApprovalResponse(approval_request_id="mcpr_1", approve=True),
        McpCall(server_label="s", name="n", arguments="{}", approval_request_id="mcpr_1"),
        McpCall(server_label="s", name="n", arguments="{}"),
    ]
    clock = SetClock()
    ids = IdSource(clock)
    items = [
        Item(
            id=ids.new(ITEM_PREFIXES[type(content)]),
            status=ItemStatus.INCOMPLETE if isinstance(content, FunctionCall) else COMPLETED,
            created_at=clock(),
            content=content,
        )
        for content in contents
    ]

    async def check(tx: Transaction) -> None:
        timelines = TimelineQueries(tx)
        assert await timelines.end("conv_1") == 0
        await timelines.append("resp_1", items[:5])
        await timelines.append("resp_1", items[5:], origin="resp_1")
        await timelines.link("conv_1", await timelines.refs("resp_1"))
        assert await timelines.end("conv_1") == len(items)
        assert [each.item for each in await timelines.read("conv_1")] == items
        assert await timelines.call_parts("conv_1") == call_parts(items)
        assert len(call_parts(items)) == len(items) - 1
        given = await timelines.refs("resp_1", INPUT_ITEMS)
        assert [each.id for each in given] == [item.id for item in items[:5]]

    await database.transactions.of(P).write(check)


async def test_an_item_is_deleted_with_its_last_timeline(database: Database) -> None:
    """It is invisible to other projects."""
    items = await append_new(database, "thread_1", 2)

    async def share(tx: CrossProjectTransaction) -> None:
        timelines = TimelineQueries(tx.of(P))
        await timelines.link("conv_1", items)
        assert await timelines.delete("thread_1") == 2
        assert await TimelineQueries(tx.of("q")).get("conv_1", items[0].id) is None
        assert await timelines.get("conv_1", items[0].id) == TimelineItem(0, items[0])

    await database.across_projects.write(share)
    assert await count_rows(database, ItemRow) == 2

    await database.transactions.of(P).write(lambda tx: TimelineQueries(tx).delete("conv_1"))
    assert await count_rows(database, ItemRow) == 0


async def test_timelines_deleted_concurrently_leave_no_items(database: Database) -> None:
    """The transaction that commits last deletes the shared items."""
    items = await append_new(database, "thread_1", 2)
    await database.transactions.of(P).write(lambda tx: TimelineQueries(tx).link("conv_1", items))
    others: list[asyncio.Task[int]] = []

    async def delete_concurrently(tx: Transaction) -> None:
        await TimelineQueries(tx).delete("thread_1")
        other = database.transactions.of(P).write(lambda tx: TimelineQueries(tx).delete("conv_1"))
        others.append(asyncio.ensure_future(other))
        # It cannot end before this transaction has, so the wait times out.
        await asyncio.wait(others, timeout=0.1)

    await database.transactions.of(P).write(delete_concurrently)
    await asyncio.gather(*others)

    assert await count_rows(database, ItemRow) == 0


async def test_an_updated_item_is_stored(database: Database) -> None:
    (item,) = await append_new(database, "thread_1", 1)
    changed = item.with_content(
        Message(role=Role.ASSISTANT, content=(Text(text="\x00 é 你"),)), ItemStatus.INCOMPLETE
    )

    await database.transactions.of(P).write(lambda tx: TimelineQueries(tx).update(changed))

    entry = await database.transactions.of(P).read(
        lambda tx: TimelineQueries(tx).get("thread_1", item.id)
    )
    assert entry == TimelineItem(0, changed)
