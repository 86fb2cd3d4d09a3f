"""Histories longer than the context: refused, truncated or compacted."""

import pytest
import sqlalchemy as sa
from corral.control.v1 import response_pb2, tool_pb2
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

FUNCTION = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="f", parameters_json="{}"))
SUMMARY = "Summary of the conversation so far:\n\n"
AUTO = response_pb2.ResponseSettings.TRUNCATION_AUTO


async def test_a_history_above_the_size_limit_is_refused(
    running: RunningControl, client: ResponseClient, database_url: str | None
) -> None:
    """For chains and conversations; a refused request leaves the conversation unlocked."""
    conversations = ConversationClient(running.client)
    conversation = await conversations.create(make_message("long"))
    first = await client.create("short")
    long = await client.create("long", previous_response_id=first.id)
    long_items = await conversations.items(conversation.id)
    long_items += (await client.input_items(long.id)).items
    content = Message(role=Role.USER, content=(Text(text="x" * MAX_HISTORY_BYTES),))
    grow = sa.update(ItemRow).where(ItemRow.id.in_([item.id for item in long_items]))
    grow = grow.values(document=encode_content(content))
    file = running.folder / "control" / FILE_NAME
    url = sa.make_url(database_url) if database_url else sa.URL.create("sqlite", database=str(file))
    driver = "postgresql+asyncpg" if database_url else "sqlite+aiosqlite"
    engine = create_async_engine(url.set(drivername=driver), json_serializer=str)
    async with engine.begin() as connection:
        await connection.execute(grow)
    await engine.dispose()

    for reference in ({"previous_response_id": long.id}, {"conversation_id": conversation.id}):
        with pytest.raises(TooLong):
            await client.create("x", **reference)
        with pytest.raises(TooLong):  # not that it is locked
            await client.create("x", **reference)
    with pytest.raises(TooLong):
        await client.count("x", previous_response_id=long.id)
    await client.create("x", previous_response_id=first.id)


async def test_a_history_above_the_context_is_truncated_or_refused(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Truncation leaves at most half the window; later prompts start at the same message."""
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
    model.window = 60  # the summary instructions need room too
    await client.compact(previous_response_id=last.id)
    assert model.prompt_text.startswith("third")


async def test_a_list_of_input_items_above_the_context_is_truncated_alike(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The last question is never cut; responses that follow keep the truncation."""
    items = ["first " + "w " * 20, "second " + "w " * 15, "third " + "w " * 10, "fourth"]
    with pytest.raises(ContextLengthExceeded):
        await client.create(*items)
    for store in (False, True):
        last = await client.create(*items, truncation=AUTO, store=store)
        assert model.prompt_text.startswith("third")
    await client.create("fifth", previous_response_id=last.id)
    assert model.prompt_text.startswith("third")
    with pytest.raises(ContextLengthExceeded):  # a single question is never cut
        await client.create("x", "w " * 41, truncation=AUTO)
    assert model.prompt_text.startswith("w")


async def test_prepare_truncates_or_refuses_the_prompt_as_create_does(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The prompt is truncated with truncation `auto`, and refused without it."""
    first = await client.create("a " * 30)
    await client.prepare("b " * 30, previous_response_id=first.id, truncation=AUTO)
    assert model.prompt_text == "b " * 30
    assert model.requests[-1].max_tokens == 0
    with pytest.raises(ContextLengthExceeded):
        await client.prepare("b " * 30, previous_response_id=first.id)


async def test_a_history_above_the_compact_threshold_is_summarized(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Later prompts start with the summary, also if it is sent back as input."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("Many times a")
    stream = client.stream("b", previous_response_id=first.id, compact_threshold=1000)
    events = [event async for event in stream]
    response = events[-1].completed
    assert event_names(events)[:6] == [
        "created",
        "in_progress",
        "output_item_added",
        "compaction_compacting",
        "output_item_done",
        "output_item_added",
    ]
    assert [item.WhichOneof("content") for item in response.output] == ["compaction", "message"]
    assert model.prompt_text == f"{SUMMARY}Many times a | b"
    assert response.usage.input_tokens == 20
    model.script = text_script("Fine")
    await client.create("c", previous_response_id=response.id, compact_threshold=1000)
    assert model.prompt_text == f"{SUMMARY}Many times a | b | Many times a | c"
    await client.delete(first.id)
    await client.create("d", previous_response_id=response.id)
    assert model.prompt_text == f"{SUMMARY}Many times a | b | Many times a | d"
    # A client that does not use stored responses sends all items back.
    await client.create("a " * 1100, "b", *response.output, "e", store=False)
    assert model.prompt_text == f"{SUMMARY}Many times a | b | Many times a | e"


async def test_input_items_above_the_compact_threshold_are_summarized(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The last question is kept; a question or a summary alone is not summarized."""
    model.window = 10_000
    model.script = text_script("Many times a")
    stream = client.stream("a " * 1100, "b", "c", store=False, compact_threshold=1000)
    response = [event async for event in stream][-1].completed

    assert [item.WhichOneof("content") for item in response.output] == ["compaction", "message"]
    assert model.prompt_text == f"{SUMMARY}Many times a | c"
    await client.create("a " * 1100, "b", "c", *response.output, "d", store=False)
    assert model.prompt_text == f"{SUMMARY}Many times a | c | Many times a | d"
    num_calls = len(model.requests)
    await client.create("a " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 1, "a single question is not summarized"
    summary_item = (await client.compact("let us agree")).output[-1]
    await client.create(summary_item, "e " * 1100, store=False, compact_threshold=1000)
    assert len(model.requests) == num_calls + 3, "a summary is not summarized"


async def test_a_tool_output_is_summarized_together_with_its_call(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The prompt after the summary has no output without a call."""
    model.window = 10_000
    model.script = call_script("f", "{}")
    first = await client.create("a " * 1100, "b", tools=[FUNCTION])
    model.script = text_script("It is warm")
    await client.create(
        function_output("call_1", "warm"), previous_response_id=first.id, compact_threshold=1000
    )
    summarized = model.requests[-2].messages

    assert summarized[-2].call_id == "call_1"
    assert model.prompt_text == f"{SUMMARY}It is warm | b"


async def test_an_empty_summary_is_discarded(client: ResponseClient, model: SmallWindow) -> None:
    """If the model produces only reasoning, the history stays unchanged."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("", reasoning="Much was said")
    response = await client.create("b", previous_response_id=first.id, compact_threshold=1000)

    assert not any(item.HasField("compaction") for item in response.output)
    assert model.prompt_text == f"{'a ' * 1100} | Fine | b"


async def test_a_summary_does_not_count_as_the_last_question(
    client: ResponseClient, model: SmallWindow
) -> None:
    """The user's last question before it stays after a later summary."""
    model.window = 10_000
    compacted = (await client.compact("b")).output
    model.script = call_script("f", "{}")
    first = await client.create(*compacted, tools=[FUNCTION])
    model.script = text_script("It is warm")
    warm = function_output("call_1", "warm " * 1100)
    await client.create(warm, previous_response_id=first.id, compact_threshold=1000)

    assert model.prompt_text == f"{SUMMARY}It is warm | b"


async def test_a_history_too_long_to_summarize_is_truncated(
    client: ResponseClient, model: SmallWindow
) -> None:
    """With truncation `auto`, if the summary request itself does not fit."""
    model.window = 3000
    first = await client.create("a " * 2990)
    response = await client.create(
        "b " * 30, previous_response_id=first.id, compact_threshold=1000, truncation=AUTO
    )

    assert [item.WhichOneof("content") for item in response.output] == ["message"]
    assert model.prompt_text == "b " * 30


async def test_a_compaction_item_in_the_input_is_kept_by_later_compaction(
    client: ResponseClient, model: SmallWindow
) -> None:
    """Only items before the response are summarized, not its own input."""
    model.window = 10_000
    first = await client.create("a " * 1100)
    model.script = text_script("They agreed")
    summary_item = (await client.compact("let us agree")).output[-1]
    model.script = text_script("Many times a")
    response = await client.create(
        summary_item, "b", previous_response_id=first.id, compact_threshold=1000
    )
    prompt_text = f"{SUMMARY}Many times a | {SUMMARY}They agreed | b"
    assert model.prompt_text == prompt_text
    await client.create("c", previous_response_id=response.id)
    assert model.prompt_text == f"{prompt_text} | Many times a | c"
