"""Assistants, threads and messages in their tables, on both databases."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from control_svc.assistants.message_model import (
    AddedMessage,
    Attachment,
    AttachmentTool,
    IncompleteReason,
    NewMessage,
    ThreadMessage,
    started_message,
)
from control_svc.assistants.messages import Messages
from control_svc.assistants.model import (
    Assistant,
    AssistantSettings,
    NewThread,
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
from control_svc.base.pagination import PageRequest, PageTokens, Window
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
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
from tests.support.jobs import a_database
from tests.support.rows import count_rows

P = "p"
CLOCK = SetClock()
IDS = IdSource(CLOCK)
EVERYTHING = AssistantSettings(
    model="demo",
    name="Ada",
    description="two\nlines",
    instructions="Say \x00 nothing.",
    tools=(FunctionTool(name="f", parameters_json='{"b":1,"a":2}', strict=True), FileSearchTool()),
    resources=ToolResources(vector_store_ids=("vs_1",)),
    metadata={"k": "v"},
    options=b"\x00\xff no text",
    format=ResponseFormat(kind=FormatKind.JSON_SCHEMA, name="n", schema_json="{}"),
    reasoning_effort="low",
)


@pytest.fixture
async def database(tmp_path: Path, database_url: str | None) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    async with a_database(tmp_path, database_url, CLOCK) as database:
        yield database


def a_thread() -> Thread:
    """A thread with metadata."""
    settings = ThreadSettings(metadata={"who": "me"})
    return Thread(id=IDS.new(THREAD), settings=settings, created_at=CLOCK())


def a_message(thread: Thread, text: str = "hello") -> ThreadMessage:
    """A caller's message with all that it can have."""
    new = NewMessage(
        role=Role.USER,
        content=(Text(text=text), Image(url="data:image/png;base64,AA==", detail="low")),
        attachments=(Attachment("file-1", (AttachmentTool.FILE_SEARCH,)), Attachment("file-2")),
        metadata={"n": "1"},
    )
    return new.make(IDS.new("msg_"), thread.id, CLOCK())


async def begun(database: Database, *messages: ThreadMessage, thread: Thread) -> None:
    """Keep a thread and its first messages."""

    async def add(tx: Transaction) -> None:
        await ThreadQueries(tx).add(P, thread)
        await MessageQueries(tx).add(P, messages)

    await database.transactions.write(add)


async def test_an_assistant_comes_back_as_it_was(database: Database) -> None:
    """Every setting of an assistant is kept, bytes that are no text among them."""
    assistant = Assistant(id=IDS.new(ASSISTANT), settings=EVERYTHING, created_at=CLOCK())
    changed = assistant.with_settings(replace(EVERYTHING, name="", tools=()))

    async def work(tx: Transaction) -> list[Assistant]:
        await AssistantQueries(tx).add(P, assistant)
        before = await AssistantQueries(tx).lock(P, assistant.id)
        await AssistantQueries(tx).update(P, changed)
        return [before]

    before = await database.transactions.write(work)
    after = await database.transactions.read(lambda tx: AssistantQueries(tx).get(P, assistant.id))
    listed = await database.transactions.read(lambda tx: AssistantQueries(tx).page(P, Window(9)))
    await database.transactions.write(lambda tx: AssistantQueries(tx).delete(P, assistant.id))

    assert before == [assistant]
    assert after == changed
    assert listed == [changed]
    with pytest.raises(AssistantNotFound):
        await database.transactions.read(lambda tx: AssistantQueries(tx).get(P, assistant.id))


async def test_a_threads_row_keeps_the_active_run_and_the_cut(database: Database) -> None:
    """What runs write on a thread's row is kept beside its settings."""
    thread = a_thread()
    await begun(database, thread=thread)
    locked = replace(thread, active_run_id="run_1", cut=7)
    await database.transactions.write(lambda tx: ThreadQueries(tx).update(P, locked))

    assert (
        await database.transactions.read(lambda tx: ThreadQueries(tx).get(P, thread.id)) == locked
    )
    with pytest.raises(ThreadNotFound):
        await database.transactions.read(lambda tx: ThreadQueries(tx).get("other", thread.id))


async def test_messages_are_the_view_of_a_timeline(database: Database) -> None:
    """Messages are listed without the items between them, and by the run that wrote them."""
    thread = a_thread()
    asked = a_message(thread)
    await begun(database, asked, thread=thread)
    answer = started_message(IDS.new("msg_"), thread.id, "run_1", "asst_1", CLOCK())
    call = Item(
        id=IDS.new("fc_"),
        status=ItemStatus.COMPLETED,
        created_at=CLOCK(),
        content=FunctionCall(call_id="call_1", name="f", arguments="{}"),
    )

    async def run(tx: Transaction) -> None:
        await TimelineQueries(tx).append(P, thread.id, [call], origin="run_1")
        await MessageQueries(tx).add(P, [answer])

    await database.transactions.write(run)
    window = Window(9, newest_first=False)
    listed = await database.transactions.read(
        lambda tx: MessageQueries(tx).page(P, thread.id, window)
    )
    by_run = await database.transactions.read(
        lambda tx: MessageQueries(tx).of_run(P, thread.id, "run_1")
    )

    assert listed == [asked, answer]
    assert by_run == [answer]


async def test_a_run_ends_its_message(database: Database) -> None:
    """A message in progress becomes whole, or is broken off with a reason."""
    thread = a_thread()
    first, second = (
        started_message(IDS.new("msg_"), thread.id, "run_1", "asst_1", CLOCK()) for _ in range(2)
    )
    await begun(database, first, second, thread=thread)
    later = CLOCK() + timedelta(seconds=5)
    whole = first.completed((Text(text="done"),), later)
    broken = second.broken_off((Text(text="do"),), IncompleteReason.RUN_CANCELLED, later)

    async def end(tx: Transaction) -> None:
        await MessageQueries(tx).update(P, whole)
        await MessageQueries(tx).update(P, broken)

    await database.transactions.write(end)

    of_run = await database.transactions.read(
        lambda tx: MessageQueries(tx).of_run(P, thread.id, "run_1")
    )
    assert of_run == [whole, broken]


async def test_nothing_is_left_of_a_deleted_thread(database: Database) -> None:
    """With a thread go its messages and their items; one message goes alone too."""
    thread = a_thread()
    messages = [a_message(thread, str(number)) for number in range(3)]
    await begun(database, *messages, thread=thread)
    gone, *stay = messages
    await database.transactions.write(lambda tx: MessageQueries(tx).delete(P, thread.id, gone.id))

    with pytest.raises(MessageNotFound):
        await database.transactions.read(lambda tx: MessageQueries(tx).get(P, thread.id, gone.id))
    window = Window(9, newest_first=False)
    assert stay == await database.transactions.read(
        lambda tx: MessageQueries(tx).page(P, thread.id, window)
    )

    await database.transactions.write(lambda tx: ThreadQueries(tx).delete(P, thread.id))

    assert await count_rows(database, MessageRow) == 0
    assert await count_rows(database, ItemRow) == 0


async def test_while_a_run_is_active_messages_stay_as_they_are(database: Database) -> None:
    """Adding, changing and deleting is refused in OpenAI's words, and so is the thread's end; its
    metadata are the owner's all the time."""
    shared = database.transactions, IDS, PageTokens(b"key"), CLOCK
    threads, messages = Threads(*shared, None, NO_ARCHIVE), Messages(*shared, None)
    new = NewMessage(role=Role.USER, content=(Text(text="hi"),))
    thread = await threads.create(P, NewThread(messages=(new,)))
    (message,) = (await messages.page(P, thread.id, PageRequest())).items
    busy = replace(thread, active_run_id="run_1")
    await database.transactions.write(lambda tx: ThreadQueries(tx).update(P, busy))

    with pytest.raises(ThreadBusy) as refused:
        await messages.create(P, AddedMessage(thread_id=thread.id, message=new))
    for forbidden in (
        messages.update(P, thread.id, message.id, {"a": "b"}),
        messages.delete(P, thread.id, message.id),
        threads.delete(P, thread.id),
    ):
        with pytest.raises(ThreadBusy):
            await forbidden
    renamed = await threads.update(P, thread.id, lambda it: replace(it, metadata={"a": "b"}), "")

    assert refused.value.message == (
        f"Can't add messages to {thread.id} while a run run_1 is active."
    )
    assert (renamed.active_run_id, renamed.settings.metadata) == ("run_1", {"a": "b"})
    assert list((await messages.page(P, thread.id, PageRequest())).items) == [message]

    await database.transactions.write(lambda tx: ThreadQueries(tx).update(P, thread))
    await threads.delete(P, thread.id)
    with pytest.raises(ThreadNotFound):
        await messages.page(P, thread.id, PageRequest())
