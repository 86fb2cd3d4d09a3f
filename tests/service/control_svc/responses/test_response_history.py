"""The history of a response: chains of responses, and conversations."""

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from corral.control.v1 import item_pb2

from control_svc.base.ids import RESPONSE, IdSource
from control_svc.db.transaction import Transaction
from control_svc.inference.generation_options import NO_OPTIONS
from control_svc.items.model import Item, ItemStatus, Message, Role, Text
from control_svc.items.queries import ItemRow, TimelineItemRow, TimelineQueries
from control_svc.responses.context import read_history
from control_svc.responses.model import Response, ResponseSettings, ResponseState
from control_svc.responses.queries import ResponseQueries
from svc_kit.errors import (
    ConversationLocked,
    InvalidField,
    PreviousResponseNotFound,
    PreviousResponseUnfinished,
)
from tests.support.control import RunningControl, SetClock, run_control
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.conversation_client import get_item_text as item_text
from tests.support.jobs import open_test_database
from tests.support.response_client import ResponseClient, event_names, make_model_parts, output_text
from tests.support.rows import count_rows
from tests.support.scripted_turns import text_script
from tests.support.small_window import SmallWindow

P = "p"


# ---- chains


def make_response(response_id: str, previous_id: str, clock: SetClock) -> Response:
    return Response(
        id=response_id,
        state=ResponseState.COMPLETED,
        created_at=clock(),
        settings=ResponseSettings(),
        model="m",
        options=NO_OPTIONS,
        seed=1,
        previous_id=previous_id,
    )


def make_user_item(text: str, ids: IdSource, clock: SetClock) -> Item:
    return Item(
        id=ids.new("msg_"),
        status=ItemStatus.COMPLETED,
        created_at=clock(),
        content=Message(role=Role.USER, content=(Text(text=text),)),
    )


async def test_a_chain_of_responses_is_stored_as_one_row_each(
    tmp_path: Path, database_url: str | None
) -> None:
    """Its history is read with two statements: one for its size, one for its items."""
    clock, length = SetClock(), 1000
    ids, statements = IdSource(clock), list[str]()

    def record_statement(*call: Any) -> None:
        statements.append(call[2])

    async with open_test_database(tmp_path, database_url, clock) as database:
        response_ids = [ids.new(RESPONSE) for _ in range(length)]

        async def add(tx: Transaction) -> None:
            for previous, each in zip(["", *response_ids], response_ids, strict=False):
                await ResponseQueries(tx).add(make_response(each, previous, clock))
                await TimelineQueries(tx).append(each, [make_user_item(each, ids, clock)])

        await database.transactions.of(P).write(add)
        sa.event.listen(sa.Engine, "before_cursor_execute", record_statement)
        history = await database.transactions.of(P).read(
            lambda each: read_history(each, response_ids[-1])
        )
        sa.event.remove(sa.Engine, "before_cursor_execute", record_statement)
        reads = [statement for statement in statements if "SELECT" in statement.upper()]

        assert [
            item.content.text for item in history.items if isinstance(item.content, Message)
        ] == response_ids
        assert len(reads) == 2
        assert await count_rows(database, ItemRow) == length
        assert await count_rows(database, TimelineItemRow) == length


async def test_two_responses_can_follow_the_same_one(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The second prompt contains nothing of the first branch."""
    root = await client.create("root")
    await client.create("left", previous_response_id=root.id)
    await client.create("right", previous_response_id=root.id)

    assert model.prompt_text == "root | Fine | right"


async def test_a_chain_with_a_deleted_response_is_refused(client: ResponseClient) -> None:
    """The error names the deleted response."""
    first = await client.create("one")
    second = await client.create("two", previous_response_id=first.id)
    await client.delete(first.id)

    with pytest.raises(PreviousResponseNotFound) as error:
        await client.create("three", previous_response_id=second.id)
    assert error.value.response == first.id


async def test_a_running_response_cannot_be_the_previous_response(
    client: ResponseClient, model: SmallWindow
) -> None:
    gate = asyncio.Event()

    async def wait(_request: object, _number: int) -> None:
        await gate.wait()

    model.before_token = wait
    response = await client.create("one", background=True)
    with pytest.raises(PreviousResponseUnfinished):
        await client.create("two", previous_response_id=response.id)
    gate.set()


async def test_responses_expire_after_the_last_response_of_their_chain(
    running: RunningControl, client: ResponseClient
) -> None:
    """A response is kept while a later one that continues it is kept."""
    first = await client.create("one")
    running.clock.advance(days=29)
    second = await client.create("two", previous_response_id=first.id)
    running.clock.advance(days=2)
    await running.control.sweeper.sweep()
    assert (await client.get(first.id)).id == first.id
    running.clock.advance(days=30)
    await running.control.sweeper.sweep()
    for response in (first, second):
        with pytest.raises(PreviousResponseNotFound):
            await client.create("three", previous_response_id=response.id)


async def test_deleted_and_unstored_responses_leave_no_rows(
    tmp_path: Path, model: SmallWindow
) -> None:
    """Only job rows remain of a deleted response; requests with `store=False` write nothing."""
    async with run_control(tmp_path, model=make_model_parts(model)) as running:
        client = ResponseClient(running.client)
        kept = await client.create("kept")
        before = dump_rows(tmp_path)
        answer = await client.create("sesame", store=False, previous_response_id=kept.id)
        events = [each async for each in client.stream("sesame", store=False)]
        await client.count("sesame", store=False)
        await client.prepare("sesame", store=False)
        await client.compact("sesame")

        assert dump_rows(tmp_path) == before
        assert output_text(answer) == "Fine"
        assert event_names(events)[-1] == "completed"
        assert model.requests[0].messages == model.requests[1].messages[:1]
        deleted = await client.create("sesame")
        await client.delete(deleted.id)
        after = [line for line in dump_rows(tmp_path) if deleted.id in line or "sesame" in line]
        assert [line for line in after if 'INTO "jobs"' not in line] == []


def dump_rows(folder: Path) -> list[str]:
    """Return the rows of all tables as SQL statements."""
    (file,) = (folder / "control").glob("*.sqlite3")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        return sorted(connection.iterdump())


# ---- conversations


async def test_a_response_reads_and_extends_its_conversation(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """Input and output are appended once."""
    conversations = ConversationClient(running.client)
    conversation = await conversations.create()
    await client.create("one", conversation_id=conversation.id)
    await client.create("two", conversation_id=conversation.id)
    items = await conversations.items(conversation.id)

    assert model.prompt_text == "one | Fine | two"
    assert sorted(map(item_text, items)) == sorted(["one", "Fine", "two", "Fine"])


@pytest.mark.parametrize("kind", ["previous response", "conversation"])
async def test_a_response_without_new_input_has_a_turn_of_its_own(
    running: RunningControl, client: ResponseClient, model: SmallWindow, kind: str
) -> None:
    """It is not joined with the answer before it, since the model saw that as another turn."""
    model.script = text_script("Fine")
    if kind == "conversation":
        conversation = await ConversationClient(running.client).create()
        fields = {"conversation_id": conversation.id}
        await client.create("one", **fields)
    else:
        fields = {"previous_response_id": (await client.create("one")).id}
    model.script = text_script("More", reasoning="hm")
    second = await client.create(**fields)
    fields = fields if kind == "conversation" else {"previous_response_id": second.id}
    await client.create("two", **fields)

    assert [(str(each.role), each.reasoning) for each in model.requests[-1].messages] == [
        ("user", ""),
        ("assistant", ""),
        ("assistant", "hm"),
        ("user", ""),
    ]
    assert model.prompt_text == "one | Fine | More | two"


async def test_a_conversation_is_locked_while_a_response_runs(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """Cancelling the response unlocks it, and nothing of it is in the next prompt."""
    gate, conversations = asyncio.Event(), ConversationClient(running.client)

    async def wait(_request: object, _number: int) -> None:
        await gate.wait()

    model.before_token = wait
    conversation = await conversations.create()
    response = await client.create("one", conversation_id=conversation.id, background=True)
    with pytest.raises(ConversationLocked):
        await client.create("two", conversation_id=conversation.id)
    await client.cancel(response.id)
    gate.set()
    await client.create("three", conversation_id=conversation.id)

    assert model.prompt_text == "three"


async def test_a_new_response_reads_no_contents_of_earlier_items(
    tmp_path: Path, model: SmallWindow
) -> None:
    """Ids and calls suffice in transactions that write, of which SQLite has only one at a time."""
    readers, writers = set[int](), set[int]()

    def record(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        used = id(connection.connection.dbapi_connection)
        if re.search(r"(SELECT|,) items\.document", statement):
            readers.add(used)
        if statement.startswith("INSERT INTO responses"):
            writers.add(used)

    async with run_control(tmp_path, model=make_model_parts(model)) as running:
        client = ResponseClient(running.client)
        conversation = await ConversationClient(running.client).create(make_message("zero"))
        first = await client.create("one", conversation_id=conversation.id)
        sa.event.listen(sa.Engine, "before_cursor_execute", record)
        await client.create("two", conversation_id=conversation.id)
        await client.create("three", previous_response_id=first.id)
        sa.event.remove(sa.Engine, "before_cursor_execute", record)

    assert model.prompt_text == "zero | one | Fine | three"
    assert readers
    assert writers
    assert not readers & writers


async def test_an_input_item_already_in_the_conversation_is_refused(
    running: RunningControl, client: ResponseClient
) -> None:
    """The conversation is not locked afterwards."""
    conversations = ConversationClient(running.client)
    conversation = await conversations.create(make_message("one"))
    (item,) = await conversations.items(conversation.id)
    with pytest.raises(InvalidField) as error:
        await client.create(item_pb2.Item(id=item.id), conversation_id=conversation.id)
    await client.create("two", conversation_id=conversation.id)

    assert error.value.field == "input[0].id"
    assert len(await conversations.items(conversation.id)) == 3


async def test_deleting_a_response_keeps_its_items_in_the_conversation(
    running: RunningControl, client: ResponseClient
) -> None:
    """Its input and output items are still listed."""
    conversations = ConversationClient(running.client)
    conversation = await conversations.create()
    answer = await client.create("one", conversation_id=conversation.id)
    await client.delete(answer.id)

    assert len(await conversations.items(conversation.id)) == 2
