"""Long histories of responses: truncated, rejected or compacted."""

import pytest
from corral.control.v1 import response_pb2, tool_pb2
from sqlalchemy import URL, make_url, update
from sqlalchemy.ext.asyncio import create_async_engine

from control_svc.db.engine import FILE_NAME
from control_svc.items.model import Message, Role, Text
from control_svc.items.queries import ItemRow, encode_content
from control_svc.responses.context import MAX_HISTORY_BYTES
from svc_kit.errors import ContextLengthExceeded, TooLong
from tests.support.control import RunningControl
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.response_client import ResponseClient, count_words, event_names, function_output
from tests.support.scripted_turns import call_script, text_script
from tests.support.small_window import SmallWindow

AUTO = response_pb2.ResponseSettings.TRUNCATION_AUTO


async def test_a_history_above_the_size_limit_is_not_read(
    running: RunningControl, client: ResponseClient, database_url: str | None
) -> None:
    """This holds for chains and for conversations; the conversation is unlocked again."""
    conversations = ConversationClient(running.client)
    conversation = await conversations.create(make_message("long"))
    first = await client.create("short")
    long = await client.create("long", previous_response_id=first.id)
    long_items = await conversations.items(conversation.id)
    long_items += (await client.input_items(long.id)).items
    content = Message(role=Role.USER, content=(Text(text="long"),))
    document = encode_content(content) + b" " * MAX_HISTORY_BYTES
    grow = update(ItemRow).where(ItemRow.id.in_([item.id for item in long_items]))
    grow = grow.values(document=document)
    file = running.folder / "control" / FILE_NAME
    url = make_url(database_url) if database_url else URL.create("sqlite", database=str(file))
    driver = "postgresql+asyncpg" if database_url else "sqlite+aiosqlite"
    engine = create_async_engine(url.set(drivername=driver))
    async with engine.begin() as connection:
        await connection.execute(grow)
    await engine.dispose()

    for reference in ({"previous_response_id": long.id}, {"conversation_id": conversation.id}):
        for _ in range(2):
            with pytest.raises(TooLong):
                await client.create("x", **reference)
        with pytest.raises(TooLong):
            await client.count("x", **reference)
    await client.create("x", previous_response_id=first.id)


async def test_a_past_without_room_is_cut_or_refused(
    client: ResponseClient, model: SmallWindow
) -> None:
    """By half the window at once, at something that a user said; later responses begin alike."""
    last = await client.create("w " * 20 + "first")
    for text in ("second", "third"):
        last = await client.create(f"{text} " + "w " * 5, previous_response_id=last.id)
    with pytest.raises(ContextLengthExceeded):
        await client.create("x " * 10, previous_response_id=last.id)
    last = await client.create("x " * 10, previous_response_id=last.id, truncation=AUTO)
    assert model.prompt_text.startswith("third")
    num_calls = len(model.requests)
    for store in (True, False):
        await client.create("y", previous_response_id=last.id, truncation=AUTO, store=store)
        assert model.prompt_text.startswith("third")
    assert len(model.requests) == num_calls + 2
    num_words = count_words(model.requests[-1])
    assert await client.count("y", previous_response_id=last.id) == num_words
    model.window = 60  # the request to sum up has words of its own
    await client.compact(previous_response_id=last.id)
    assert model.prompt_text.startswith("third")


async def test_a_past_that_callers_keep_themselves_is_cut_alike(
    client: ResponseClient, model: SmallWindow
) -> None:
    """It is all input, of which the last question stays; kept or not, and for what follows."""
    given = ["first " + "w " * 20, "second " + "w " * 15, "third " + "w " * 10, "fourth"]
    with pytest.raises(ContextLengthExceeded):
        await client.create(*given)
    for store in (False, True):
        last = await client.create(*given, truncation=AUTO, store=store)
        assert model.prompt_text.startswith("third")
    await client.create("fifth", previous_response_id=last.id)
    assert model.prompt_text.startswith("third")
    with pytest.raises(ContextLengthExceeded):  # a question alone is never cut
        await client.create("x", "w " * 41, truncation=AUTO)
    assert model.prompt_text.startswith("w")


async def test_what_is_read_ahead_is_cut_as_the_answer_would_be(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Where the answer may be given, its prompt may be read; else both are refused alike."""
    first = await client.create("a " * 30)
    await client.prepare("b " * 30, previous_response_id=first.id, truncation=AUTO)
    assert model.prompt_text == "b " * 30
    assert model.requests[-1].max_tokens == 0
    with pytest.raises(ContextLengthExceeded):
        await client.prepare("b " * 30, previous_response_id=first.id)


async def test_a_long_past_is_compacted_by_itself(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The model sums up what was said; from there on the summary is all that is seen of it."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("Many times a")
    told = client.stream("b", previous_response_id=first.id, compact_threshold=1000)
    events = [each async for each in told]
    made = events[-1].completed
    assert event_names(events)[:6] == [
        "created",
        "in_progress",
        "output_item_added",
        "compaction_compacting",
        "output_item_done",
        "output_item_added",
    ]
    summary = "Summary of the conversation so far:\n\nMany times a"
    assert [item.WhichOneof("content") for item in made.output] == ["compaction", "message"]
    assert model.prompt_text == f"{summary} | b"
    assert made.usage.input_tokens == 20
    model.script = text_script("Fine")
    await client.create("c", previous_response_id=made.id, compact_threshold=1000)
    assert model.prompt_text == f"{summary} | b | Many times a | c"
    await client.delete(first.id)
    await client.create("d", previous_response_id=made.id)
    assert model.prompt_text == f"{summary} | b | Many times a | d"
    # A caller who keeps the list himself gives everything back.
    await client.create("a " * 1100, "b", *made.output, "e", store=False)
    assert model.prompt_text == f"{summary} | b | Many times a | e"


async def test_a_long_list_of_a_caller_is_compacted_too(
    client: ResponseClient, model: SmallWindow
) -> None:
    """A caller that sends all items has no previous response; the last question is kept."""
    model.window = 10_000
    model.script = text_script("Many times a")
    told = client.stream("a " * 1100, "b", "c", store=False, compact_threshold=1000)
    made = [each async for each in told][-1].completed
    summary = "Summary of the conversation so far:\n\nMany times a"

    assert [item.WhichOneof("content") for item in made.output] == ["compaction", "message"]
    assert model.prompt_text == f"{summary} | c"
    await client.create("a " * 1100, "b", "c", *made.output, "d", store=False)
    assert model.prompt_text == f"{summary} | c | Many times a | d"
    num_calls = len(model.requests)
    await client.create("a " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 1, "a question alone is not summed up"
    summed_up = (await client.compact("let us agree")).output[-1]
    await client.create(summed_up, "e " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 3, "nor is a summary"


async def test_a_summary_leaves_no_output_without_its_call(
    client: ResponseClient, model: SmallWindow
) -> None:
    """What answers an earlier call is summed up with it."""
    model.window = 10_000
    model.script = call_script("f", "{}")
    function = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f", parameters_json="{}"))
    first = await client.create("a " * 1100, "b", tools=[function])
    model.script = text_script("It is warm")
    await client.create(
        function_output("call_1", "warm"), previous_response_id=first.id, compact_threshold=1000
    )
    summed = model.requests[-2].messages

    assert summed[-2].call_id == "call_1"
    assert model.prompt_text == "Summary of the conversation so far:\n\nIt is warm | b"


async def test_a_summary_without_words_stands_for_nothing(
    client: ResponseClient, model: SmallWindow
) -> None:
    """A model may spend all its tokens on thoughts; the past stays as it is."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("", reasoning="Much was said")
    made = await client.create("b", previous_response_id=first.id, compact_threshold=1000)

    assert not any(item.HasField("compaction") for item in made.output)
    assert model.prompt_text == f"{'a ' * 1100} | Fine | b"


async def test_a_summary_is_no_question(client: ResponseClient, model: SmallWindow) -> None:
    """It speaks as a user does; what the user has asked before it stays behind a later summary."""
    model.window = 10_000
    summed_up = (await client.compact("b")).output
    model.script = call_script("f", "{}")
    function = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f", parameters_json="{}"))
    first = await client.create(*summed_up, tools=[function])
    model.script = text_script("It is warm")
    warm = function_output("call_1", "warm " * 1100)
    await client.create(warm, previous_response_id=first.id, compact_threshold=1000)

    assert model.prompt_text == "Summary of the conversation so far:\n\nIt is warm | b"


async def test_a_past_that_cannot_be_summed_up_is_cut(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Where it may be; there was no room to read it."""
    model.window = 3000
    first = await client.create("a " * 2990)
    made = await client.create(
        "b " * 30, previous_response_id=first.id, compact_threshold=1000, truncation=AUTO
    )

    assert [item.WhichOneof("content") for item in made.output] == ["message"]
    assert model.prompt_text == "b " * 30


async def test_a_summary_that_a_caller_gives_outlives_a_later_one(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Compaction sums up what was before a response, and leaves what its caller gave as it is."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("They agreed")
    given = (await client.compact("let us agree")).output[-1]
    model.script = text_script("Many times a")
    made = await client.create(given, "b", previous_response_id=first.id, compact_threshold=1000)
    summaries = "Summary of the conversation so far:\n\n"
    prompt_text = f"{summaries}Many times a | {summaries}They agreed | b"
    assert model.prompt_text == prompt_text
    await client.create("c", previous_response_id=made.id)
    assert model.prompt_text == f"{prompt_text} | Many times a | c"
