"""Items that callers keep themselves and send again: their ids, sealed thoughts and summaries."""

import asyncio

import pytest
from corral.control.v1 import item_pb2, response_pb2

from control_svc.inference.turns import TurnRequest
from svc_kit.errors import SealInvalid
from tests.support.control import RunningControl
from tests.support.conversation_client import get_item_text as item_text
from tests.support.conversation_client import make_message
from tests.support.response_client import ResponseClient, output_text
from tests.support.scripted_turns import text_script
from tests.support.small_window import SmallWindow

SEALED = response_pb2.RESPONSE_INCLUDE_SEALED_REASONING


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
    client: ResponseClient, model: SmallWindow
) -> None:
    """A caller may give a part of it back, by the id that it will have once it is kept."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(request: TurnRequest, number: int) -> None:
        if number == 1:
            reached.set()
            await gate.wait()

    model.script = text_script("Fine so far")
    model.before_token = wait
    begun = await client.create("one", background=True)
    await reached.wait()
    told = ""
    async for heard in client.watch(begun.id):
        told = heard.output_item_added.item.id
        if told:
            break
    given = item_pb2.Item(id=told)
    given.message.CopyFrom(make_message("mine", item_pb2.ITEM_ROLE_ASSISTANT).message)
    other = await client.create(given, "two", background=True)
    gate.set()
    ended = [heard async for heard in client.watch(begun.id)][-1].completed
    answered = [heard async for heard in client.watch(other.id)][-1].completed
    *_, asked = (await client.input_items(other.id)).items

    assert (ended.output[0].id, output_text(ended)) == (told, "Fine so far")
    assert output_text(answered) == "Fine so far"
    assert item_text(asked) == "mine"
    assert asked.id != told


async def ids_of_input(client: ResponseClient, *items: item_pb2.Item) -> set[str]:
    """What items are called that a response was given."""
    made = await client.create(*items)
    return {item.id for item in (await client.input_items(made.id)).items}


async def test_a_thought_that_was_sealed_is_read_again(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """By its own project alone, and only as it was."""
    model.script = text_script("Fine", reasoning="deep thought")
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
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """User messages stay as they were, and the summary stands for the rest."""
    model.script = text_script("They agreed")
    compacted = await client.compact("let us agree")
    model.script = text_script("Fine")
    await client.create(*compacted.output, "and now?")

    assert model.prompt_text.startswith("let us agree | Summary of the conversation so far:")
    assert model.prompt_text.endswith("They agreed | and now?")
    with pytest.raises(SealInvalid):
        await ResponseClient(running.of_project("other")).create(*compacted.output, "and now?")
