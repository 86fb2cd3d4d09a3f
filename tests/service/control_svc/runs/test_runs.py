"""Runs on both databases: what is told and kept, in which order, and how runs end."""

import asyncio

import pytest

from control_svc.inference.turns import ChoiceMode, TurnUsage
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
from tests.support.jobs import PROJECT
from tests.support.runs import (
    FUNCTION,
    FixedSearch,
    Worlds,
    begun,
    names,
    now,
    steps_of,
    told,
)
from tests.support.scripted_turns import ScriptedTurns, calls, in_order, says

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


async def test_an_answer_is_told_in_order_and_kept(a_world: Worlds) -> None:
    """Events come in OpenAI's order, and the message, its step and the usage are kept once."""
    world = a_world(ScriptedTurns(lambda _: says("Hello there")))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(instructions="Be kind"), thread)
        events = await told(process, run)
        ended = await now(process, run)
        steps = await steps_of(process, run)
    [message] = await world.messages(run)

    assert names(events) == ANSWER
    assert [event.number for event in events] == list(range(len(events)))
    assert ended.state is RunState.COMPLETED
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (10, 2)
    assert message.message.text == "Hello there"
    assert message.item.status is ItemStatus.COMPLETED
    assert [step.state for step in steps] == [StepState.COMPLETED]
    assert steps[0].details == MessageCreation(message_id=message.id)
    assert steps[0].usage == ended.usage
    assert not (await world.thread_now(thread.id)).active_run_id


async def test_a_thought_is_kept_before_its_answer(a_world: Worlds) -> None:
    """The timeline holds what the model thought, in the order in which it did."""
    world = a_world(ScriptedTurns(lambda _: says("Yes", thinks="let me see")))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        events = await told(process, run)

    assert names(events).count("reasoning_delta") == 3
    contents = [item.content for item in await world.items(thread.id)]
    assert [type(content) for content in contents] == [Message, Reasoning, Message]


async def test_a_model_may_write_the_id_of_a_call_again(a_world: Worlds) -> None:
    """One that was answered: some count their calls anew in every turn. The run waits for the
    second call as for the first."""
    cities = ("Rome", "Oslo")
    asked = [calls(FUNCTION, f'{{"city":"{city}"}}') for city in cities]
    world = a_world(ScriptedTurns(in_order(*asked, says("Both sunny"))))
    thread = await world.thread("Weather?")
    waited = []
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(tools=(WEATHER,)), thread)
        events = await told(process, run)
        for _ in cities:
            waited += [call.arguments for call in (await now(process, run)).calls]
            outputs = [ToolOutput("call_1", "sun")]
            submitted = await process.runs.submit(PROJECT, thread.id, run.id, outputs, "")
            events = await told(process, run, submitted.last_event)

    assert waited == ['{"city":"Rome"}', '{"city":"Oslo"}']
    assert names(events)[-1] == "run.completed"


async def test_calls_wait_for_their_outputs_and_the_run_goes_on(a_world: Worlds) -> None:
    """A run that calls functions waits, takes all outputs at once, and answers with them."""
    turns = ScriptedTurns(in_order(calls(FUNCTION, '{"city":"Rome"}'), says("Sunny")))
    world = a_world(turns)
    thread = await world.thread("Weather?")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(tools=(WEATHER,)), thread)
        first = await told(process, run)
        waiting = await now(process, run)
        with pytest.raises(ToolOutputsIncomplete, match="call_1"):
            await process.runs.submit(PROJECT, thread.id, run.id, [], "")
        outputs = [ToolOutput("call_1", "sun")]
        submitted = await process.runs.submit(PROJECT, thread.id, run.id, outputs, "once")
        rest = await told(process, run, submitted.last_event)
        again = await process.runs.submit(PROJECT, thread.id, run.id, outputs, "once")
        with pytest.raises(ToolOutputsNotAccepted):
            await process.runs.submit(PROJECT, thread.id, run.id, outputs, "")
        everything = await told(process, run)
        ended = await now(process, run)
        steps = await steps_of(process, run)

    assert names(first)[-1] == "run.requires_action"
    assert waiting.calls == (
        FunctionCall(call_id="call_1", name=FUNCTION, arguments='{"city":"Rome"}'),
    )
    assert names(rest)[:3] == ["step.completed", "run.queued", "run.in_progress"]
    assert names(rest)[-1] == "run.completed"
    assert everything == [*first, *rest]
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


async def test_a_thread_has_one_active_run(a_world: Worlds) -> None:
    """A second run is refused with OpenAI's words while the first is active."""
    world = a_world(ScriptedTurns(lambda _: says("Hello")))
    process, assistant = world.process(), await world.assistant()
    thread = await world.thread("Hi")
    run = await begun(process, assistant, thread)

    with pytest.raises(RunActive, match=f"Thread {thread.id} already has an active run {run.id}"):
        await begun(process, assistant, thread)


async def test_a_choice_names_a_tool_of_the_run(a_world: Worlds) -> None:
    """Another one would let the model call what was not asked for."""
    world = a_world(ScriptedTurns(in_order(says("Hi"))))
    assistant, thread = await world.assistant(tools=(WEATHER,)), await world.thread("Hi")
    process = world.process()
    choice = ToolChoice(mode=ChoiceMode.REQUIRED, allowed_names=("get_time",), is_one=True)
    with pytest.raises(InvalidField, match="'get_time' is not among 'tools'"):
        await begun(process, assistant, thread, choice=choice)

    assert not (await world.thread_now(thread.id)).active_run_id


async def test_a_queued_run_is_cancelled_by_its_worker(a_world: Worlds) -> None:
    """A cancelled run ends with cancelling and cancelled, and frees its thread."""
    world = a_world(ScriptedTurns(lambda _: says("Hello")))
    process, thread = world.process(), await world.thread("Hi")
    run = await begun(process, await world.assistant(), thread)
    cancelling = await process.runs.cancel(PROJECT, thread.id, run.id)
    async with process.working():
        events = await told(process, run)
    ended = await now(process, run)

    assert cancelling.state is RunState.CANCELLING
    assert names(events) == ["run.created", "run.queued", "run.cancelling", "run.cancelled"]
    assert ended.state is RunState.CANCELLED
    assert not (await world.thread_now(thread.id)).active_run_id
    with pytest.raises(RunNotCancellable, match="Cannot cancel run with status 'cancelled'"):
        await process.runs.cancel(PROJECT, thread.id, run.id)


async def test_a_cancelled_run_keeps_what_it_has_said(a_world: Worlds) -> None:
    """The message of a run that is cancelled in the middle is incomplete, with its text."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold(_request: object, index: int) -> None:
        if index == 2:
            reached.set()
            await never.wait()

    world = a_world(ScriptedTurns(lambda _: says("one two three"), before_token=hold))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        await reached.wait()
        await process.runs.cancel(PROJECT, thread.id, run.id)
        events = await told(process, run)
        ended = await now(process, run)
        [step] = await steps_of(process, run)
    [message] = await world.messages(run)

    assert names(events)[-4:] == [
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


async def test_a_waiting_run_is_cancelled_at_once(a_world: Worlds) -> None:
    """Nobody works on a run that waits, so the caller's transaction ends it."""
    world = a_world(ScriptedTurns(lambda _: calls(FUNCTION, "{}")))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(tools=(WEATHER,)), thread)
        first = await told(process, run)
        cancelled = await process.runs.cancel(PROJECT, thread.id, run.id)
        rest = await told(process, run, first[-1].number)

    assert cancelled.state is RunState.CANCELLED
    assert names(rest) == ["step.cancelled", "run.cancelled"]


async def test_what_the_model_refuses_fails_the_run(a_world: Worlds) -> None:
    """An error that another attempt would meet again is the run's, in OpenAI's words."""
    turns = ScriptedTurns(lambda _: says("Hello"), troubles=[ModelNotFound(model="m")])
    world = a_world(turns)
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        events = await told(process, run)
        ended = await now(process, run)

    assert names(events)[-1] == "run.failed"
    assert ended.error is not None
    assert "'m' does not exist" in ended.error.message
    assert not (await world.thread_now(thread.id)).active_run_id


async def test_the_tokens_of_a_turn_that_fails_are_counted(a_world: Worlds) -> None:
    """What the model was shown and wrote until then is the run's, and the step's."""

    async def fail(_request: object, index: int) -> None:
        if index == 2:
            raise ModelNotFound(model="m")

    world = a_world(ScriptedTurns(lambda _: says("one two three"), before_token=fail))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        await told(process, run)
        ended = await now(process, run)
        [step] = await steps_of(process, run)

    assert ended.state is RunState.FAILED
    assert ended.usage == TurnUsage(10, 0, 2, 0)
    assert (step.state, step.usage) == (StepState.FAILED, ended.usage)


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_an_engine_that_dies_costs_no_word(a_world: Worlds, after: int) -> None:
    """The next attempt goes on at the token: one message, usage counted once, no word twice."""
    turns = ScriptedTurns(lambda _: says("one two three"), troubles=[after])
    world = a_world(turns)
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        following = asyncio.create_task(told(process, run))
        await process.an_end()
        world.pass_time(minutes=2)
        events = await following
        ended = await now(process, run)
    [message] = await world.messages(run)

    assert len(turns.requests) == 2
    assert len(turns.requests[1].token_ids) <= after
    assert message.message.text == "one two three"
    assert ended.usage.completion_tokens == 3
    assert names(events).count("message_delta") == 3
    assert names(events)[-1] == "run.completed"


async def test_a_search_is_carried_out_and_cited(a_world: Worlds) -> None:
    """The server searches, shows the model what it found, and turns its numbers into citations."""
    turns = ScriptedTurns(
        in_order(calls("file_search", '{"queries":["answer"]}'), says("It is 42 [0]."))
    )
    world = a_world(turns)
    filters = '{"type":"eq","key":"lang","value":"de"}'
    tools, stores = (
        (FileSearchTool(filters_json=filters),),
        ToolResources(vector_store_ids=("vs_1",)),
    )
    assistant = await world.assistant(tools=tools, resources=stores)
    thread = await world.thread("What is the answer?")
    hit = SearchHit(
        file_id="file-1", filename="a.txt", score=0.5, attributes={}, texts=("It is 42.",)
    )
    search = FixedSearch(hit)
    async with world.process(search=search).working() as process:
        run = await begun(process, assistant, thread)
        events = await told(process, run)
        ended = await now(process, run)
        steps = await steps_of(process, run)
    [message] = await world.messages(run)
    [text] = message.message.content

    assert search.asked == [("answer",)]
    assert search.filters == [Comparison("lang", Comparator.EQ, "de")]
    assert ended.state is RunState.COMPLETED
    assert [step.state for step in steps] == [StepState.COMPLETED] * 2
    assert isinstance(steps[0].details, ToolCalls)
    [call] = steps[0].details.calls
    assert isinstance(call, FileSearchStepCall)
    assert [found.text for found in call.results or ()] == ["It is 42."]
    assert isinstance(text, Text)
    assert [(each.marker, each.file_id) for each in text.annotations] == [("[0]", "file-1")]
    assert names(events)[-5:] == [
        "message_delta",
        "message_delta",
        "message.completed",
        "step.completed",
        "run.completed",
    ]
    kinds = [item.kind for item in await world.items(thread.id)]
    assert kinds == ["message", "file_search_call", "message"]


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_an_engine_that_dies_over_a_search_costs_nothing(a_world: Worlds, after: int) -> None:
    """A call whose arguments were half written goes on, and the search is carried out."""
    script = in_order(calls("file_search", '{"queries":["answer"]}'), says("Nothing"))
    turns = ScriptedTurns(script, troubles=[after])
    world = a_world(turns)
    tools, stores = (FileSearchTool(),), ToolResources(vector_store_ids=("vs_1",))
    assistant = await world.assistant(tools=tools, resources=stores)
    thread = await world.thread("What is the answer?")
    search = FixedSearch()
    async with world.process(search=search).working() as process:
        run = await begun(process, assistant, thread)
        following = asyncio.create_task(told(process, run))
        await process.an_end()
        world.pass_time(minutes=2)
        events = await following

    assert search.asked == [("answer",)]
    assert names(events)[-1] == "run.completed"
    assert names(events).count("step.created") == 2
