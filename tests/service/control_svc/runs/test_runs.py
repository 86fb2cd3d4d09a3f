"""Runs on both databases: their events, messages and steps, and how they end."""

import asyncio
from dataclasses import replace

import pytest
from corral.inference.v1.chat_pb2 import ToolCallDelta
from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.inference.turns import ChoiceMode, FinishReason, TurnUsage
from control_svc.items.model import (
    FunctionCall,
    FunctionCallOutput,
    ItemStatus,
    Message,
    Reasoning,
    Text,
)
from control_svc.runs.model import RunState, ToolOutput
from control_svc.runs.steps import FileSearchStepCall, MessageCreation, StepState, ToolCalls
from control_svc.tools.model import FileSearchTool, FunctionTool, ToolChoice, ToolResources
from control_svc.vector_stores.filters import Comparator, Comparison
from control_svc.vector_stores.search.model import SearchHit
from svc_kit.errors import (
    InvalidField,
    ModelNotFound,
    RunActive,
    RunNotCancellable,
    ToolOutputsIncomplete,
    ToolOutputsNotAccepted,
)
from tests.support.runs import (
    FUNCTION,
    FixedSearch,
    Worlds,
    cancel_run,
    create_run,
    event_names,
    execute_run,
    get_run,
    list_steps,
    read_events,
    submit_outputs,
)
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, in_order, text_script

WEATHER = FunctionTool(name=FUNCTION)
ANSWER = [
    "run.created",
    "run.queued",
    "run.in_progress",
    "step.created",
    "step.in_progress",
    "message.created",
    "message.in_progress",
    "message_delta",
    "message_delta",
    "message.completed",
    "step.completed",
    "run.completed",
]


async def test_an_answer_is_streamed_and_stored(make_world: Worlds) -> None:
    """Events have OpenAI's order; the message, its step and the usage are stored once."""
    world = make_world(ScriptedTurns(lambda _: text_script("Hello there")))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        ended, events = await execute_run(
            process, await world.assistant(instructions="Be kind"), thread
        )
        steps = await list_steps(process, ended)
    [message] = await world.messages(ended)

    assert event_names(events) == ANSWER
    assert [event.number for event in events] == list(range(len(events)))
    assert ended.state is RunState.COMPLETED
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (10, 2)
    assert message.message.text == "Hello there"
    assert message.item.status is ItemStatus.COMPLETED
    assert [step.state for step in steps] == [StepState.COMPLETED]
    assert steps[0].details == MessageCreation(message_id=message.id)
    assert steps[0].usage == ended.usage
    assert not (await world.get_thread(thread.id)).active_run_id


async def test_what_a_model_does_not_enforce_is_named(make_world: Worlds) -> None:
    """The run has the names once its turn has ended, and in its last event. They may have any
    characters: callers name the members of schemas."""
    names = ("tools[1].function.parameters", "a\x00b", "a\nb\u2028c", "")
    script = replace(text_script("Hello"), ignored=names)
    world = make_world(ScriptedTurns(lambda _: script))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        ended, events = await execute_run(process, await world.assistant(), thread)

    assert ended.ignored_parameters == names
    assert tuple(events[-1].event.run_changed.run.ignored_parameters) == names


async def test_reasoning_is_stored_before_its_answer(make_world: Worlds) -> None:
    """The timeline contains the items in the order of the output."""
    world = make_world(ScriptedTurns(lambda _: text_script("Yes", reasoning="let me see")))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        events = await read_events(process, run)

    assert event_names(events).count("reasoning_delta") == 3
    contents = [item.content for item in await world.items(thread.id)]
    assert [type(content) for content in contents] == [Message, Reasoning, Message]


async def test_a_batch_with_the_end_of_a_call_and_text_tears_neither(make_world: Worlds) -> None:
    """The call is whole, its output is accepted, and the model gets both back."""
    begin = ToolCallDelta(id="call_1", name=FUNCTION, arguments_json='{"city"')
    end = ToolCallDelta(arguments_json=':"Rome"}')
    deltas = [
        ChatDelta(tool_calls=[begin]),
        ChatDelta(tool_calls=[end], is_continued=True),
        ChatDelta(content="Wait."),
    ]
    turns = ScriptedTurns(in_order(Script(deltas, FinishReason.TOOL_CALLS), text_script("Sunny")))
    world = make_world(turns)
    thread = await world.thread("Weather?")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(tools=(WEATHER,)), thread)
        await read_events(process, run)
        waiting = await get_run(process, run)
        outputs = [ToolOutput("call_1", "sun")]
        submitted = await submit_outputs(process, run, outputs)
        events = await read_events(process, run, submitted.last_event)

    assert [call.arguments for call in waiting.calls] == ['{"city":"Rome"}']
    assert event_names(events)[-1] == "run.completed"
    sent = turns.requests[-1].messages
    assert [call.arguments for each in sent for call in each.calls] == ['{"city":"Rome"}']
    assert "Wait." in str(sent)


async def test_a_model_may_reuse_the_id_of_an_answered_call(make_world: Worlds) -> None:
    """Some models number the calls of each turn from the start. The run waits for both calls."""
    cities = ("Rome", "Oslo")
    scripts = [call_script(FUNCTION, f'{{"city":"{city}"}}') for city in cities]
    world = make_world(ScriptedTurns(in_order(*scripts, text_script("Both sunny"))))
    thread = await world.thread("Weather?")
    arguments = []
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(tools=(WEATHER,)), thread)
        events = await read_events(process, run)
        for _ in cities:
            arguments += [call.arguments for call in (await get_run(process, run)).calls]
            outputs = [ToolOutput("call_1", "sun")]
            submitted = await submit_outputs(process, run, outputs)
            events = await read_events(process, run, submitted.last_event)

    assert arguments == ['{"city":"Rome"}', '{"city":"Oslo"}']
    assert event_names(events)[-1] == "run.completed"


async def test_a_run_waits_for_outputs_and_resumes(make_world: Worlds) -> None:
    """Outputs are accepted once and all together; the model then answers."""
    turns = ScriptedTurns(in_order(call_script(FUNCTION, '{"city":"Rome"}'), text_script("Sunny")))
    world = make_world(turns)
    thread = await world.thread("Weather?")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(tools=(WEATHER,)), thread)
        first = await read_events(process, run)
        waiting = await get_run(process, run)
        with pytest.raises(ToolOutputsIncomplete, match="call_1"):
            await submit_outputs(process, run, [])
        outputs = [ToolOutput("call_1", "sun")]
        submitted = await submit_outputs(process, run, outputs, "once")
        rest = await read_events(process, run, submitted.last_event)
        again = await submit_outputs(process, run, outputs, "once")
        with pytest.raises(ToolOutputsNotAccepted):
            await submit_outputs(process, run, outputs)
        all_events = await read_events(process, run)
        ended = await get_run(process, run)
        steps = await list_steps(process, run)

    assert event_names(first)[-1] == "run.requires_action"
    assert waiting.calls == (
        FunctionCall(call_id="call_1", name=FUNCTION, arguments='{"city":"Rome"}'),
    )
    assert event_names(rest)[:3] == ["step.completed", "run.queued", "run.in_progress"]
    assert event_names(rest)[-1] == "run.completed"
    assert all_events == [*first, *rest]
    assert again.last_event == submitted.last_event
    assert ended.state is RunState.COMPLETED
    assert ended.usage.completion_tokens == 5
    assert [step.usage.completion_tokens for step in steps] == [4, 1]
    assert [step.usage.prompt_tokens for step in steps] == [10, 10]
    details = steps[0].details
    assert isinstance(details, ToolCalls)
    assert [call.output for call in details.calls] == ["sun"]  # type: ignore[union-attr]
    kinds = [item.kind for item in await world.items(thread.id)]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert isinstance((await world.items(thread.id))[2].content, FunctionCallOutput)


async def test_a_thread_has_one_active_run(make_world: Worlds) -> None:
    """A second run is refused while the first is active, with OpenAI's text."""
    world = make_world(ScriptedTurns(lambda _: text_script("Hello")))
    process, assistant = world.process(), await world.assistant()
    thread = await world.thread("Hi")
    run = await create_run(process, assistant, thread)

    with pytest.raises(RunActive, match=f"Thread {thread.id} already has an active run {run.id}"):
        await create_run(process, assistant, thread)


async def test_a_choice_of_an_unknown_tool_is_refused(make_world: Worlds) -> None:
    """No run is created."""
    world = make_world(ScriptedTurns(in_order(text_script("Hi"))))
    assistant, thread = await world.assistant(tools=(WEATHER,)), await world.thread("Hi")
    process = world.process()
    choice = ToolChoice(mode=ChoiceMode.REQUIRED, allowed_names=("get_time",), is_one=True)
    with pytest.raises(InvalidField, match="'get_time' is not among 'tools'"):
        await create_run(process, assistant, thread, choice=choice)

    assert not (await world.get_thread(thread.id)).active_run_id


async def test_a_queued_run_is_cancelled_by_its_worker(make_world: Worlds) -> None:
    """The run ends with cancelling and cancelled, and its thread is unlocked."""
    world = make_world(ScriptedTurns(lambda _: text_script("Hello")))
    process, thread = world.process(), await world.thread("Hi")
    run = await create_run(process, await world.assistant(), thread)
    cancelling = await cancel_run(process, run)
    async with process.run_jobs():
        events = await read_events(process, run)
    ended = await get_run(process, run)

    assert cancelling.state is RunState.CANCELLING
    assert event_names(events) == ["run.created", "run.queued", "run.cancelling", "run.cancelled"]
    assert ended.state is RunState.CANCELLED
    assert not (await world.get_thread(thread.id)).active_run_id
    with pytest.raises(RunNotCancellable, match="Cannot cancel run with status 'cancelled'"):
        await cancel_run(process, run)


async def test_a_cancelled_run_keeps_its_text(make_world: Worlds) -> None:
    """The message in progress becomes incomplete, with the text written so far."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold(_request: object, index: int) -> None:
        if index == 2:
            reached.set()
            await never.wait()

    world = make_world(ScriptedTurns(lambda _: text_script("one two three"), before_token=hold))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        await reached.wait()
        await cancel_run(process, run)
        events = await read_events(process, run)
        ended = await get_run(process, run)
        [step] = await list_steps(process, run)
    [message] = await world.messages(run)

    assert event_names(events)[-4:] == [
        "run.cancelling",
        "message.incomplete",
        "step.cancelled",
        "run.cancelled",
    ]
    assert message.message.text == "one two"
    assert message.item.status is ItemStatus.INCOMPLETE
    assert step.state is StepState.CANCELLED
    assert step.usage == ended.usage
    assert ended.usage.completion_tokens == 2


async def test_a_waiting_run_is_cancelled_at_once(make_world: Worlds) -> None:
    """No worker executes a waiting run, so the caller's transaction ends it."""
    world = make_world(ScriptedTurns(lambda _: call_script(FUNCTION, "{}")))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(tools=(WEATHER,)), thread)
        first = await read_events(process, run)
        cancelled = await cancel_run(process, run)
        rest = await read_events(process, run, first[-1].number)

    assert cancelled.state is RunState.CANCELLED
    assert event_names(rest) == ["step.cancelled", "run.cancelled"]


async def test_a_permanent_error_fails_the_run(make_world: Worlds) -> None:
    """The run has the message of the error, and its thread is unlocked."""
    turns = ScriptedTurns(lambda _: text_script("Hello"), failures=[ModelNotFound(model="m")])
    world = make_world(turns)
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        ended, events = await execute_run(process, await world.assistant(), thread)

    assert event_names(events)[-1] == "run.failed"
    assert ended.error is not None
    assert "'m' does not exist" in ended.error.message
    assert not (await world.get_thread(thread.id)).active_run_id


async def test_the_tokens_of_a_failed_turn_are_counted(make_world: Worlds) -> None:
    """Prompt and output tokens, in the usage of the run and of the step."""

    async def fail(_request: object, index: int) -> None:
        if index == 2:
            raise ModelNotFound(model="m")

    world = make_world(ScriptedTurns(lambda _: text_script("one two three"), before_token=fail))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        ended, _ = await execute_run(process, await world.assistant(), thread)
        [step] = await list_steps(process, ended)

    assert ended.state is RunState.FAILED
    assert ended.usage == TurnUsage(10, 0, 2, 0)
    assert (step.state, step.usage) == (StepState.FAILED, ended.usage)


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_run_survives_the_death_of_the_engine(make_world: Worlds, after: int) -> None:
    """The next attempt resumes at the token: one message, and usage is counted once."""
    turns = ScriptedTurns(lambda _: text_script("one two three"), failures=[after])
    world = make_world(turns)
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        following = asyncio.create_task(read_events(process, run))
        await process.next_end()
        world.pass_time(minutes=2)
        events = await following
        ended = await get_run(process, run)
    [message] = await world.messages(run)

    assert len(turns.requests) == 2
    assert len(turns.requests[1].token_ids) <= after
    assert message.message.text == "one two three"
    assert ended.usage.completion_tokens == 3
    assert event_names(events).count("message_delta") == 3
    assert event_names(events)[-1] == "run.completed"


async def test_a_search_is_executed_and_cited(make_world: Worlds) -> None:
    """The results are in the prompt, and numbers in the answer become citations."""
    turns = ScriptedTurns(
        in_order(call_script("file_search", '{"queries":["answer"]}'), text_script("It is 42 [0]."))
    )
    world = make_world(turns)
    filters = '{"type":"eq","key":"lang","value":"de"}'
    assistant = await world.assistant(
        tools=(FileSearchTool(filters_json=filters),),
        resources=ToolResources(vector_store_ids=("vs_1",)),
    )
    thread = await world.thread("What is the answer?")
    hit = SearchHit(
        file_id="file-1", filename="a.txt", score=0.5, attributes={}, texts=("It is 42.",)
    )
    search = FixedSearch(hit)
    async with world.process(search=search).run_jobs() as process:
        ended, events = await execute_run(process, assistant, thread)
        steps = await list_steps(process, ended)
    [message] = await world.messages(ended)
    [text] = message.message.content

    assert search.queries == [("answer",)]
    assert search.filters == [Comparison("lang", Comparator.EQ, "de")]
    assert ended.state is RunState.COMPLETED
    assert [step.state for step in steps] == [StepState.COMPLETED] * 2
    assert isinstance(steps[0].details, ToolCalls)
    [call] = steps[0].details.calls
    assert isinstance(call, FileSearchStepCall)
    assert [found.text for found in call.results or ()] == ["It is 42."]
    assert isinstance(text, Text)
    assert [(each.marker, each.file_id) for each in text.annotations] == [("[0]", "file-1")]
    assert event_names(events)[-5:] == [
        "message_delta",
        "message_delta",
        "message.completed",
        "step.completed",
        "run.completed",
    ]
    kinds = [item.kind for item in await world.items(thread.id)]
    assert kinds == ["message", "file_search_call", "message"]


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_search_survives_the_death_of_the_engine(make_world: Worlds, after: int) -> None:
    """A call with incomplete arguments is resumed, and the search is executed once."""
    script = in_order(call_script("file_search", '{"queries":["answer"]}'), text_script("Nothing"))
    turns = ScriptedTurns(script, failures=[after])
    world = make_world(turns)
    tools, stores = (FileSearchTool(),), ToolResources(vector_store_ids=("vs_1",))
    assistant = await world.assistant(tools=tools, resources=stores)
    thread = await world.thread("What is the answer?")
    search = FixedSearch()
    async with world.process(search=search).run_jobs() as process:
        run = await create_run(process, assistant, thread)
        following = asyncio.create_task(read_events(process, run))
        await process.next_end()
        world.pass_time(minutes=2)
        events = await following

    assert search.queries == [("answer",)]
    assert event_names(events)[-1] == "run.completed"
    assert event_names(events).count("step.created") == 2
