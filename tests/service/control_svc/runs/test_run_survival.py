"""Runs under process deaths, races and load: each ends once, and all readers see the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from corral.control.v1 import run_service_pb2 as pb

from control_svc.event_log.model import BEFORE_FIRST
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import ItemStatus, Message
from control_svc.jobs.handler import JobContext
from control_svc.runs.model import Run, RunState, ToolOutput
from control_svc.tools.model import FunctionTool
from svc_kit.errors import RunNotCancellable
from tests.support.jobs import LEASE, PROJECT
from tests.support.runs import (
    FUNCTION,
    RunProcess,
    Worlds,
    cancel_run,
    create_run,
    event_names,
    get_run,
    read_events,
    submit_outputs,
)
from tests.support.scripted_turns import (
    ScriptedTurns,
    call_script,
    holding_script,
    in_order,
    text_script,
)

TEXT = "one two three four"
NUM_RUNS = 40


class Gate:
    """Blocks a model before a token."""

    def __init__(self, at: int) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._at = at

    async def __call__(self, _request: TurnRequest, index: int) -> None:
        """Wait before that token until the gate is open."""
        if index == self._at:
            self.reached.set()
            await self.open.wait()


@asynccontextmanager
async def dying(process: RunProcess) -> AsyncIterator[None]:
    """A process that starts the next job, and dies at the end of the context."""
    async with process.streams.run():
        job = await process.leases.claim([process.handler.kind])
        assert job is not None
        work = process.handler.run(job.claim, JobContext(job, process.leases))
        working = asyncio.create_task(work)
        yield
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.parametrize("at", range(5))
async def test_another_process_resumes_where_one_died(make_world: Worlds, at: int) -> None:
    """The message is stored once, its usage is counted once, and readers from before and after the
    death see the same events. The model gets back what it held back."""
    gate = Gate(at)
    turns = ScriptedTurns(lambda _: holding_script(TEXT + " five", 2), before_token=gate)
    world = make_world(turns)
    thread = await world.thread("Hi")
    reader = world.process("reader")
    async with reader.streams.run():
        async with asyncio.timeout(50):
            run = await create_run(reader, await world.assistant(), thread)
            before = asyncio.create_task(read_events(reader, run))
            async with dying(world.process("a")):
                await gate.reached.wait()
            gate.open.set()
            # A write in progress would renew the lease with the advanced clock.
            await world.database.across_projects.close()
            world.clock.advance(seconds=LEASE.total_seconds() + 1)
            async with world.process("b").run_jobs() as second:
                events = await read_events(second, run)
                ended = await get_run(second, run)
            assert await before == events
    [message] = await world.messages(run)

    assert ended.state is RunState.COMPLETED
    assert ended.usage.completion_tokens == 5
    assert message.message.text == TEXT + " five"
    assert message.item.status is ItemStatus.COMPLETED
    assert event_names(events).count("message.created") == 1
    assert event_names(events)[-1] == "run.completed"


@pytest.mark.parametrize("at", range(5))
async def test_cancelling_races_completion(make_world: Worlds, at: int) -> None:
    """Either the run completes and cancellation is refused, or it is cancelled."""
    gate = Gate(at)
    world = make_world(ScriptedTurns(lambda _: text_script(TEXT), before_token=gate))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        if at < 4:
            await gate.reached.wait()
        cancelling = asyncio.create_task(cancel_run(process, run))
        gate.open.set()
        [outcome] = await asyncio.gather(cancelling, return_exceptions=True)
        events = await read_events(process, run)
        ended = await get_run(process, run)
    messages = await world.messages(run)
    assert len(messages) <= 1
    message = messages[0] if messages else None

    finals = {"run.completed", "run.cancelled"} & set(event_names(events))
    assert len(finals) == 1
    if isinstance(outcome, RunNotCancellable):
        assert ended.state is RunState.COMPLETED
    else:
        assert ended.state is RunState.CANCELLED
        assert message is None or message.item.status is not ItemStatus.IN_PROGRESS
    assert not (await world.get_thread(thread.id)).active_run_id


async def test_a_run_that_waits_too_long_expires(make_world: Worlds) -> None:
    """A wait that was answered does not expire."""
    turns = ScriptedTurns(
        in_order(call_script(FUNCTION, "{}"), call_script(FUNCTION, "{}", call_id="call_2"))
    )
    world = make_world(turns)
    assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, assistant, thread)
        first = await read_events(process, run)
        world.clock.advance(minutes=9)
        outputs = [ToolOutput("call_1", "x")]
        submitted = await submit_outputs(process, run, outputs)
        second = await read_events(process, run, submitted.last_event)
        world.pass_time(minutes=9)  # the first wait would have expired
        while (await process.next_end()).kind != "run-expiry":
            pass
        still = await get_run(process, run)
        world.pass_time(minutes=2)
        while (await process.next_end()).kind != "run-expiry":
            pass
        expired = await get_run(process, run)
        rest = await read_events(process, run, second[-1].number)

    assert event_names(first)[-1] == event_names(second)[-1] == "run.requires_action"
    assert still.state is RunState.REQUIRES_ACTION
    assert expired.state is RunState.EXPIRED
    assert event_names(rest) == ["step.expired", "run.expired"]
    assert not (await world.get_thread(thread.id)).active_run_id


@pytest.mark.timeout(120)  # slow on a busy machine
async def test_more_runs_than_a_process_takes_at_once_complete_once_each(
    make_world: Worlds,
) -> None:
    """None expires, is lost or is executed twice."""
    turns = ScriptedTurns(lambda _: text_script("Hello"))
    world = make_world(turns)
    assistant = await world.assistant()
    async with world.process("a", concurrency=32).run_jobs(patience_s=100) as process:
        threads = [await world.thread("Hi") for _ in range(NUM_RUNS)]
        runs = [await create_run(process, assistant, thread) for thread in threads]
        streams = await asyncio.gather(*(read_events(process, run) for run in runs))

    assert [event_names(events)[-1] for events in streams] == ["run.completed"] * NUM_RUNS
    assert len(turns.requests) == NUM_RUNS
    assert [len(await world.messages(run)) for run in runs] == [1] * NUM_RUNS


@pytest.mark.parametrize("shown", [0, 1], ids=["nothing shown", "a word shown"])
async def test_a_turn_without_token_ids_goes_on_only_if_nothing_was_shown(
    make_world: Worlds, shown: int
) -> None:
    """Otherwise its text would be doubled."""
    seen = asyncio.Event()

    async def wait_until_seen(_: TurnRequest, index: int) -> None:
        if shown and index:
            await seen.wait()

    async def see(process: RunProcess, run: Run) -> None:
        request = pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id, after=BEFORE_FIRST)
        async for batch in process.runs.WatchRun(PROJECT, request):
            if any(each.event.HasField("message_delta") for each in batch):
                seen.set()

    script = replace(text_script(TEXT), has_ids=False)
    turns = ScriptedTurns(lambda _: script, [2 * shown], wait_until_seen)
    world = make_world(turns)
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        watching = asyncio.create_task(see(process, run))
        following = asyncio.create_task(read_events(process, run))
        await process.next_end()
        world.pass_time(minutes=2)
        events = await following
        await watching
        ended = await get_run(process, run)
        (message,) = await world.messages(run)

    assert isinstance(message.item.content, Message)
    text = message.item.content.text
    if shown:
        assert event_names(events)[-1] == "run.failed"
        assert ended.error is not None
        assert "text mode" in ended.error.message
        assert text in ("one", "one two")
    else:
        assert event_names(events)[-1] == "run.completed"
        assert text == TEXT
    assert len(turns.requests) == (1 if shown else 2)


async def test_a_run_fails_if_its_engine_dies_repeatedly(make_world: Worlds) -> None:
    """It keeps the text and usage so far."""
    turns = ScriptedTurns(lambda _: text_script(TEXT), failures=[2, 0, 0, 0])
    world = make_world(turns)
    thread = await world.thread("Hi")
    async with world.process().run_jobs() as process:
        run = await create_run(process, await world.assistant(), thread)
        following = asyncio.create_task(read_events(process, run))
        for _ in range(3):
            await process.next_end()
            world.pass_time(minutes=2)
        events = await following
        ended = await get_run(process, run)

    assert event_names(events)[-1] == "run.failed"
    assert ended.error is not None
    assert ended.error.code == "server_error"
    assert ended.usage.completion_tokens == len(turns.requests[-1].token_ids)
    for message in await world.messages(run):
        assert message.item.status is ItemStatus.INCOMPLETE
