"""Items that a client sends back: their ids, encrypted reasoning and compaction items."""

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


async def test_an_input_item_keeps_its_id_if_it_is_valid_and_unused(client: ResponseClient) -> None:
    """A repeated id, another kind's prefix and a malformed id are replaced."""
    answer = (await client.create("one", store=False)).output[0]
    answer_id = answer.id
    kept_ids = await create_and_list_input_ids(client, answer)
    repeated_ids = await create_and_list_input_ids(client, answer, answer)
    for invalid_id in ("msg_68a1", "fc" + answer.id[3:], "msg_" + "x" * 32, "msg_\0"):
        answer.id = invalid_id
        assert await create_and_list_input_ids(client, answer) != {invalid_id}

    assert kept_ids == {answer_id}
    assert len(repeated_ids) == 2
    assert not kept_ids & repeated_ids


async def test_an_input_item_cannot_use_the_id_of_an_item_being_streamed(
    client: ResponseClient, model: SmallWindow
) -> None:
    """It gets a new id, and the streamed response is stored unchanged."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(request: TurnRequest, number: int) -> None:
        if number == 1:
            reached.set()
            await gate.wait()

    model.script = text_script("Fine so far")
    model.before_token = wait
    response = await client.create("one", background=True)
    await reached.wait()
    item_id = ""
    async for event in client.watch(response.id):
        item_id = event.output_item_added.item.id
        if item_id:
            break
    item = item_pb2.Item(id=item_id)
    item.message.CopyFrom(make_message("mine", item_pb2.ITEM_ROLE_ASSISTANT).message)
    other = await client.create(item, "two", background=True)
    gate.set()
    completed = [event async for event in client.watch(response.id)][-1].completed
    other_completed = [event async for event in client.watch(other.id)][-1].completed
    *_, input_message = (await client.input_items(other.id)).items

    assert (completed.output[0].id, output_text(completed)) == (item_id, "Fine so far")
    assert output_text(other_completed) == "Fine so far"
    assert item_text(input_message) == "mine"
    assert input_message.id != item_id


async def create_and_list_input_ids(client: ResponseClient, *items: item_pb2.Item) -> set[str]:
    response = await client.create(*items)
    return {item.id for item in (await client.input_items(response.id)).items}


async def test_encrypted_reasoning_is_decrypted_for_the_model(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """Changed bytes and those of another project raise SealInvalid, unless the text is readable."""
    model.script = text_script("Fine", reasoning="deep thought")
    response = await client.create("one", store=False, include=[SEALED])
    sealed = response.output[0].reasoning.sealed
    thought = item_pb2.Item(reasoning=item_pb2.ReasoningItem(sealed=sealed))
    await client.create("one", thought, *response.output[1:], "two", store=False)
    reasoning = [message.reasoning for message in model.requests[-1].messages]

    assert "deep thought" in reasoning
    forged = item_pb2.Item(reasoning=item_pb2.ReasoningItem(sealed=sealed[:-4] + "AAA="))
    with pytest.raises(SealInvalid):
        await client.create("one", forged, "two")
    with pytest.raises(SealInvalid):
        await ResponseClient(running.of_project("other")).create("one", thought, "two")
    forged.reasoning.text = "a thought that can be read"
    await client.create("one", forged, *response.output[1:], "two", store=False)
    reasoning = [message.reasoning for message in model.requests[-1].messages]
    assert "a thought that can be read" in reasoning


async def test_a_compaction_item_is_accepted_as_input(
    running: RunningControl, client: ResponseClient, model: SmallWindow
) -> None:
    """The prompt has the user messages and the summary; another project's item is refused."""
    model.script = text_script("They agreed")
    compacted = await client.compact("let us agree")
    model.script = text_script("Fine")
    await client.create(*compacted.output, "and now?")

    assert model.prompt_text.startswith("let us agree | Summary of the conversation so far:")
    assert model.prompt_text.endswith("They agreed | and now?")
    with pytest.raises(SealInvalid):
        await ResponseClient(running.of_project("other")).create(*compacted.output, "and now?")
