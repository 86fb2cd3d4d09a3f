"""Responses over gRPC, on both databases, with a model that follows scripts."""

import asyncio

import pytest
from corral.control.v1 import item_pb2, response_event_pb2, response_pb2, tool_pb2

from control_svc.inference.turns import TextPart, TurnRequest
from svc_kit.errors import (
    ContextLengthExceeded,
    PreviousResponseNotFound,
    ResponseNotCancellable,
    ResponseNotFound,
    ToolCallMissing,
    ToolOutputMissing,
)
from tests.support.control import RunningControl
from tests.support.response_client import ResponseClient, event_names, function_output, output_text
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, text_script

COMPLETED = response_pb2.Response.STATE_COMPLETED
FAILED = response_pb2.Response.STATE_FAILED
UNKNOWN = "resp_" + "0" * 32
TEXT_TURN = [
    "created",
    "in_progress",
    "output_item_added",
    "content_part_added",
    "output_text_delta",
    "output_text_done",
    "content_part_done",
    "output_item_done",
    "completed",
]
WEATHER = tool_pb2.Tool(function=tool_pb2.FunctionTool(name="weather", parameters_json="{}"))


class Model(ScriptedTurns):
    """Answers "4" unless told otherwise."""

    def __init__(self) -> None:
        self.script: Script = text_script("The answer is 4")
        super().__init__(self._choose)

    def _choose(self, request: TurnRequest) -> Script:
        return self.script

    def last_texts(self) -> list[str]:
        """What the model was shown the last time."""
        return [
            "".join(part.text for part in message.parts if isinstance(part, TextPart))
            for message in self.requests[-1].messages
        ]


@pytest.fixture
def model() -> Model:
    """The model."""
    return Model()


async def told(
    client: ResponseClient, *items: str | item_pb2.Item, **fields: object
) -> list[response_event_pb2.ResponseEvent]:
    """All events of a response."""
    return [event async for event in client.stream(*items, **fields)]


async def test_a_response_is_answered_and_kept(client: ResponseClient) -> None:
    """What is returned is what a later call finds, with items, usage and settings."""
    made = await client.create("What is 2 + 2?", instructions="Be brief", metadata={"a": "b"})

    assert made == await client.get(made.id)
    assert (made.state, output_text(made)) == (COMPLETED, "The answer is 4")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (10, 4)
    assert made.settings.model == "scripted"
    assert made.settings.store
    assert made.settings.instructions == "Be brief"
    assert made.HasField("complete_time")


async def test_a_stream_tells_everything_in_order(client: ResponseClient) -> None:
    """Events are numbered from 0 without holes, and the last one is the response."""
    events = await told(client, "What is 2 + 2?")

    assert event_names(events) == TEXT_TURN
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].completed == await client.get(events[0].created.id)
    deltas = [event.output_text_delta.text for event in events]
    assert "".join(deltas) == "The answer is 4"
    assert [event async for event in client.watch(events[0].created.id, 3)] == events[4:]


async def test_a_response_goes_on_from_another_one_without_its_instructions(
    client: ResponseClient, model: Model
) -> None:
    """The model sees what was said before, once; instructions are of one response alone."""
    first = await client.create("One", instructions="Be brief")
    second = await client.create("Two", previous_response_id=first.id)
    await client.create("Three", previous_response_id=second.id)

    assert model.last_texts() == ["One", "The answer is 4", "Two", "The answer is 4", "Three"]
    assert [item.id for item in (await client.input_items(second.id)).items] != []
    assert len((await client.input_items(second.id)).items) == 1


async def test_a_function_call_waits_for_its_output(client: ResponseClient, model: Model) -> None:
    """The call is told in pieces; the next response has to answer it."""
    model.script = call_script("weather", '{"city":"Rome"}')
    events = await told(client, "Weather?", tools=[WEATHER])
    made = events[-1].completed
    call = made.output[0].function_call

    assert event_names(events)[2:-1] == [
        "output_item_added",
        "function_call_arguments_delta",
        "function_call_arguments_done",
        "output_item_done",
    ]
    assert (call.name, call.arguments_json, call.call_id) == (
        "weather",
        '{"city":"Rome"}',
        "call_1",
    )
    with pytest.raises(ToolOutputMissing):
        await client.create("And?", previous_response_id=made.id)
    with pytest.raises(ToolCallMissing):
        await client.create(function_output("other", "warm"), previous_response_id=made.id)
    model.script = text_script("Sunny")
    answer = await client.create(function_output("call_1", "warm"), previous_response_id=made.id)
    assert output_text(answer) == "Sunny"
    assert model.last_texts() == ["Weather?", "", "warm"]


async def test_a_thought_is_told_as_a_summary(client: ResponseClient, model: Model) -> None:
    """A thought comes before the answer, and is shown as its summary."""
    model.script = text_script("Four", reasoning="two and two")
    events = await told(client, "What is 2 + 2?")

    assert event_names(events)[2:8] == [
        "output_item_added",
        "reasoning_summary_part_added",
        "reasoning_summary_text_delta",
        "reasoning_summary_text_done",
        "reasoning_summary_part_done",
        "output_item_done",
    ]
    assert events[-1].completed.output[0].reasoning.text == "two and two"
    assert events[-1].completed.usage.reasoning_tokens == 3


async def test_a_prompt_is_read_and_not_answered(client: ResponseClient, model: Model) -> None:
    """What follows it begins alike."""
    read = await client.prepare("One", instructions="Be brief")
    asked = model.requests[-1]
    await client.create("One", instructions="Be brief")

    assert read.input_tokens == 10
    assert asked.max_tokens == 0
    assert asked.messages == model.requests[-1].messages
    model.failures = [ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=5)]
    with pytest.raises(ContextLengthExceeded):
        await client.prepare("Much")


async def test_pictures_alone_are_an_empty_message(client: ResponseClient, model: Model) -> None:
    """A text model answers without them."""
    picture = item_pb2.ItemPart(image=item_pb2.ImagePart(url="data:image/png;base64,AA=="))
    message = item_pb2.MessageItem(role=item_pb2.ITEM_ROLE_USER, parts=[picture])
    made = await client.create("Look", item_pb2.Item(message=message))

    assert output_text(made) == "The answer is 4"
    assert model.last_texts() == ["Look", ""]
    assert all(message.parts for message in model.requests[-1].messages)


async def test_a_limit_breaks_an_answer_off(client: ResponseClient) -> None:
    """What was written is kept, and marked."""
    events = await told(client, "What is 2 + 2?", max_output_tokens=2)
    last = events[-1].incomplete

    assert event_names(events) == [*TEXT_TURN[:-1], "incomplete"]
    assert last.output[0].status == item_pb2.Item.STATUS_INCOMPLETE
    assert output_text(last) == "The answer"
    assert last.incomplete_reason == last.INCOMPLETE_REASON_MAX_OUTPUT_TOKENS


async def test_a_request_that_the_model_refuses_is_an_error(
    client: ResponseClient, model: Model
) -> None:
    """Also for a stream, which tells nothing then; in the background the response has failed."""
    refusal = ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=5)
    model.failures = [refusal, refusal, refusal]
    with pytest.raises(ContextLengthExceeded):
        await client.create("Much")
    with pytest.raises(ContextLengthExceeded):
        await told(client, "Much")
    begun = await client.create("Much", background=True)
    events = [event async for event in client.watch(begun.id)]

    assert begun.state == response_pb2.Response.STATE_QUEUED
    assert event_names(events) == ["created", "queued", "failed"]
    assert events[-1].failed.error.code == "context_length_exceeded"


async def test_an_engine_that_dies_costs_no_word(
    running: RunningControl, client: ResponseClient, model: Model
) -> None:
    """The turn goes on behind the tokens that were told."""
    running.clock.step_s = 1  # so that the waits between two attempts pass
    model.failures = [2, 1]
    events = await told(client, "What is 2 + 2?")

    assert event_names(events) == TEXT_TURN
    assert "".join(event.output_text_delta.text for event in events) == "The answer is 4"


async def test_what_is_deleted_is_gone(client: ResponseClient) -> None:
    """Also for those who want to go on from it."""
    made = await client.create("One")
    await client.delete(made.id)

    with pytest.raises(ResponseNotFound):
        await client.get(made.id)
    with pytest.raises(ResponseNotFound):
        await client.delete(made.id)
    with pytest.raises(PreviousResponseNotFound):
        await client.create("Two", previous_response_id=made.id)


async def test_only_background_responses_are_cancelled(client: ResponseClient) -> None:
    """One that has ended stays as it is."""
    made = await client.create("One")
    with pytest.raises(ResponseNotCancellable):
        await client.cancel(made.id)
    begun = await client.create("One", background=True)
    ended = [event async for event in client.watch(begun.id)][-1].completed
    assert await client.cancel(begun.id) == ended


async def test_a_cancelled_response_keeps_what_was_said(
    client: ResponseClient, model: Model
) -> None:
    """Its stream ends at once, and the model is not asked any more."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(_request: TurnRequest, number: int) -> None:
        if number == 2:
            reached.set()
            await gate.wait()

    model.before_token = wait
    begun = await client.create("What is 2 + 2?", background=True)
    seen = []
    async for event in client.watch(begun.id):
        seen.append(event)
        if event.output_text_delta.text == " answer":
            cancelled = await client.cancel(begun.id)

    assert cancelled.state == response_pb2.Response.STATE_CANCELLED
    assert output_text(cancelled) == "The answer"
    assert seen[-1].cancelled == cancelled
    assert cancelled.output[0].status == item_pb2.Item.STATUS_INCOMPLETE


async def test_a_caller_who_leaves_ends_what_is_not_stored(
    client: ResponseClient, model: Model
) -> None:
    """Also where much is waiting to be read."""
    model.script = text_script("word " * 5000)
    stream = client.stream("Say much", store=False)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(10):
        await model.ended.wait()
