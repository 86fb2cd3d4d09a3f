"""What responses go on from: chains, conversations, summaries, and what callers keep themselves."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import item_pb2, response_pb2, tool_pb2
from sqlalchemy import Engine, event

from control_svc.domain.ids import RESPONSE, IdSource
from control_svc.domain.items import Item, ItemStatus, Message, Role, Text
from control_svc.domain.ports import Repositories
from control_svc.domain.responses import Response, ResponseSettings, ResponseState
from control_svc.domain.turns import TurnRequest
from control_svc.storage.models import ItemRow, TimelineItemRow
from control_svc.usecases import response_pasts
from control_svc.usecases.response_pasts import read_past
from svc_kit.errors import (
    ContextLengthExceeded,
    ConversationLocked,
    InvalidField,
    PreviousResponseNotFound,
    PreviousResponseUnfinished,
    SealInvalid,
    TooLong,
)
from tests.support.control import RunningControl, SetClock, a_control
from tests.support.conversation_client import ConversationClient, a_message
from tests.support.conversation_client import text_of as text_of_item
from tests.support.jobs import a_database
from tests.support.response_client import (
    ResponseClient,
    a_model,
    an_output,
    names,
    text_of,
    words_of,
)
from tests.support.rows import count_rows
from tests.support.scripted_turns import Script, ScriptedTurns, calls, says

AUTO = response_pb2.ResponseSettings.TRUNCATION_AUTO
SEALED = response_pb2.RESPONSE_INCLUDE_SEALED_REASONING
P = "p"


class Model(ScriptedTurns):
    """Says "Fine", and has a small window."""

    def __init__(self) -> None:
        self.script: Script = says("Fine")
        self.window = 40
        """Tokens, which are words."""
        super().__init__(self._choose)

    def _choose(self, request: object) -> Script:
        num_words = words_of(self.requests[-1])
        if num_words > self.window:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=num_words, context_tokens=self.window
            )
        return self.script

    @property
    def shown(self) -> str:
        """All texts of the last prompt."""
        parts = [part for message in self.requests[-1].messages for part in message.parts]
        return " | ".join(getattr(part, "text", "") for part in parts)


@pytest.fixture
def model() -> Model:
    """The model."""
    return Model()


@pytest.fixture
def client(running: RunningControl) -> ResponseClient:
    """A caller."""
    return ResponseClient(running.client)


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

    async with a_database(tmp_path, database_url, clock) as database:
        made = [ids.new(RESPONSE) for _ in range(length)]

        async def add(repositories: Repositories) -> None:
            for previous, each in zip(["", *made], made, strict=False):
                await repositories.responses.add(P, a_response(each, previous, clock))
                await repositories.timelines.append(P, each, [said(each, ids, clock)])

        await database.transactions.write(add)
        event.listen(Engine, "before_cursor_execute", note)
        past = await database.transactions.read(lambda each: read_past(each, P, made[-1]))
        event.remove(Engine, "before_cursor_execute", note)
        reads = [statement for statement in statements if "SELECT" in statement.upper()]

        assert [
            item.content.text for item in past.items if isinstance(item.content, Message)
        ] == made
        assert len(reads) == 2
        assert await count_rows(database, ItemRow) == length
        assert await count_rows(database, TimelineItemRow) == length


async def test_two_responses_can_go_on_from_one(client: ResponseClient, model: Model) -> None:
    """Neither sees the other."""
    root = await client.create("root")
    await client.create("left", previous_response_id=root.id)
    await client.create("right", previous_response_id=root.id)

    assert model.shown == "root | Fine | right"


async def test_a_broken_chain_is_refused(client: ResponseClient) -> None:
    """The one that is missing is named; the model does not silently forget."""
    first = await client.create("one")
    second = await client.create("two", previous_response_id=first.id)
    await client.delete(first.id)

    with pytest.raises(PreviousResponseNotFound) as refused:
        await client.create("three", previous_response_id=second.id)
    assert refused.value.response == first.id


async def test_what_has_not_ended_cannot_be_gone_on_from(
    client: ResponseClient, model: Model
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


async def test_a_deleted_response_leaves_no_row(tmp_path: Path, model: Model) -> None:
    """Nor does one that is not stored, in any table."""
    async with a_control(tmp_path, model=a_model(model)) as running:
        client = ResponseClient(running.client)
        kept = await client.create("kept")
        before = everything(tmp_path)
        answer = await client.create("sesame", store=False, previous_response_id=kept.id)
        told = [each async for each in client.stream("sesame", store=False)]
        await client.count("sesame", store=False)
        await client.prepare("sesame", store=False)
        await client.compact("sesame")

        assert everything(tmp_path) == before
        assert text_of(answer) == "Fine"
        assert names(told)[-1] == "completed"
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
    running: RunningControl, client: ResponseClient, model: Model
) -> None:
    """Its items come first; input and output are appended once, in order."""
    conversations = ConversationClient(running.client)
    made = await conversations.create()
    await client.create("one", conversation_id=made.id)
    await client.create("two", conversation_id=made.id)
    items = await conversations.items(made.id)

    assert model.shown == "one | Fine | two"
    assert sorted(map(text_of_item, items)) == sorted(["one", "Fine", "two", "Fine"])


async def test_a_conversation_has_one_writer(
    running: RunningControl, client: ResponseClient, model: Model
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

    assert model.shown == "three"


async def test_an_item_is_in_a_conversation_once(
    running: RunningControl, client: ResponseClient
) -> None:
    """An input that names one of its items is refused, and the conversation stays free."""
    conversations = ConversationClient(running.client)
    made = await conversations.create(a_message("one"))
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


# ---- less of the past


async def test_a_past_that_nobody_could_hold_is_not_read(
    running: RunningControl, client: ResponseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a chain nor of a conversation; the conversation is free again."""
    conversation = await ConversationClient(running.client).create(a_message("w " * 1000))
    first = await client.create("w", instructions="")
    long = await client.create("w" * 2000, previous_response_id=first.id)
    monkeypatch.setattr(response_pasts, "MAX_PAST_BYTES", 1500)

    for asked in ({"previous_response_id": long.id}, {"conversation_id": conversation.id}):
        for _ in range(2):
            with pytest.raises(TooLong):
                await client.create("x", **asked)
        with pytest.raises(TooLong):
            await client.count("x", **asked)
    await client.create("x", previous_response_id=first.id)


async def test_a_past_without_room_is_cut_or_refused(client: ResponseClient, model: Model) -> None:
    """By half the window at once, at something that a user said; later responses begin alike."""
    last = await client.create("w " * 20 + "first")
    for text in ("second", "third"):
        last = await client.create(f"{text} " + "w " * 5, previous_response_id=last.id)
    with pytest.raises(ContextLengthExceeded):
        await client.create("x " * 10, previous_response_id=last.id)
    last = await client.create("x " * 10, previous_response_id=last.id, truncation=AUTO)
    assert model.shown.startswith("third")
    num_calls = len(model.requests)
    for store in (True, False):
        await client.create("y", previous_response_id=last.id, truncation=AUTO, store=store)
        assert model.shown.startswith("third")
    assert len(model.requests) == num_calls + 2
    num_words = words_of(model.requests[-1])
    assert await client.count("y", previous_response_id=last.id) == num_words
    model.window = 60  # the request to sum up has words of its own
    await client.compact(previous_response_id=last.id)
    assert model.shown.startswith("third")


async def test_a_past_that_callers_keep_themselves_is_cut_alike(
    client: ResponseClient, model: Model
) -> None:
    """It is all input, of which the last question stays; kept or not, and for what follows."""
    given = ["first " + "w " * 20, "second " + "w " * 15, "third " + "w " * 10, "fourth"]
    with pytest.raises(ContextLengthExceeded):
        await client.create(*given)
    for store in (False, True):
        last = await client.create(*given, truncation=AUTO, store=store)
        assert model.shown.startswith("third")
    await client.create("fifth", previous_response_id=last.id)
    assert model.shown.startswith("third")
    with pytest.raises(ContextLengthExceeded):  # a question alone is never cut
        await client.create("x", "w " * 41, truncation=AUTO)
    assert model.shown.startswith("w")


async def test_what_is_read_ahead_is_cut_as_the_answer_would_be(
    client: ResponseClient, model: Model
) -> None:
    """Where the answer may be given, its prompt may be read; else both are refused alike."""
    first = await client.create("a " * 30)
    await client.prepare("b " * 30, previous_response_id=first.id, truncation=AUTO)
    assert model.shown == "b " * 30
    assert model.requests[-1].max_tokens == 0
    with pytest.raises(ContextLengthExceeded):
        await client.prepare("b " * 30, previous_response_id=first.id)


async def test_a_long_past_is_compacted_by_itself(client: ResponseClient, model: Model) -> None:
    """The model sums up what was said; from there on the summary is all that is seen of it."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = says("Many times a")
    told = client.stream("b", previous_response_id=first.id, compact_threshold=1000)
    events = [each async for each in told]
    made = events[-1].completed
    assert names(events)[:6] == [
        "created",
        "in_progress",
        "output_item_added",
        "compaction_compacting",
        "output_item_done",
        "output_item_added",
    ]
    summary = "Summary of the conversation so far:\n\nMany times a"
    assert [item.WhichOneof("content") for item in made.output] == ["compaction", "message"]
    assert model.shown == f"{summary} | b"
    assert made.usage.input_tokens == 20
    model.script = says("Fine")
    await client.create("c", previous_response_id=made.id, compact_threshold=1000)
    assert model.shown == f"{summary} | b | Many times a | c"
    await client.delete(first.id)
    await client.create("d", previous_response_id=made.id)
    assert model.shown == f"{summary} | b | Many times a | d"
    # A caller who keeps the list himself gives everything back.
    await client.create("a " * 1100, "b", *made.output, "e", store=False)
    assert model.shown == f"{summary} | b | Many times a | e"


async def test_a_long_list_of_a_caller_is_compacted_too(
    client: ResponseClient, model: Model
) -> None:
    """Whoever keeps the list himself names no earlier response: the last question stays."""
    model.window = 10_000
    model.script = says("Many times a")
    told = client.stream("a " * 1100, "b", "c", store=False, compact_threshold=1000)
    made = [each async for each in told][-1].completed
    summary = "Summary of the conversation so far:\n\nMany times a"

    assert [item.WhichOneof("content") for item in made.output] == ["compaction", "message"]
    assert model.shown == f"{summary} | c"
    await client.create("a " * 1100, "b", "c", *made.output, "d", store=False)
    assert model.shown == f"{summary} | c | Many times a | d"
    num_calls = len(model.requests)
    await client.create("a " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 1, "a question alone is not summed up"
    summed_up = (await client.compact("let us agree")).output[-1]
    await client.create(summed_up, "e " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 3, "nor is a summary"


async def test_a_summary_leaves_no_output_without_its_call(
    client: ResponseClient, model: Model
) -> None:
    """What answers an earlier call is summed up with it."""
    model.window = 10_000
    model.script = calls("f", "{}")
    function = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f", parameters_json="{}"))
    first = await client.create("a " * 1100, "b", tools=[function])
    model.script = says("It is warm")
    await client.create(
        an_output("call_1", "warm"), previous_response_id=first.id, compact_threshold=1000
    )
    summed = model.requests[-2].messages

    assert summed[-2].call_id == "call_1"
    assert model.shown == "Summary of the conversation so far:\n\nIt is warm | b"


async def test_a_summary_without_words_stands_for_nothing(
    client: ResponseClient, model: Model
) -> None:
    """A model may spend all its tokens on thoughts; the past stays as it is."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = says("", thinks="Much was said")
    made = await client.create("b", previous_response_id=first.id, compact_threshold=1000)

    assert not any(item.HasField("compaction") for item in made.output)
    assert model.shown == f"{'a ' * 1100} | Fine | b"


async def test_a_summary_is_no_question(client: ResponseClient, model: Model) -> None:
    """It speaks as a user does; what the user has asked before it stays behind a later summary."""
    model.window = 10_000
    summed_up = (await client.compact("b")).output
    model.script = calls("f", "{}")
    function = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f", parameters_json="{}"))
    first = await client.create(*summed_up, tools=[function])
    model.script = says("It is warm")
    warm = an_output("call_1", "warm " * 1100)
    await client.create(warm, previous_response_id=first.id, compact_threshold=1000)

    assert model.shown == "Summary of the conversation so far:\n\nIt is warm | b"


async def test_a_past_that_cannot_be_summed_up_is_cut(client: ResponseClient, model: Model) -> None:
    """Where it may be; there was no room to read it."""
    model.window = 3000
    first = await client.create("a " * 2990)
    made = await client.create(
        "b " * 30, previous_response_id=first.id, compact_threshold=1000, truncation=AUTO
    )

    assert [item.WhichOneof("content") for item in made.output] == ["message"]
    assert model.shown == "b " * 30


async def test_a_summary_that_a_caller_gives_outlives_a_later_one(
    client: ResponseClient, model: Model
) -> None:
    """Compaction sums up what was before a response, and leaves what its caller gave as it is."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = says("They agreed")
    given = (await client.compact("let us agree")).output[-1]
    model.script = says("Many times a")
    made = await client.create(given, "b", previous_response_id=first.id, compact_threshold=1000)
    summaries = "Summary of the conversation so far:\n\n"
    shown = f"{summaries}Many times a | {summaries}They agreed | b"
    assert model.shown == shown
    await client.create("c", previous_response_id=made.id)
    assert model.shown == f"{shown} | Many times a | c"


# ---- what callers keep


async def test_an_item_keeps_the_id_that_an_answer_gave_it(client: ResponseClient) -> None:
    """Where no stored item has it, and it is one of ours of its kind; else it gets another one."""
    answer = (await client.create("one", store=False)).output[0]
    given = answer.id
    kept = await ids_of_input(client, answer)
    taken = await ids_of_input(client, answer, answer)
    for name in ("msg_68a1", "fc" + answer.id[3:], "msg_" + "x" * 32, "msg_\0"):
        answer.id = name
        assert await ids_of_input(client, answer) != {name}

    assert kept == {given}
    assert len(taken) == 2
    assert not kept & taken


async def test_nobody_takes_an_id_from_an_answer_that_is_being_written(
    client: ResponseClient, model: Model
) -> None:
    """A caller may give a part of it back, by the id that it will have once it is kept."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(request: TurnRequest, number: int) -> None:
        if number == 1:
            reached.set()
            await gate.wait()

    model.script = says("Fine so far")
    model.before_token = wait
    begun = await client.create("one", background=True)
    await reached.wait()
    told = ""
    async for heard in client.watch(begun.id):
        told = heard.output_item_added.item.id
        if told:
            break
    given = item_pb2.Item(id=told)
    given.message.CopyFrom(a_message("mine", item_pb2.ITEM_ROLE_ASSISTANT).message)
    other = await client.create(given, "two", background=True)
    gate.set()
    ended = [heard async for heard in client.watch(begun.id)][-1].completed
    answered = [heard async for heard in client.watch(other.id)][-1].completed
    *_, asked = (await client.input_items(other.id)).items

    assert (ended.output[0].id, text_of(ended)) == (told, "Fine so far")
    assert text_of(answered) == "Fine so far"
    assert text_of_item(asked) == "mine"
    assert asked.id != told


async def ids_of_input(client: ResponseClient, *items: item_pb2.Item) -> set[str]:
    """What items are called that a response was given."""
    made = await client.create(*items)
    return {item.id for item in (await client.input_items(made.id)).items}


async def test_a_thought_that_was_sealed_is_read_again(
    running: RunningControl, client: ResponseClient, model: Model
) -> None:
    """By its own project alone, and only as it was."""
    model.script = says("Fine", thinks="deep thought")
    made = await client.create("one", store=False, include=[SEALED])
    sealed = made.output[0].reasoning.sealed
    thought = item_pb2.Item(reasoning=item_pb2.ReasoningItem(sealed=sealed))
    await client.create("one", thought, *made.output[1:], "two", store=False)
    reasoned = [message.reasoning for message in model.requests[-1].messages]

    assert "deep thought" in reasoned
    forged = item_pb2.Item(reasoning=item_pb2.ReasoningItem(sealed=sealed[:-4] + "AAA="))
    with pytest.raises(SealInvalid):
        await client.create("one", forged, "two")
    with pytest.raises(SealInvalid):
        await ResponseClient(running.of_project("other")).create("one", thought, "two")


async def test_a_compaction_is_accepted_as_input(
    running: RunningControl, client: ResponseClient, model: Model
) -> None:
    """User messages stay as they were, and the summary stands for the rest."""
    model.script = says("They agreed")
    compacted = await client.compact("let us agree")
    model.script = says("Fine")
    await client.create(*compacted.output, "and now?")

    assert model.shown.startswith("let us agree | Summary of the conversation so far:")
    assert model.shown.endswith("They agreed | and now?")
    with pytest.raises(SealInvalid):
        await ResponseClient(running.of_project("other")).create(*compacted.output, "and now?")
