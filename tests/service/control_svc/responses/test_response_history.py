"""What responses go on from: chains and conversations."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import item_pb2
from sqlalchemy import Engine, event

from control_svc.base.ids import RESPONSE, IdSource
from control_svc.db.transaction import Transaction
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
from tests.support.small_window import SmallWindow

P = "p"


# ---- chains


def a_response(response_id: str, previous_id: str, clock: SetClock) -> Response:
    """A response that has ended."""
    return Response(
        id=response_id,
        state=ResponseState.COMPLETED,
        created_at=clock(),
        settings=ResponseSettings(),
        model="m",
        options=b"",
        seed=1,
        previous_id=previous_id,
    )


def said(text: str, ids: IdSource, clock: SetClock) -> Item:
    """What a user said."""
    return Item(
        id=ids.new("msg_"),
        status=ItemStatus.COMPLETED,
        created_at=clock(),
        content=Message(role=Role.USER, content=(Text(text=text),)),
    )


async def test_a_thousand_responses_are_a_thousand_rows(
    tmp_path: Path, database_url: str | None
) -> None:
    """Storage grows by what each adds; the past is measured, and read, by one statement each."""
    clock, length = SetClock(), 1000
    ids, statements = IdSource(clock), list[str]()

    def note(*call: Any) -> None:
        statements.append(call[2])

    async with open_test_database(tmp_path, database_url, clock) as database:
        made = [ids.new(RESPONSE) for _ in range(length)]

        async def add(tx: Transaction) -> None:
            for previous, each in zip(["", *made], made, strict=False):
                await ResponseQueries(tx).add(P, a_response(each, previous, clock))
                await TimelineQueries(tx).append(P, each, [said(each, ids, clock)])

        await database.transactions.write(add)
        event.listen(Engine, "before_cursor_execute", note)
        past = await database.transactions.read(lambda each: read_history(each, P, made[-1]))
        event.remove(Engine, "before_cursor_execute", note)
        reads = [statement for statement in statements if "SELECT" in statement.upper()]

        assert [
            item.content.text for item in past.items if isinstance(item.content, Message)
        ] == made
        assert len(reads) == 2
        assert await count_rows(database, ItemRow) == length
        assert await count_rows(database, TimelineItemRow) == length


async def test_two_responses_can_go_on_from_one(client: ResponseClient, model: SmallWindow) -> None:
    """Neither sees the other."""
    root = await client.create("root")
    await client.create("left", previous_response_id=root.id)
    await client.create("right", previous_response_id=root.id)

    assert model.prompt_text == "root | Fine | right"


async def test_a_broken_chain_is_refused(client: ResponseClient) -> None:
    """The one that is missing is named; the model does not silently forget."""
    first = await client.create("one")
    second = await client.create("two", previous_response_id=first.id)
    await client.delete(first.id)

    with pytest.raises(PreviousResponseNotFound) as refused:
        await client.create("three", previous_response_id=second.id)
    assert refused.value.response == first.id


async def test_what_has_not_ended_cannot_be_gone_on_from(
    client: ResponseClient, model: SmallWindow
) -> None:
    """What it will say is not known."""
    gate = asyncio.Event()

    async def wait(_request: object, _number: int) -> None:
        await gate.wait()

    model.before_token = wait
    begun = await client.create("one", background=True)
    with pytest.raises(PreviousResponseUnfinished):
        await client.create("two", previous_response_id=begun.id)
    gate.set()


async def test_old_responses_are_forgotten_once_none_goes_on_from_them(
    running: RunningControl, client: ResponseClient
) -> None:
    """With their items and events; a chain is kept as long as its end."""
    first = await client.create("one")
    running.clock.advance(days=29)
    second = await client.create("two", previous_response_id=first.id)
    running.clock.advance(days=2)
    await running.control.sweeper.sweep()
    assert (await client.get(first.id)).id == first.id
    running.clock.advance(days=30)
    await running.control.sweeper.sweep()
    for made in (first, second):
        with pytest.raises(PreviousResponseNotFound):
            await client.create("three", previous_response_id=made.id)


async def test_a_deleted_response_leaves_no_row(tmp_path: Path, model: SmallWindow) -> None:
    """Nor does one that is not stored, in any table."""
    async with run_control(tmp_path, model=make_model_parts(model)) as running:
        client = ResponseClient(running.client)
        kept = await client.create("kept")
        before = everything(tmp_path)
        answer = await client.create("sesame", store=False, previous_response_id=kept.id)
        told = [each async for each in client.stream("sesame", store=False)]
        await client.count("sesame", store=False)
        await client.prepare("sesame", store=False)
        await client.compact("sesame")

        assert everything(tmp_path) == before
        assert output_text(answer) == "Fine"
        assert event_names(told)[-1] == "completed"
        assert model.requests[0].messages == model.requests[1].messages[:1]
        gone = await client.create("sesame")
        await client.delete(gone.id)
        after = [line for line in everything(tmp_path) if gone.id in line or "sesame" in line]
        assert [line for line in after if 'INTO "jobs"' not in line] == []


def everything(folder: Path) -> list[str]:
    """All rows of all tables."""
    (file,) = (folder / "control").glob("*.sqlite3")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        return sorted(connection.iterdump())


# ---- conversations


async def test_a_conversation_is_read_and_added_to(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """Its items come first; input and output are appended once, in order."""
    conversations = ConversationClient(running.client)
    made = await conversations.create()
    await client.create("one", conversation_id=made.id)
    await client.create("two", conversation_id=made.id)
    items = await conversations.items(made.id)

    assert model.prompt_text == "one | Fine | two"
    assert sorted(map(item_text, items)) == sorted(["one", "Fine", "two", "Fine"])


async def test_a_conversation_has_one_writer(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """A second response is refused until the first has ended, also by being cancelled."""
    gate, conversations = asyncio.Event(), ConversationClient(running.client)

    async def wait(_request: object, _number: int) -> None:
        await gate.wait()

    model.before_token = wait
    made = await conversations.create()
    begun = await client.create("one", conversation_id=made.id, background=True)
    with pytest.raises(ConversationLocked):
        await client.create("two", conversation_id=made.id)
    await client.cancel(begun.id)
    gate.set()
    await client.create("three", conversation_id=made.id)

    assert model.prompt_text == "three"


async def test_an_item_is_in_a_conversation_once(
    running: RunningControl, client: ResponseClient
) -> None:
    """An input that names one of its items is refused, and the conversation stays free."""
    conversations = ConversationClient(running.client)
    made = await conversations.create(make_message("one"))
    (item,) = await conversations.items(made.id)
    with pytest.raises(InvalidField) as refused:
        await client.create(item_pb2.Item(id=item.id), conversation_id=made.id)
    await client.create("two", conversation_id=made.id)

    assert refused.value.field == "input[0].id"
    assert len(await conversations.items(made.id)) == 3


async def test_a_deleted_response_stays_in_its_conversation(
    running: RunningControl, client: ResponseClient
) -> None:
    """What was said belongs to the conversation by then."""
    conversations = ConversationClient(running.client)
    made = await conversations.create()
    answer = await client.create("one", conversation_id=made.id)
    await client.delete(answer.id)

    assert len(await conversations.items(made.id)) == 2
