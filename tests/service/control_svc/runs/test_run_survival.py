"""Runs over ends of processes, races and numbers: each ends once, and everybody sees the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_svc.inference.turns import TurnRequest
from control_svc.items.model import ItemStatus
from control_svc.jobs.handler import JobContext
from control_svc.runs.model import RunState, ToolOutput
from control_svc.tools.model import FunctionTool
from svc_kit.errors import RunNotCancellable
from tests.support.jobs import LEASE, PROJECT
from tests.support.runs import (
    FUNCTION,
    RunProcess,
    Worlds,
    begun,
    names,
    now,
    told,
)
from tests.support.scripted_turns import ScriptedTurns, calls, in_order, says

TEXT = "one two three four"
NUM_RUNS = 200


class Gate:
    """Holds a model before a token."""

    def __init__(self, at: int) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._at = at

    async def __call__(self, _request: TurnRequest, index: int) -> None:
        """Wait there until it is opened."""
        if index == self._at:
            self.reached.set()
            await self.open.wait()


@asynccontextmanager
async def dying(process: RunProcess) -> AsyncIterator[None]:
    """A process that begins the next job, and ends without a word."""
    async with process.streams.running():
        job = await process.leases.claim([process.handler.kind])
        assert job is not None
        work = process.handler.run(job.claim, JobContext(job, process.leases))
        working = asyncio.create_task(work)
        yield
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.parametrize("at", range(5))
async def test_another_process_goes_on_where_one_died(a_world: Worlds, at: int) -> None:
    """The message is stored once, its usage counted once, and who followed before the death and who
    comes after it see the same bytes."""
    gate = Gate(at)
    turns = ScriptedTurns(lambda _: says(TEXT + " five"), before_token=gate)
    world = a_world(turns)
    thread = await world.thread("Hi")
    reader = world.process("reader")
    async with reader.streams.running():
        async with asyncio.timeout(25):
            run = await begun(reader, await world.assistant(), thread)
            before = asyncio.create_task(told(reader, run))
            async with dying(world.process("a")):
                await gate.reached.wait()
            gate.open.set()
            # What it had begun to write would keep its lease by a clock that has moved on.
            await world.database.transactions.close()
            world.clock.advance(seconds=LEASE.total_seconds() + 1)
            async with world.process("b").working() as second:
                events = await told(second, run)
                ended = await now(second, run)
            assert await before == events
    [message] = await world.messages(run)

    assert ended.state is RunState.COMPLETED
    assert ended.usage.completion_tokens == 5
    assert message.message.text == TEXT + " five"
    assert message.item.status is ItemStatus.COMPLETED
    assert names(events).count("message.created") == 1
    assert names(events)[-1] == "run.completed"


@pytest.mark.parametrize("at", range(5))
async def test_cancelling_races_completion(a_world: Worlds, at: int) -> None:
    """Either the run completes and cancelling is refused, or it is cancelled: never both."""
    gate = Gate(at)
    world = a_world(ScriptedTurns(lambda _: says(TEXT), before_token=gate))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        if at < 4:
            await gate.reached.wait()
        cancelling = asyncio.create_task(process.runs.cancel(PROJECT, thread.id, run.id))
        gate.open.set()
        [outcome] = await asyncio.gather(cancelling, return_exceptions=True)
        events = await told(process, run)
        ended = await now(process, run)
    messages = await world.messages(run)
    assert len(messages) <= 1
    message = messages[0] if messages else None

    finals = {"run.completed", "run.cancelled"} & set(names(events))
    assert len(finals) == 1
    if isinstance(outcome, RunNotCancellable):
        assert ended.state is RunState.COMPLETED
    else:
        assert ended.state is RunState.CANCELLED
        assert message is None or message.item.status is not ItemStatus.IN_PROGRESS
    assert not (await world.thread_now(thread.id)).active_run_id


async def test_a_run_that_waits_too_long_expires(a_world: Worlds) -> None:
    """Nothing but waiting for outputs expires, and a wait that was answered does not."""
    turns = ScriptedTurns(in_order(calls(FUNCTION, "{}"), calls(FUNCTION, "{}", call_id="call_2")))
    world = a_world(turns)
    assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, assistant, thread)
        first = await told(process, run)
        world.clock.advance(minutes=9)
        outputs = [ToolOutput("call_1", "x")]
        gone_on = await process.runs.submit(PROJECT, thread.id, run.id, outputs, "")
        second = await told(process, run, gone_on.last_event)
        world.pass_time(minutes=9)  # the first wait would be over
        while (await process.an_end()).kind != "run-expiry":
            pass
        still = await now(process, run)
        world.pass_time(minutes=2)
        while (await process.an_end()).kind != "run-expiry":
            pass
        expired = await now(process, run)
        rest = await told(process, run, second[-1].number)

    assert names(first)[-1] == names(second)[-1] == "run.requires_action"
    assert still.state is RunState.REQUIRES_ACTION
    assert expired.state is RunState.EXPIRED
    assert names(rest) == ["step.expired", "run.expired"]
    assert not (await world.thread_now(thread.id)).active_run_id


@pytest.mark.timeout(120)  # as many runs as this are work for a machine with other things to do
async def test_two_hundred_runs_at_once_complete_once_each(a_world: Worlds) -> None:
    """None expires, none is lost, none is done twice."""
    turns = ScriptedTurns(lambda _: says("Hello"))
    world = a_world(turns)
    assistant = await world.assistant()
    async with world.process("a", concurrency=32).working(patience_s=100) as process:
        threads = [await world.thread("Hi") for _ in range(NUM_RUNS)]
        runs = [await begun(process, assistant, thread) for thread in threads]
        every = await asyncio.gather(*(told(process, run) for run in runs))

    assert [names(events)[-1] for events in every] == ["run.completed"] * NUM_RUNS
    assert len(turns.requests) == NUM_RUNS
    written = [await world.messages(run) for run in runs]
    assert [len(messages) for messages in written] == [1] * NUM_RUNS


async def test_a_run_whose_engine_dies_again_and_again_fails(a_world: Worlds) -> None:
    """Poison is contained: the run fails with what it has written."""
    turns = ScriptedTurns(lambda _: says(TEXT), troubles=[2, 0, 0, 0])
    world = a_world(turns)
    thread = await world.thread("Hi")
    async with world.process().working() as process:
        run = await begun(process, await world.assistant(), thread)
        following = asyncio.create_task(told(process, run))
        for _ in range(3):
            await process.an_end()
            world.pass_time(minutes=2)
        events = await following
        ended = await now(process, run)

    assert names(events)[-1] == "run.failed"
    assert ended.error is not None
    assert ended.error.code == "server_error"
    assert ended.usage.completion_tokens == len(turns.requests[-1].token_ids)
    for message in await world.messages(run):
        assert message.item.status is ItemStatus.INCOMPLETE
