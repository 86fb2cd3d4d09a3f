"""ResponseService over gRPC, on SQLite and PostgreSQL, with a scripted model."""

import asyncio
from dataclasses import replace

import pytest
from corral.control.v1 import item_pb2, response_event_pb2, response_pb2, tool_pb2
from corral.control.v1 import limit_service_pb2 as limit_pb
from corral.control.v1 import response_service_pb2 as pb

from control_svc.inference.turns import TextPart, TurnRequest
from svc_kit.errors import (
    ContextLengthExceeded,
    PreviousResponseNotFound,
    ResponseNotCancellable,
    ResponseNotFound,
    ToolCallMissing,
    ToolOutputMissing,
)
from svc_kit.errors.status import REQUEST_ID_KEY
from tests.support.control import RunningControl
from tests.support.conversation_client import make_message
from tests.support.operators import Operator
from tests.support.response_client import (
    ResponseClient,
    event_names,
    function_output,
    new_response_message,
    output_text,
)
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


class ScriptedModel(ScriptedTurns):
    """Produces `script`, by default "The answer is 4"."""

    def __init__(self) -> None:
        self.script: Script = text_script("The answer is 4")
        super().__init__(self._choose)

    def _choose(self, request: TurnRequest) -> Script:
        return self.script

    def prompt_texts(self) -> list[str]:
        """The text of each message of the last prompt."""
        return [
            "".join(part.text for part in message.parts if isinstance(part, TextPart))
            for message in self.requests[-1].messages
        ]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


async def collect_events(
    client: ResponseClient, *items: str | item_pb2.Item, **fields: object
) -> list[response_event_pb2.ResponseEvent]:
    return [event async for event in client.stream(*items, **fields)]


@pytest.mark.parametrize("store", [True, False])
async def test_what_a_model_does_not_enforce_is_named(
    client: ResponseClient, model: ScriptedModel, store: bool
) -> None:
    """As soon as the model has started, and in the response itself; names have any characters."""
    names = ("tools[0].function.parameters", "a\x00b", "a\nb\u2028c", "")
    model.script = replace(model.script, ignored=names)
    _, started, *_, completed = await collect_events(client, "Hi", store=store)
    ended = completed.completed
    found = await client.get(ended.id) if store else ended

    for response in (started.in_progress, ended, found):
        assert tuple(response.ignored_parameters) == names


async def test_responses_are_listed_without_their_output(client: ResponseClient) -> None:
    """Newest first, and not those that are not stored."""
    ids = [(await client.create("two times two?")).id for _ in range(3)]
    await client.create("two times two?", store=False)
    method = client.stub.ListResponses
    first = await client.client.call(method, pb.ListResponsesRequest(page_size=2))
    token = first.next_page_token
    rest = await client.client.call(method, pb.ListResponsesRequest(page_token=token))
    listed = [each for page in (first, rest) for each in page.responses]

    assert [each.id for each in listed] == ids[::-1]
    assert [(each.state, list(each.output)) for each in listed] == [(COMPLETED, [])] * 3


async def test_a_created_response_is_returned_and_stored(client: ResponseClient) -> None:
    response = await client.create("What is 2 + 2?", instructions="Be brief", metadata={"a": "b"})

    assert response == await client.get(response.id)
    assert (response.state, output_text(response)) == (COMPLETED, "The answer is 4")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 4)
    assert response.settings.model == "scripted"
    assert response.settings.store
    assert response.settings.instructions == "Be brief"
    assert response.HasField("complete_time")


async def test_stream_events_are_ordered_and_numbered_from_zero(client: ResponseClient) -> None:
    """The last event has the stored response; `watch` resumes after a sequence number."""
    events = await collect_events(client, "What is 2 + 2?")

    assert event_names(events) == TEXT_TURN
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].completed == await client.get(events[0].created.id)
    deltas = [event.output_text_delta.text for event in events]
    assert "".join(deltas) == "The answer is 4"
    assert [event async for event in client.watch(events[0].created.id, 3)] == events[4:]


async def test_the_previous_response_adds_its_items_but_not_its_instructions(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """`ListInputItems` returns only the new input."""
    first = await client.create("One", instructions="Be brief")
    second = await client.create("Two", previous_response_id=first.id)
    await client.create("Three", previous_response_id=second.id)

    assert model.prompt_texts() == ["One", "The answer is 4", "Two", "The answer is 4", "Three"]
    assert len((await client.input_items(second.id)).items) == 1


async def test_a_function_call_requires_its_output_in_the_next_response(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """The call is streamed; a missing output and an unknown call id are refused."""
    model.script = call_script("weather", '{"city":"Rome"}')
    events = await collect_events(client, "Weather?", tools=[WEATHER])
    response = events[-1].completed
    call = response.output[0].function_call

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
        await client.create("And?", previous_response_id=response.id)
    with pytest.raises(ToolCallMissing):
        await client.create(function_output("other", "warm"), previous_response_id=response.id)
    model.script = text_script("Sunny")
    answer = await client.create(
        function_output("call_1", "warm"), previous_response_id=response.id
    )
    assert output_text(answer) == "Sunny"
    assert model.prompt_texts() == ["Weather?", "", "warm"]


async def test_reasoning_is_streamed_as_a_summary_before_the_answer(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Its tokens are counted in the usage."""
    model.script = text_script("Four", reasoning="two and two")
    events = await collect_events(client, "What is 2 + 2?")

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


async def test_prepare_computes_the_prompt_without_an_answer(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Its messages equal those of a later create; a prompt that is too long is refused."""
    prepared = await client.prepare("One", instructions="Be brief")
    request = model.requests[-1]
    await client.create("One", instructions="Be brief")

    assert prepared.input_tokens == 10
    assert request.max_tokens == 0
    assert request.messages == model.requests[-1].messages
    model.failures = [ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=5)]
    with pytest.raises(ContextLengthExceeded):
        await client.prepare("Much")


async def test_an_answer_that_reaches_the_token_limit_is_incomplete(client: ResponseClient) -> None:
    """The partial output is kept with status incomplete."""
    events = await collect_events(client, "What is 2 + 2?", max_output_tokens=2)
    last = events[-1].incomplete

    assert event_names(events) == [*TEXT_TURN[:-1], "incomplete"]
    assert last.output[0].status == item_pb2.Item.STATUS_INCOMPLETE
    assert output_text(last) == "The answer"
    assert last.incomplete_reason == last.INCOMPLETE_REASON_MAX_OUTPUT_TOKENS


async def test_a_call_that_is_cut_off_is_incomplete(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Its arguments are the text as far as it came. It cannot be answered."""
    model.script = call_script("weather", '{"city":"Rome"}')
    events = await collect_events(client, "Weather?", tools=[WEATHER], max_output_tokens=2)
    last = events[-1].incomplete
    (item,) = last.output

    assert (item.status, item.function_call.arguments_json) == (
        item_pb2.Item.STATUS_INCOMPLETE,
        '{"cit',
    )
    assert last.incomplete_reason == last.INCOMPLETE_REASON_MAX_OUTPUT_TOKENS


async def test_a_context_length_error_is_raised_or_fails_a_background_response(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """A stream raises it before its first event."""
    error = ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=5)
    model.failures = [error, error, error]
    with pytest.raises(ContextLengthExceeded):
        await client.create("Much")
    with pytest.raises(ContextLengthExceeded):
        await collect_events(client, "Much")
    queued = await client.create("Much", background=True)
    events = [event async for event in client.watch(queued.id)]

    assert event_names(events) == ["created", "queued", "failed"]
    assert events[-1].failed.error.code == "context_length_exceeded"


async def test_a_stream_continues_without_loss_after_the_engine_dies(
    running: RunningControl, client: ResponseClient, model: ScriptedModel
) -> None:
    """The turn resumes behind the tokens already sent."""
    running.clock.step_s = 1  # so that the waits between two attempts pass
    model.failures = [2, 1]
    events = await collect_events(client, "What is 2 + 2?")

    assert event_names(events) == TEXT_TURN
    assert "".join(event.output_text_delta.text for event in events) == "The answer is 4"


async def test_a_deleted_response_is_not_found(client: ResponseClient) -> None:
    """Neither by get and delete nor as the previous response."""
    response = await client.create("One")
    await client.delete(response.id)

    with pytest.raises(ResponseNotFound):
        await client.get(response.id)
    with pytest.raises(ResponseNotFound):
        await client.delete(response.id)
    with pytest.raises(PreviousResponseNotFound):
        await client.create("Two", previous_response_id=response.id)


async def test_only_background_responses_can_be_cancelled(client: ResponseClient) -> None:
    """Cancelling a completed background response returns it unchanged."""
    response = await client.create("One")
    with pytest.raises(ResponseNotCancellable):
        await client.cancel(response.id)
    queued = await client.create("One", background=True)
    completed = [event async for event in client.watch(queued.id)][-1].completed
    assert await client.cancel(queued.id) == completed


async def test_a_cancelled_response_keeps_its_partial_output(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Its stream ends with the cancelled response."""
    reached, gate = asyncio.Event(), asyncio.Event()

    async def wait(_request: TurnRequest, number: int) -> None:
        if number == 2:
            reached.set()
            await gate.wait()

    model.before_token = wait
    queued = await client.create("What is 2 + 2?", background=True)
    events = []
    async for event in client.watch(queued.id):
        events.append(event)
        if event.output_text_delta.text == " answer":
            cancelled = await client.cancel(queued.id)

    assert cancelled.state == response_pb2.Response.STATE_CANCELLED
    assert output_text(cancelled) == "The answer"
    assert cancelled.usage.output_tokens == 2
    assert events[-1].cancelled == cancelled
    assert cancelled.output[0].status == item_pb2.Item.STATUS_INCOMPLETE


async def test_a_follower_after_the_newest_event_is_accepted_at_once(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Before the next event, so that a client knows that it is connected."""
    gate = asyncio.Event()

    async def wait(_request: TurnRequest, _number: int) -> None:
        await gate.wait()

    model.before_token = wait
    queued = await client.create("What is 2 + 2?", background=True)
    seen = []
    async for event in client.watch(queued.id):
        seen.append(event.sequence_number)
        if event.HasField("in_progress"):
            break
    request = pb.WatchResponseRequest(response_id=queued.id, after=seen[-1])
    call = client.stub.WatchResponse(request, metadata=client.client.metadata)
    metadata = await call.initial_metadata()
    gate.set()

    assert REQUEST_ID_KEY in dict(metadata)
    numbers = [message.event.sequence_number async for message in call]
    assert numbers[0] == seen[-1] + 1


async def test_closing_the_stream_cancels_a_response_that_is_not_stored(
    client: ResponseClient, model: ScriptedModel
) -> None:
    """Also if many events are waiting to be read."""
    model.script = text_script("word " * 5000)
    stream = client.stream("Say much", store=False)
    async for event in stream:
        if event.HasField("output_text_delta"):
            break
    await stream.aclose()
    await model.ended.wait()


async def test_answers_tell_what_the_limits_of_the_caller_have_left(
    running: RunningControl, client: ResponseClient
) -> None:
    """The reply of a response and the first message of a stream, for enforced limits that apply."""
    operator = Operator.of(running)
    for limit_id, fields in (
        ("calls", {}),
        ("others", {"model": "another"}),
        ("shadow", {"mode": limit_pb.Limit.MODE_SHADOW}),
    ):
        await operator.create_limit(limit_id, "REQUESTS", 60, **fields)
    await operator.lease("one", limit_pb.LimitShareRequest(limit_id="calls", required=20))
    created = await client.client.call(
        client.stub.CreateResponse,
        pb.CreateResponseRequest(new_response=new_response_message("Hi")),
    )
    request = pb.StreamResponseRequest(new_response=new_response_message("Hi", store=False))
    call = client.stub.StreamResponse(request, metadata=client.client.metadata)
    first, *others = [message async for message in call]
    compacted = await client.client.call(
        client.stub.CompactResponse, pb.CompactResponseRequest(input=[make_message("Hi")])
    )

    (status,) = created.rate_limits
    assert (status.name, status.amount, status.remaining) == ("calls", 60, 40)
    assert (status.reset.seconds, status.window.seconds) == (20, 60)
    assert [*first.rate_limits] == [*compacted.rate_limits] == [status]
    assert not any(message.rate_limits for message in others)
