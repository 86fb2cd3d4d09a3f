"""Conversations over gRPC, on both databases."""

from collections.abc import Callable

import pytest
from corral.control.v1 import item_pb2, listing_pb2, response_pb2

from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageRequest, PageTokens
from control_svc.conversations.model import Conversation, NewConversation, NewItems
from control_svc.conversations.queries import ConversationQueries, ConversationRow
from control_svc.conversations.service import Conversations
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.items.input_items import InputItem
from control_svc.items.model import Message, Role, Text
from control_svc.items.queries import ItemRow, TimelineItemRow
from svc_kit.errors import (
    ConversationLocked,
    ConversationNotFound,
    FileNotFound,
    InvalidField,
    ItemNotFound,
    MissingField,
    RequestIdReused,
    TooLong,
)
from tests.support.archives import NO_ARCHIVE
from tests.support.control import RunningControl, SetClock
from tests.support.conversation_client import ConversationClient, a_message, text_of
from tests.support.rows import count_rows

OLDEST_FIRST = listing_pb2.LIST_ORDER_OLDEST_FIRST
IMAGE_URLS = response_pb2.RESPONSE_INCLUDE_INPUT_IMAGE_URLS
UNKNOWN = "conv_" + "0" * 32
P = "p"


@pytest.fixture
def usecases(database: Database) -> Conversations:
    """What the service does, over a database that a test can look into."""
    clock = SetClock()
    return Conversations(
        database.transactions, IdSource(clock), PageTokens(b"key"), clock, NO_ARCHIVE
    )


def said(text: str) -> InputItem:
    """A message of a user."""
    return InputItem(content=Message(role=Role.USER, content=(Text(text=text),)))


async def change(
    database: Database, conversation_id: str, how: Callable[[Conversation], Conversation]
) -> None:
    """Change a conversation as a response does."""

    async def work(tx: Transaction) -> None:
        found = await ConversationQueries(tx).lock(P, conversation_id)
        await ConversationQueries(tx).update(P, how(found))

    await database.transactions.write(work)


@pytest.fixture
def conversations(running: RunningControl) -> ConversationClient:
    """A caller."""
    return ConversationClient(running.client)


async def test_a_conversation_keeps_its_items_in_order(conversations: ConversationClient) -> None:
    """Those of its creation first; the list begins with the last unless asked otherwise."""
    made = await conversations.create(a_message("one"), a_message("two"), metadata={"a": "b"})
    added = await conversations.add(made.id, a_message("three"))

    found = await conversations.items(made.id, order=OLDEST_FIRST)

    assert [text_of(item) for item in found] == ["one", "two", "three"]
    assert found[-1:] == added
    assert found == list(reversed(await conversations.items(made.id)))
    assert await conversations.item(made.id, found[0].id) == found[0]
    assert await conversations.get(made.id) == made


async def test_pages_go_on_after_an_item_that_is_gone(conversations: ConversationClient) -> None:
    """A cursor that was taken out since still says where the next page begins."""
    made = await conversations.create(*[a_message(str(number)) for number in range(7)])
    first = await conversations.page(made.id, page_size=3)
    await conversations.remove(made.id, first.items[-1].id)

    second = await conversations.items(made.id, page_token=first.next_page_token, page_size=3)
    by_cursor = await conversations.items(made.id, after=first.items[-1].id, page_size=3)

    assert [text_of(item) for item in second] == ["3", "2", "1"]
    assert by_cursor == second


async def test_metadata_take_the_place_of_those_before(conversations: ConversationClient) -> None:
    """An update leaves nothing of the old ones."""
    made = await conversations.create(metadata={"a": "1", "b": "2"})

    changed = await conversations.update(made.id, {"b": "3"})

    assert dict(changed.metadata) == {"b": "3"}
    assert await conversations.get(made.id) == changed


async def test_an_item_is_shared_by_its_id(conversations: ConversationClient) -> None:
    """It is the same item in both, and stays while one of them has it."""
    first = await conversations.create(a_message("shared"))
    (item,) = await conversations.items(first.id)
    second = await conversations.create(
        a_message("before"), item_pb2.Item(id=item.id), a_message("after")
    )

    await conversations.delete(first.id)

    left = await conversations.items(second.id, order=OLDEST_FIRST)
    assert [text_of(each) for each in left] == ["before", "shared", "after"]
    assert left[1] == item
    with pytest.raises(InvalidField, match="already in the conversation"):
        await conversations.add(second.id, item_pb2.Item(id=item.id))


async def test_a_deleted_conversation_leaves_nothing(
    database: Database, usecases: Conversations
) -> None:
    """No row of it, of its items or of their places."""
    made = await usecases.create(P, NewConversation(items=(said("one"), said("two"))))
    found = await usecases.items(P, made.id, PageRequest(size=1))
    await usecases.remove_item(P, made.id, found.items[0].id)

    await usecases.delete(P, made.id)

    for table in (ConversationRow, ItemRow, TimelineItemRow):
        assert await count_rows(database, table) == 0
    with pytest.raises(ConversationNotFound):
        await usecases.get(P, made.id)
    with pytest.raises(ConversationNotFound):
        await usecases.items(P, made.id, PageRequest())


async def test_what_is_large_is_shown_only_where_asked_for(
    conversations: ConversationClient,
) -> None:
    """The URL of an image is left out of lists and of single items alike."""
    picture = "data:image/png;base64,AAAA"
    made = await conversations.create(a_message("look", url=picture))

    (item,) = await conversations.items(made.id)
    (whole,) = await conversations.items(made.id, include=[IMAGE_URLS])

    assert item.message.parts[1].image.url == ""
    assert whole.message.parts[1].image.url == picture
    assert await conversations.item(made.id, item.id, include=[IMAGE_URLS]) == whole


async def test_a_request_with_an_id_is_carried_out_once(
    conversations: ConversationClient,
) -> None:
    """Sent again, it gives what the first gave; saying something else, it is refused."""
    made = await conversations.create(a_message("x"), request_id="r")
    assert await conversations.create(a_message("x"), request_id="r") == made

    added = await conversations.add(made.id, a_message("y"), a_message("z"), request_id="r")
    await conversations.add(made.id, a_message("later"))
    again = await conversations.add(made.id, a_message("y"), a_message("z"), request_id="r")

    assert again == added
    assert len(await conversations.items(made.id)) == 4
    with pytest.raises(RequestIdReused):
        await conversations.add(made.id, a_message("other"), request_id="r")


async def test_while_a_response_writes_nobody_else_does(
    database: Database, usecases: Conversations
) -> None:
    """Items stay as they are until it has ended; reading goes on, and so does what is attached."""
    made = await usecases.create(P, NewConversation(items=(said("x"),)))
    (item,) = (await usecases.items(P, made.id, PageRequest())).items
    await change(database, made.id, lambda found: found.claimed_by("resp_1"))

    for refused in (
        usecases.add_items(P, NewItems(conversation_id=made.id, items=(said("y"),))),
        usecases.remove_item(P, made.id, item.id),
        usecases.delete(P, made.id),
        change(database, made.id, lambda found: found.claimed_by("resp_2")),
    ):
        with pytest.raises(ConversationLocked, match="resp_1"):
            await refused
    await usecases.update(P, made.id, {"a": "b"})
    await change(database, made.id, lambda found: found.released_by("resp_2"))
    assert (await usecases.get(P, made.id)).writer == "resp_1"

    await change(database, made.id, lambda found: found.released_by("resp_1"))

    await usecases.remove_item(P, made.id, item.id)


async def test_what_is_wrong_is_named(conversations: ConversationClient) -> None:
    """Each refusal says which field, and nothing is made."""
    made = await conversations.create()
    with pytest.raises(ConversationNotFound):
        await conversations.add(UNKNOWN, a_message("x"))
    with pytest.raises(ItemNotFound, match="msg_no"):
        await conversations.item(made.id, "msg_no")
    with pytest.raises(ItemNotFound, match="msg_no") as no_item:
        await conversations.create(a_message("x"), item_pb2.Item(id="msg_no"))
    with pytest.raises(FileNotFound) as no_file:
        await conversations.create(a_message("x", file_id="file-" + "0" * 32))
    with pytest.raises(InvalidField):
        await conversations.create(a_message("x", file_id="file-1", url="data:,"))
    with pytest.raises(TooLong):
        await conversations.create(*[a_message("x")] * 21)
    with pytest.raises(MissingField):
        await conversations.add(made.id)
    with pytest.raises(InvalidField):
        await conversations.items(made.id, after="nonsense")

    assert no_item.value.field == "items[1].id"
    assert no_file.value.field == "items[0].content"
    assert await conversations.items(made.id) == []
