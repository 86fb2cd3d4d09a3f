"""Runs under workers that stall, die and come back late, callers who cancel and answer at any
token, and a clock that lets waits expire: over a real database. Hypothesis chooses what happens;
what must hold of a run is checked beside every step, and once all of them have ended.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control_svc.assistants.message_model import NewMessage
from control_svc.assistants.model import Assistant, Thread
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.event_log.queries import StreamQueries
from control_svc.inference.turns import TurnRequest, TurnRole
from control_svc.items.model import ItemStatus, Role, Text
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LONGEST_BACKOFF, MAX_ATTEMPTS, JobState, LeaseLost
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import RunChanged, RunEvent
from control_svc.runs.model import Run, RunState, ToolOutput
from control_svc.runs.queries import RunEventDocuments
from control_svc.runs.transitions import EXPIRY_KIND, RunExpiry
from control_svc.runs.worker import KIND
from control_svc.tools.model import FunctionTool
from svc_kit.errors import RunActive, RunNotCancellable, ToolOutputsNotAccepted
from tests.support.control import SetClock
from tests.support.job_machine import START, OpenDatabase
from tests.support.jobs import LEASE, PROJECT
from tests.support.runs import FUNCTION, WAIT, RunProcess, RunWorld, begun, now
from tests.support.scripted_turns import Script, ScriptedTurns, calls, says

ResultT = TypeVar("ResultT")
PROCESSES = st.sampled_from("ab")
THREADS = st.sampled_from([0, 1])
CALL, ANSWER = calls(FUNCTION, "{}"), says("one two three")
OUTPUTS = [ToolOutput("call_1", "x")]
ALWAYS = 1 << 30


class Step(StrEnum):
    """What may happen."""

    ASK = "ask"
    CANCEL = "cancel"
    SUBMIT = "submit"
    WORK = "work"
    SPEAK = "speak"
    HEAR = "hear"
    DIE = "die"
    TAKE_OVER = "take over"
    TIME_PASSES = "time passes"


OFTEN = (Step.ASK, Step.SUBMIT, Step.WORK, Step.SPEAK, Step.SPEAK, Step.SPEAK, Step.TAKE_OVER)
STEPS = st.sampled_from([*OFTEN, *Step])


@dataclass(eq=False)
class Attempt:
    """A worker's attempt at a run, which says as many tokens as it is allowed to."""

    process: "Process"
    context: JobContext
    num_allowed: int = 0
    is_held: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        handler = self.process.parts.handler
        self.work = asyncio.create_task(handler.run(self.context.claim, self.context))

    async def hold(self) -> None:
        """Wait for the leave to say a token."""
        while not self.num_allowed:
            self.goes_on.clear()
            self.is_held.set()
            await self.goes_on.wait()
        self.num_allowed -= 1

    async def settle(self, num_tokens: int = 0) -> None:
        """Say some tokens, and come to rest: before the next one, or at the end."""
        if num_tokens:
            self.num_allowed = num_tokens
            self.is_held.clear()
            self.goes_on.set()
        held = asyncio.create_task(self.is_held.wait())
        await asyncio.wait([self.work, held], return_when=asyncio.FIRST_COMPLETED)
        held.cancel()


@dataclass(eq=False)
class Process:
    """A process, with what is lost when it dies."""

    parts: RunProcess
    stack: AsyncExitStack
    attempts: list[Attempt] = field(default_factory=list)


@dataclass
class Known:
    """What must be so of a run."""

    run: Run
    """As it was seen last."""
    is_given_up: bool = False
    """Somebody was told that it will be cancelled."""
    is_answered: bool = False
    """Somebody was told that its outputs have been taken."""
    num_lost: int = 0
    """How often its worker was lost: a job is given up after some."""


class RunMachine(RuleBasedStateMachine):
    """Two processes and two threads: the runs of the first call a function before they answer."""

    open_database: OpenDatabase

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock(START)
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        database = self.do(self.stack.enter_async_context(type(self).open_database(self.clock)))
        turns = ScriptedTurns(_script, before_token=self.before_token)
        self.world = RunWorld(database, turns, self.clock)
        self.lives = 0
        self.known: dict[str, Known] = {}
        self.latest: dict[int, Run] = {}
        self.assistants: list[Assistant] = []
        self.threads: list[Thread] = []
        for tools in ((FunctionTool(name=FUNCTION),), ()):
            self.assistants.append(self.do(self.world.assistant(tools=tools)))
            self.threads.append(self.do(self.world.thread()))
        self.processes = {name: self.do(self.start(name)) for name in "ab"}

    def do(self, step: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a step to its end."""
        return self.loop.run(step)

    async def start(self, name: str) -> Process:
        """A process begins."""
        self.lives += 1
        parts, stack = self.world.process(f"{name}{self.lives}"), AsyncExitStack()
        await stack.enter_async_context(parts.streams.running())
        return Process(parts, stack)

    async def before_token(self, _request: TurnRequest, _index: int) -> None:
        """A worker waits for its leave to go on."""
        task = asyncio.current_task()
        await next(each for each in self.attempts() if each.work is task).hold()

    def attempts(self) -> list[Attempt]:
        """Those that have not ended, some of them late."""
        return [each for process in self.processes.values() for each in process.attempts]

    # ---- what happens

    @rule(step=STEPS, name=PROCESSES, data=st.data())
    def happen(self, step: Step, name: str, data: st.DataObject) -> None:
        """The next step. One rule for all: of several, Hypothesis leaves some out of a history, and
        none has a weight."""
        match step:
            case Step.ASK:
                self.ask(data.draw(THREADS), name)
            case Step.CANCEL:
                self.cancel(data.draw(THREADS), name)
            case Step.SUBMIT:
                self.submit(data.draw(THREADS), name)
            case Step.WORK:
                self.work(name)
            case Step.SPEAK:
                self.speak(data, name)
            case Step.HEAR:
                self.hear(data)
            case Step.DIE:
                self.die(name)
            case Step.TAKE_OVER:
                self.take_over(name, data.draw(PROCESSES))
            case Step.TIME_PASSES:
                self.time_passes(name, data.draw(st.sampled_from([0.5, 1.0])))

    # ---- callers

    def ask(self, thread: int, name: str) -> None:
        """Somebody wants a run: it is begun exactly if the last one of the thread has ended."""
        last = self.latest.get(thread)
        is_active = last is not None and not self.known[last.id].run.state.is_final
        said = NewMessage(role=Role.USER, content=(Text(text="Hi"),))
        runs = begun(
            self.processes[name].parts,
            self.assistants[thread],
            self.threads[thread],
            additional_messages=(said,),
        )
        try:
            run = self.do(runs)
        except RunActive:
            assert is_active
        else:
            assert not is_active
            self.latest[thread] = run
            self.known[run.id] = Known(run)

    def cancel(self, thread: int, name: str) -> None:
        """Somebody has had enough; that is refused exactly if the run has ended."""
        run = self.latest.get(thread)
        if run is None:
            return
        known, runs = self.known[run.id], self.processes[name].parts.runs
        try:
            self.do(runs.cancel(PROJECT, run.thread_id, run.id))
        except RunNotCancellable:
            assert known.run.state.is_final
        else:
            assert not known.run.state.is_final
            known.is_given_up = True

    def submit(self, thread: int, name: str) -> None:
        """Outputs come; they are taken exactly if the run waits for them."""
        run = self.latest.get(thread)
        if run is None:
            return
        known, runs = self.known[run.id], self.processes[name].parts.runs
        try:
            self.do(runs.submit(PROJECT, run.thread_id, run.id, OUTPUTS, ""))
        except ToolOutputsNotAccepted:
            assert known.run.state is not RunState.REQUIRES_ACTION
        else:
            assert known.run.state is RunState.REQUIRES_ACTION
            known.is_answered = True

    # ---- workers

    def work(self, name: str) -> None:
        """A process takes the next run, and stands before its first token."""
        self.do(self.claimed(self.processes[name]))

    async def claimed(self, process: Process) -> Attempt | None:
        """The next run that is to be worked on."""
        job = await process.parts.leases.claim([KIND])
        if job is None:
            return None
        attempt = Attempt(process, JobContext(job, process.parts.leases))
        process.attempts.append(attempt)
        await self.advance(attempt, 0)
        return attempt

    async def advance(self, attempt: Attempt, num_tokens: int) -> None:
        """Some tokens; a late worker hears with the first thing that it keeps that it is late."""
        await attempt.settle(num_tokens)
        if not attempt.work.done():
            return
        attempt.process.attempts.remove(attempt)
        job = await self.world.database.transactions.read(
            lambda each: JobQueries(each).get(PROJECT, attempt.context.claim.job_id)
        )
        assert job is not None
        try:
            await attempt.work
        except LeaseLost:
            assert job.claim != attempt.context.claim or job.state is not JobState.RUNNING
        else:
            assert attempt.context.is_finished or not attempt.context.is_finishing

    def speak(self, data: st.DataObject, name: str) -> None:
        """The model says something to a worker, perhaps all that there is to say."""
        if not self.attempts():
            self.work(name)
        if attempts := self.attempts():
            attempt = data.draw(st.sampled_from(attempts))
            self.do(self.advance(attempt, data.draw(st.sampled_from([1, 2, ALWAYS]))))

    def hear(self, data: st.DataObject) -> None:
        """A worker looks whether its run is to be cancelled."""
        if attempts := self.attempts():
            self.do(self.heard(data.draw(st.sampled_from(attempts))))

    async def heard(self, attempt: Attempt) -> None:
        """If so, it ends."""
        job = await self.world.database.transactions.read(
            lambda each: JobQueries(each).get(PROJECT, attempt.context.claim.job_id)
        )
        assert job is not None
        if job.cancel_requested_at is not None:
            attempt.context.cancelled.set()
            attempt.is_held.clear()
            await asyncio.wait([attempt.work])
            await self.advance(attempt, 0)

    def die(self, name: str) -> None:
        """A process is killed, and started again."""
        self.do(self.end(self.processes[name]))
        self.processes[name] = self.do(self.start(name))

    async def end(self, process: Process) -> None:
        """Nothing more comes of it."""
        works = [attempt.work for attempt in process.attempts]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        process.attempts.clear()
        await process.stack.aclose()

    def take_over(self, name: str, heir: str) -> None:
        """Everybody stalls for a lease, a process finds whose runs are nobody's any more, and one
        goes on with them, perhaps the one that had them."""
        self.do(self.orphans_taken(self.processes[name]))
        while self.do(self.claimed(self.processes[heir])) is not None:
            pass

    async def orphans_taken(self, process: Process) -> None:
        """What no worker has, and what has waited long enough, is there for the next one."""
        self.clock.advance(seconds=LEASE.total_seconds())
        for orphan in await process.parts.leases.orphans():
            with suppress(LeaseLost):  # its worker has just committed what it said
                await process.parts.leases.take_over(orphan)
                self.known[orphan.subject].num_lost += 1
        self.clock.advance(seconds=LONGEST_BACKOFF.total_seconds())

    def time_passes(self, name: str, share: float) -> None:
        """What has waited for its client for too long expires."""
        self.clock.advance(seconds=share * WAIT.total_seconds())
        self.do(self.expired(self.processes[name]))

    async def expired(self, process: Process) -> None:
        """The jobs that are due by now."""
        leases, expiry = process.parts.leases, RunExpiry(RunEventDocuments())
        while (job := await leases.claim([EXPIRY_KIND])) is not None:
            await expiry.run(job.claim, JobContext(job, leases))

    # ---- what must hold

    @invariant()
    def an_end_is_the_end(self) -> None:
        """Each run ends once, its log with it, as those were told who changed it; until then, and
        no longer, it has its thread."""
        for known in self.known.values():
            before, run = known.run, self.do(now(self.processes["a"].parts, known.run))
            assert run == before or not before.state.is_final
            known.run = run
            assert run.state is not RunState.FAILED or known.num_lost >= MAX_ATTEMPTS
            is_cancelled = run.state in (RunState.CANCELLING, RunState.CANCELLED)
            assert is_cancelled == known.is_given_up
            if known.is_answered:
                assert run.state not in (RunState.REQUIRES_ACTION, RunState.EXPIRED)
            ends = [each for each in self.do(self.told(run)) if each.run.state.is_final]
            assert [end.run.state for end in ends] == [run.state] * run.state.is_final
        for number, run in self.latest.items():
            holder = self.do(self.world.thread_now(self.threads[number].id)).active_run_id
            is_over = self.known[run.id].run.state.is_final
            assert holder == ("" if is_over else run.id)

    async def told(self, run: Run) -> Sequence[RunChanged]:
        """What readers have been told of a run's states."""
        events = await self.world.database.transactions.read(
            lambda each: StreamQueries(each).read(PROJECT, run.id, BEFORE_FIRST, ALWAYS)
        )
        decoded: list[RunEvent] = [RunEventDocuments().decode(event.data) for event in events]
        return [each for each in decoded if isinstance(each, RunChanged)]

    def teardown(self) -> None:
        """One healthy process and a patient client end everything."""
        try:
            self.do(self.end_everything())
            self.an_end_is_the_end()
            for known in self.known.values():
                self.do(self.check_whole(known.run))
        finally:
            for process in self.processes.values():
                self.do(self.end(process))
            self.do(self.stack.aclose())
            self.loop.close()

    async def end_everything(self) -> None:
        """Whatever happened before, every run ends."""
        for process in self.processes.values():
            await self.end(process)
        self.processes |= {name: await self.start(name) for name in "ab"}
        last = self.processes["a"]
        await self.orphans_taken(last)
        while True:
            while (attempt := await self.claimed(last)) is not None:
                if attempt in last.attempts:
                    await self.advance(attempt, ALWAYS)
            waiting = [
                run
                for known in self.known.values()
                if (run := await now(last.parts, known.run)).state is RunState.REQUIRES_ACTION
            ]
            if not waiting:
                return
            for run in waiting:
                await last.parts.runs.submit(PROJECT, run.thread_id, run.id, OUTPUTS, "")

    async def check_whole(self, run: Run) -> None:
        """All has ended; a completed run has one whole message, and each token counts once."""
        assert run.state.is_final
        messages = await self.world.messages(run)
        assert all(each.item.status is not ItemStatus.IN_PROGRESS for each in messages)
        if run.state is RunState.COMPLETED:
            [message] = messages
            turns = [CALL, ANSWER] if run.settings.tools else [ANSWER]
            assert message.message.text == "one two three"
            assert run.usage.completion_tokens == sum(len(turn.deltas) for turn in turns)


def _script(request: TurnRequest) -> Script:
    """A call where there is a function, and the user spoke last."""
    is_asked = request.messages[-1].role is TurnRole.USER
    return CALL if request.tools and is_asked else ANSWER
