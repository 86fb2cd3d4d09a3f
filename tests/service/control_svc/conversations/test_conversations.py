"""Conversations over gRPC, on both databases."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from corral.control.v1 import conversation_service_pb2 as pb
from corral.control.v1 import item_pb2, listing_pb2, response_pb2

from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageTokens
from control_svc.conversations.model import Conversation
from control_svc.conversations.queries import ConversationQueries, ConversationRow
from control_svc.conversations.service import Conversations
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.items.queries import ItemRow, TimelineItemRow
from svc_kit import errors
from tests.support.archives import NO_ARCHIVE
from tests.support.control import RunningControl, SetClock
from tests.support.conversation_client import ConversationClient, get_item_text, make_message
from tests.support.rows import count_rows

OLDEST_FIRST = listing_pb2.LIST_ORDER_OLDEST_FIRST
IMAGE_URLS = response_pb2.RESPONSE_INCLUDE_INPUT_IMAGE_URLS
UNKNOWN = "conv_" + "0" * 32
P = "p"


@pytest.fixture
def usecases(database: Database) -> Conversations:
    """The operations, on a database that the test can query."""
    clock = SetClock()
    return Conversations(
        database.transactions, IdSource(clock), PageTokens(b"key"), clock, NO_ARCHIVE
    )


async def create(usecases: Conversations, *items: item_pb2.Item) -> Conversation:
    return await usecases.create(P, pb.CreateConversationRequest(items=items))


async def add(usecases: Conversations, conversation_id: str, item: item_pb2.Item) -> None:
    request = pb.CreateConversationItemsRequest(conversation_id=conversation_id, items=[item])
    await usecases.CreateConversationItems(P, request)


async def remove(usecases: Conversations, conversation_id: str, item_id: str) -> None:
    request = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
    await usecases.DeleteConversationItem(P, request)


async def update_row(
    database: Database, conversation_id: str, edit: Callable[[Conversation], Conversation]
) -> None:
    async def update(tx: Transaction) -> None:
        conversation = await ConversationQueries(tx).lock(conversation_id)
        await ConversationQueries(tx).update(edit(conversation))

    await database.transactions.of(P).write(update)


@pytest.fixture
def conversations(running: RunningControl) -> ConversationClient:
    return ConversationClient(running.client)


async def test_a_conversation_keeps_its_items_in_order(conversations: ConversationClient) -> None:
    """The items of its creation come first; lists are newest first by default."""
    created = await conversations.create(
        make_message("one"), make_message("two"), metadata={"a": "b"}
    )
    added = await conversations.add(created.id, make_message("three"))

    items = await conversations.items(created.id, order=OLDEST_FIRST)

    assert [get_item_text(item) for item in items] == ["one", "two", "three"]
    assert items[-1:] == added
    assert items == list(reversed(await conversations.items(created.id)))
    assert await conversations.item(created.id, items[0].id) == items[0]
    assert await conversations.get(created.id) == created


async def test_conversations_are_listed_newest_first(conversations: ConversationClient) -> None:
    """By pages, and by the cursors of OpenAI's lists; only those of the project."""
    ids = [(await conversations.create(metadata={"n": str(n)})).id for n in range(3)]
    method = conversations.stub.ListConversations
    first = await conversations.client.call(method, pb.ListConversationsRequest(page_size=2))
    token = first.next_page_token
    rest = await conversations.client.call(method, pb.ListConversationsRequest(page_token=token))
    later = await conversations.client.call(
        method, pb.ListConversationsRequest(after=ids[0], order=OLDEST_FIRST)
    )

    assert [each.id for page in (first, rest) for each in page.conversations] == ids[::-1]
    assert [dict(each.metadata) for each in later.conversations] == [{"n": "1"}, {"n": "2"}]
    with pytest.raises(errors.InvalidField, match="after"):
        await conversations.client.call(method, pb.ListConversationsRequest(after="item_1"))


async def test_pages_continue_after_a_removed_item(conversations: ConversationClient) -> None:
    """A removed cursor item still marks a position."""
    created = await conversations.create(*[make_message(str(number)) for number in range(7)])
    first = await conversations.page(created.id, page_size=3)
    await conversations.remove(created.id, first.items[-1].id)

    second = await conversations.items(created.id, page_token=first.next_page_token, page_size=3)
    by_cursor = await conversations.items(created.id, after=first.items[-1].id, page_size=3)

    assert [get_item_text(item) for item in second] == ["3", "2", "1"]
    assert by_cursor == second


async def test_metadata_are_replaced(conversations: ConversationClient) -> None:
    """An update removes the old keys."""
    created = await conversations.create(metadata={"a": "1", "b": "2"})

    changed = await conversations.update(created.id, {"b": "3"})

    assert dict(changed.metadata) == {"b": "3"}
    assert await conversations.get(created.id) == changed


async def test_an_item_is_shared_by_its_id(conversations: ConversationClient) -> None:
    """It is deleted with the last conversation that contains it."""
    first = await conversations.create(make_message("shared"))
    (item,) = await conversations.items(first.id)
    second = await conversations.create(
        make_message("before"), item_pb2.Item(id=item.id), make_message("after")
    )

    await conversations.delete(first.id)

    remaining = await conversations.items(second.id, order=OLDEST_FIRST)
    assert [get_item_text(each) for each in remaining] == ["before", "shared", "after"]
    assert remaining[1] == item
    with pytest.raises(errors.InvalidField, match="already in the conversation"):
        await conversations.add(second.id, item_pb2.Item(id=item.id))


async def test_a_deleted_conversation_leaves_nothing(
    database: Database, usecases: Conversations
) -> None:
    """No row of the conversation, its items or its timeline."""
    created = await create(usecases, make_message("one"), make_message("two"))
    every = pb.ListConversationItemsRequest(conversation_id=created.id)
    page = await usecases.ListConversationItems(
        P, pb.ListConversationItemsRequest(conversation_id=created.id, page_size=1)
    )
    await remove(usecases, created.id, page.items[0].id)

    await usecases.delete(P, pb.DeleteConversationRequest(conversation_id=created.id))

    for table in (ConversationRow, ItemRow, TimelineItemRow):
        assert await count_rows(database, table) == 0
    for read in (
        usecases.get(P, pb.GetConversationRequest(conversation_id=created.id)),
        usecases.ListConversationItems(P, every),
    ):
        with pytest.raises(errors.ConversationNotFound):
            await read


async def test_image_urls_are_returned_only_if_included(
    conversations: ConversationClient,
) -> None:
    """In lists and in single items."""
    picture = "data:image/png;base64,AAAA"
    created = await conversations.create(make_message("look", url=picture))

    (item,) = await conversations.items(created.id)
    (with_urls,) = await conversations.items(created.id, include=[IMAGE_URLS])

    assert item.message.parts[1].image.url == ""
    assert with_urls.message.parts[1].image.url == picture
    assert await conversations.item(created.id, item.id, include=[IMAGE_URLS]) == with_urls


async def test_items_cannot_change_during_a_response(
    database: Database, usecases: Conversations
) -> None:
    """They can be read, and the metadata can be updated."""
    created = await create(usecases, make_message("x"))
    every = pb.ListConversationItemsRequest(conversation_id=created.id)
    (item,) = (await usecases.ListConversationItems(P, every)).items
    await update_row(database, created.id, lambda row: row.claimed_by("resp_1"))

    for refused in (
        add(usecases, created.id, make_message("y")),
        remove(usecases, created.id, item.id),
        usecases.delete(P, pb.DeleteConversationRequest(conversation_id=created.id)),
        update_row(database, created.id, lambda row: row.claimed_by("resp_2")),
    ):
        with pytest.raises(errors.ConversationLocked, match="resp_1"):
            await refused
    await usecases.update(
        P, pb.UpdateConversationRequest(conversation_id=created.id, metadata={"a": "b"})
    )
    await update_row(database, created.id, lambda row: row.released_by("resp_2"))
    assert (
        await usecases.get(P, pb.GetConversationRequest(conversation_id=created.id))
    ).writer == "resp_1"

    await update_row(database, created.id, lambda row: row.released_by("resp_1"))

    await remove(usecases, created.id, item.id)


async def test_invalid_requests_are_refused(conversations: ConversationClient) -> None:
    """Errors name the field, and nothing is created."""
    created = await conversations.create()
    unknown_file = make_message("x", file_id="file-" + "0" * 32)
    two_sources = make_message("x", file_id="file-1", url="data:,")
    for call, error, field in (
        (
            conversations.add(UNKNOWN, make_message("x")),
            errors.ConversationNotFound,
            "conversation_id",
        ),
        (conversations.item(created.id, "msg_no"), errors.ItemNotFound, "item_id"),
        (
            conversations.create(make_message("x"), item_pb2.Item(id="msg_no")),
            errors.ItemNotFound,
            "items[1].id",
        ),
        (conversations.create(unknown_file), errors.FileNotFound, "items[0].content[1].file_id"),
        (conversations.create(two_sources), errors.InvalidField, "items[0].content[1]"),
        (conversations.create(*[make_message("x")] * 21), errors.TooLong, "items"),
        (conversations.add(created.id), errors.MissingField, "items"),
        (conversations.items(created.id, after="nonsense"), errors.InvalidField, "after"),
    ):
        with pytest.raises(error) as refused:
            await call
        assert vars(refused.value)["field"] == field

    assert await conversations.items(created.id) == []


def call(call_id: str) -> item_pb2.Item:
    return item_pb2.Item(
        function_call=item_pb2.FunctionCallItem(call_id=call_id, name="f", arguments_json="{}")
    )


def output(call_id: str) -> item_pb2.Item:
    parts = [item_pb2.ItemPart(text=item_pb2.TextPart(text="SECRET"))]
    return item_pb2.Item(
        function_call_output=item_pb2.ToolOutputItem(call_id=call_id, output=parts)
    )


async def test_outputs_are_paired_with_calls_whatever_their_ids(usecases: Conversations) -> None:
    """Also such that JSON escapes, or that are JSON themselves."""
    conversation = await create(usecases)
    ids = ["x", '"', "\\u0000", "1", "null", "é"]
    for call_id in ids:
        await add(usecases, conversation.id, call(call_id))
    for call_id in ids:
        with pytest.raises(errors.InvalidField, match="two function calls"):
            await add(usecases, conversation.id, call(call_id))
        await add(usecases, conversation.id, output(call_id))
        with pytest.raises(errors.ToolCallMissing):
            await add(usecases, conversation.id, output(call_id))


async def test_appended_items_do_not_read_those_before(usecases: Conversations) -> None:
    """A message reads none, an output no documents: an agent would read all with each item."""
    conversation = await create(usecases, call("x"), output("x"), call("y"))
    documents: list[str] = []
    num_rows: list[int] = []

    def record(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT") and "timeline_items" in statement:
            rows = list(cursor._rows)
            num_rows.append(len(rows))
            documents.extend(str(row) for row in rows if "SECRET" in str(row))

    sa.event.listen(sa.Engine, "after_cursor_execute", record)
    try:
        for item in (make_message("Hi"), output("y")):
            await add(usecases, conversation.id, item)
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", record)

    assert documents == []
    assert num_rows == [1, 3, 1]
