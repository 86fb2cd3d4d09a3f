"""SQL of assistants, threads and messages, on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from corral.control.v1 import item_pb2, message_pb2, thread_pb2
from corral.control.v1 import message_service_pb2 as message_pb
from corral.control.v1 import thread_service_pb2 as thread_pb

from control_svc.assistants.message_model import (
    Attachment,
    AttachmentTool,
    IncompleteReason,
    NewMessage,
    ThreadMessage,
    start_message,
)
from control_svc.assistants.messages import MessageAdder, Messages
from control_svc.assistants.model import (
    Assistant,
    AssistantSettings,
    Thread,
    ThreadSettings,
)
from control_svc.assistants.queries import (
    AssistantQueries,
    MessageQueries,
    MessageRow,
    ThreadQueries,
)
from control_svc.assistants.threads import Threads
from control_svc.base.ids import ASSISTANT, THREAD, IdSource
from control_svc.base.pagination import PageTokens, Window
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.inference.generation_options import GenerationOptions
from control_svc.items.model import FunctionCall, Image, Item, ItemStatus, Role, Text
from control_svc.items.queries import ItemRow, TimelineQueries
from control_svc.tools.model import (
    FileSearchTool,
    FormatKind,
    FunctionTool,
    ResponseFormat,
    ToolResources,
)
from svc_kit.errors import AssistantNotFound, MessageNotFound, ThreadBusy, ThreadNotFound
from tests.support.archives import NO_ARCHIVE
from tests.support.control import SetClock
from tests.support.jobs import open_test_database
from tests.support.rows import count_rows

P = "p"
CLOCK = SetClock()
IDS = IdSource(CLOCK)
FULL_SETTINGS = AssistantSettings(
    model="demo",
    name="Ada",
    description="two\nlines",
    instructions="Say \x00 nothing.",
    tools=(FunctionTool(name="f", parameters_json='{"b":1,"a":2}', strict=True), FileSearchTool()),
    resources=ToolResources(vector_store_ids=("vs_1",)),
    metadata={"k": "v"},
    options=GenerationOptions.from_bytes(b"\x58\x01"),
    format=ResponseFormat(kind=FormatKind.JSON_SCHEMA, name="n", schema_json="{}"),
    reasoning_effort="low",
)


@pytest.fixture
async def database(tmp_path: Path, database_url: str | None) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    async with open_test_database(tmp_path, database_url, CLOCK) as database:
        yield database


def make_thread() -> Thread:
    settings = ThreadSettings(metadata={"who": "me"})
    return Thread(id=IDS.new(THREAD), settings=settings, created_at=CLOCK())


def make_message(thread: Thread, text: str = "hello") -> ThreadMessage:
    """A user message with all optional fields."""
    new = NewMessage(
        role=Role.USER,
        content=(Text(text=text), Image(url="data:image/png;base64,AA==", detail="low")),
        attachments=(Attachment("file-1", (AttachmentTool.FILE_SEARCH,)), Attachment("file-2")),
        metadata={"n": "1"},
    )
    return new.make(IDS.new("msg_"), thread.id, CLOCK())


async def insert(database: Database, thread: Thread, *messages: ThreadMessage) -> None:
    async def add(tx: Transaction) -> None:
        await ThreadQueries(tx).add(thread)
        await MessageQueries(tx).add(messages)

    await database.transactions.of(P).write(add)


async def test_an_assistant_is_stored(database: Database) -> None:
    """Every setting is stored, also options, which are binary."""
    assistant = Assistant(id=IDS.new(ASSISTANT), settings=FULL_SETTINGS, created_at=CLOCK())
    changed = assistant.with_settings(replace(FULL_SETTINGS, name="", tools=()))

    async def work(tx: Transaction) -> Assistant:
        await AssistantQueries(tx).add(assistant)
        before = await AssistantQueries(tx).lock(assistant.id)
        await AssistantQueries(tx).update(changed)
        return before

    before = await database.transactions.of(P).write(work)
    after = await database.transactions.of(P).read(
        lambda tx: AssistantQueries(tx).get(assistant.id)
    )
    listed = await database.transactions.of(P).read(lambda tx: AssistantQueries(tx).page(Window(9)))
    await database.transactions.of(P).write(lambda tx: AssistantQueries(tx).delete(assistant.id))

    assert (before, after, listed) == (assistant, changed, [changed])
    with pytest.raises(AssistantNotFound):
        await database.transactions.of(P).read(lambda tx: AssistantQueries(tx).get(assistant.id))


async def test_a_thread_stores_its_active_run_and_cut(database: Database) -> None:
    """Besides its settings; other projects cannot read it."""
    thread = make_thread()
    await insert(database, thread)
    changed = replace(thread, active_run_id="run_1", cut=7)
    await database.transactions.of(P).write(lambda tx: ThreadQueries(tx).update(changed))
    stored = await database.transactions.of(P).read(lambda tx: ThreadQueries(tx).get(thread.id))

    assert stored == changed
    with pytest.raises(ThreadNotFound):
        await database.transactions.of("other").read(lambda tx: ThreadQueries(tx).get(thread.id))


async def test_messages_are_listed_without_other_items(database: Database) -> None:
    """All of a thread, or those that a run created."""
    thread = make_thread()
    question = make_message(thread)
    await insert(database, thread, question)
    answer = start_message(IDS.new("msg_"), thread.id, "run_1", "asst_1", CLOCK())
    call = Item(
        id=IDS.new("fc_"),
        status=ItemStatus.COMPLETED,
        created_at=CLOCK(),
        content=FunctionCall(call_id="call_1", name="f", arguments="{}"),
    )

    async def add(tx: Transaction) -> None:
        await TimelineQueries(tx).append(thread.id, [call], origin="run_1")
        await MessageQueries(tx).add([answer])

    await database.transactions.of(P).write(add)
    window = Window(9, newest_first=False)
    listed = await database.transactions.of(P).read(
        lambda tx: MessageQueries(tx).page(thread.id, window)
    )
    by_run = await database.transactions.of(P).read(
        lambda tx: MessageQueries(tx).created_by_run(thread.id, "run_1")
    )

    assert listed == [question, answer]
    assert by_run == [answer]


async def test_ended_messages_are_stored(database: Database) -> None:
    """A message in progress is completed, or becomes incomplete with a reason."""
    thread = make_thread()
    first, second = (
        start_message(IDS.new("msg_"), thread.id, "run_1", "asst_1", CLOCK()) for _ in range(2)
    )
    await insert(database, thread, first, second)
    later = CLOCK() + timedelta(seconds=5)
    completed = first.complete((Text(text="done"),), later)
    incomplete = second.mark_incomplete((Text(text="do"),), IncompleteReason.RUN_CANCELLED, later)

    async def end(tx: Transaction) -> None:
        await MessageQueries(tx).update(completed)
        await MessageQueries(tx).update(incomplete)

    await database.transactions.of(P).write(end)

    messages = await database.transactions.of(P).read(
        lambda tx: MessageQueries(tx).created_by_run(thread.id, "run_1")
    )
    assert messages == [completed, incomplete]


async def test_a_deleted_thread_leaves_nothing(database: Database) -> None:
    """Neither messages nor items; a message can also be deleted alone."""
    thread = make_thread()
    first, *others = [make_message(thread, str(number)) for number in range(3)]
    await insert(database, thread, first, *others)
    await database.transactions.of(P).write(
        lambda tx: MessageQueries(tx).delete(thread.id, first.id)
    )

    with pytest.raises(MessageNotFound):
        await database.transactions.of(P).read(
            lambda tx: MessageQueries(tx).get(thread.id, first.id)
        )
    window = Window(9, newest_first=False)
    assert others == await database.transactions.of(P).read(
        lambda tx: MessageQueries(tx).page(thread.id, window)
    )

    await database.transactions.of(P).write(lambda tx: ThreadQueries(tx).delete(thread.id))

    for table in (MessageRow, ItemRow):
        assert await count_rows(database, table) == 0


async def test_messages_cannot_change_while_a_run_is_active(database: Database) -> None:
    """Nor can the thread be deleted; its metadata can be updated. The error has OpenAI's text."""
    shared = database.transactions, IDS, PageTokens(b"key"), CLOCK
    adder = MessageAdder(IDS, CLOCK, None)
    threads, messages = Threads(*shared, adder, NO_ARCHIVE), Messages(*shared, adder)
    new = message_pb2.NewMessage(
        role=item_pb2.ITEM_ROLE_USER,
        parts=[item_pb2.ItemPart(text=item_pb2.TextPart(text="hi"))],
    )
    thread = await threads.create(P, thread_pb.CreateThreadRequest(messages=[new]))
    every = message_pb.ListMessagesRequest(thread_id=thread.id)
    one = thread_pb.DeleteThreadRequest(thread_id=thread.id)
    (message,) = (await messages.ListMessages(P, every)).items
    busy = replace(thread, active_run_id="run_1")
    await database.transactions.of(P).write(lambda tx: ThreadQueries(tx).update(busy))

    added = message_pb.CreateMessageRequest(thread_id=thread.id, message=new)
    with pytest.raises(ThreadBusy) as refused:
        await messages.CreateMessage(P, added)
    changed = message_pb2.Message(thread_id=thread.id, id=message.id, metadata={"a": "b"})
    removed = message_pb.DeleteMessageRequest(thread_id=thread.id, message_id=message.id)
    for forbidden in (
        messages.UpdateMessage(P, message_pb.UpdateMessageRequest(message=changed)),
        messages.DeleteMessage(P, removed),
        threads.delete(P, one),
    ):
        with pytest.raises(ThreadBusy):
            await forbidden
    tagged = thread_pb2.Thread(id=thread.id, metadata={"a": "b"})
    updated = await threads.update(P, thread_pb.UpdateThreadRequest(thread=tagged))

    assert refused.value.message == (
        f"Can't add messages to {thread.id} while a run run_1 is active."
    )
    assert (updated.active_run_id, updated.settings.metadata) == ("run_1", {"a": "b"})
    assert list((await messages.ListMessages(P, every)).items) == [message]

    await database.transactions.of(P).write(lambda tx: ThreadQueries(tx).update(thread))
    await threads.delete(P, one)
    with pytest.raises(ThreadNotFound):
        await messages.ListMessages(P, every)
