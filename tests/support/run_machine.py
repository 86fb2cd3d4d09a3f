"""A state machine test of runs on a real database: workers stall, die and lose leases, callers
cancel and submit outputs at any token, and waits expire. Hypothesis chooses the steps; invariants
are checked after each step and once all runs have ended.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from control_svc.assistants.message_model import NewMessage
from control_svc.assistants.model import Assistant, Thread
from control_svc.inference.turns import TurnRequest, TurnRole
from control_svc.items.model import ItemStatus, Role, Text
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LONGEST_BACKOFF, MAX_LOST, Job, JobState, LeaseLost
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import CREATED, decode_event
from control_svc.runs.model import Run, RunState, ToolOutput
from control_svc.runs.transitions import EXPIRY_KIND, RunExpiry
from control_svc.runs.worker import KIND
from control_svc.tools.model import FunctionTool
from svc_kit.errors import RunActive, RunNotCancellable, ToolOutputsNotAccepted
from tests.support.examples import draw_one
from tests.support.job_machine import DatabaseMachine
from tests.support.jobs import LEASE, PROJECT
from tests.support.runs import (
    FUNCTION,
    WAIT,
    RunProcess,
    RunWorld,
    cancel_run,
    create_run,
    get_run,
    submit_outputs,
)
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, text_script
from tests.support.streams import read_stored_events

PROCESSES = st.sampled_from("ab")
THREADS = st.sampled_from([0, 1])
CALL, ANSWER = call_script(FUNCTION, "{}"), text_script("one two three")
OUTPUTS = [ToolOutput("call_1", "x")]
ALWAYS = 1 << 30
NUM_TOKENS = st.sampled_from([1, 2, ALWAYS])


class Step(StrEnum):
    CREATE = "create"
    CANCEL = "cancel"
    SUBMIT = "submit"
    CLAIM = "claim"
    GENERATE = "generate"
    CHECK_CANCEL = "check cancel"
    RESTART = "restart"
    TAKE_OVER = "take over"
    PASS_TIME = "pass time"


FREQUENT = (
    Step.CREATE,
    Step.SUBMIT,
    Step.CLAIM,
    Step.GENERATE,
    Step.GENERATE,
    Step.GENERATE,
    Step.TAKE_OVER,
)
STEPS = st.sampled_from([*FREQUENT, *Step])


@dataclass(eq=False)
class Attempt:
    """A worker's attempt at a run, which produces `num_allowed` tokens and then blocks."""

    process: "Process"
    context: JobContext
    num_allowed: int = 0
    is_blocked: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        handler = self.process.parts.handler
        self.work = asyncio.create_task(handler.run(self.context.claim, self.context))

    async def block(self) -> None:
        """Wait until the next token is allowed."""
        while not self.num_allowed:
            self.resumed.clear()
            self.is_blocked.set()
            await self.resumed.wait()
        self.num_allowed -= 1

    async def settle(self, num_tokens: int = 0) -> None:
        """Produce tokens, and wait until the attempt blocks or ends."""
        if num_tokens:
            self.num_allowed = num_tokens
            self.is_blocked.clear()
            self.resumed.set()
        blocked = asyncio.create_task(self.is_blocked.wait())
        await asyncio.wait([self.work, blocked], return_when=asyncio.FIRST_COMPLETED)
        blocked.cancel()


@dataclass(eq=False)
class Process:
    parts: RunProcess
    stack: AsyncExitStack
    attempts: list[Attempt] = field(default_factory=list)


@dataclass
class Expected:
    run: Run
    """The run as last read."""
    is_cancelled_by_caller: bool = False
    """Whether a cancellation succeeded."""
    is_answered: bool = False
    """Whether outputs were accepted."""
    num_lost: int = 0
    """How often its worker lost the lease; a job dies after `MAX_LOST`."""


class RunMachine(DatabaseMachine):
    """Two processes and two threads; runs on the first thread call a function and then answer."""

    def __init__(self) -> None:
        super().__init__()
        turns = ScriptedTurns(_script, before_token=self.before_token)
        self.world = RunWorld(self.database, turns, self.clock)
        self.num_starts = 0
        self.expected: dict[str, Expected] = {}
        self.latest: dict[int, Run] = {}
        self.assistants: list[Assistant] = []
        self.threads: list[Thread] = []
        for tools in ((FunctionTool(name=FUNCTION),), ()):
            self.assistants.append(self.run(self.world.assistant(tools=tools)))
            self.threads.append(self.run(self.world.thread()))
        self.processes = {name: self.run(self.start(name)) for name in "ab"}

    async def start(self, name: str) -> Process:
        self.num_starts += 1
        parts, stack = self.world.process(f"{name}{self.num_starts}"), AsyncExitStack()
        await stack.enter_async_context(parts.streams.run())
        return Process(parts, stack)

    async def before_token(self, _request: TurnRequest, _index: int) -> None:
        """Block the current attempt until its next token is allowed."""
        task = asyncio.current_task()
        await next(each for each in self.attempts() if each.work is task).block()

    def attempts(self) -> list[Attempt]:
        """The attempts that have not ended, including those without a lease."""
        return [each for process in self.processes.values() for each in process.attempts]

    # ---- steps

    @rule(step=STEPS, name=PROCESSES, data=st.data())
    def step(self, step: Step, name: str, data: st.DataObject) -> None:
        """Execute a step. There is one rule for all steps, because Hypothesis disables some rules
        in each example and cannot weight rules."""
        match step:
            case Step.CREATE:
                self.start_run(data.draw(THREADS), name)
            case Step.CANCEL:
                self.cancel(data.draw(THREADS), name)
            case Step.SUBMIT:
                self.submit(data.draw(THREADS), name)
            case Step.CLAIM:
                self.claim_next(name)
            case Step.GENERATE:
                self.generate(data, name)
            case Step.CHECK_CANCEL:
                self.check_a_cancel(data)
            case Step.RESTART:
                self.restart(name)
            case Step.TAKE_OVER:
                self.take_over(name, data.draw(PROCESSES))
            case Step.PASS_TIME:
                self.pass_time(name, data.draw(st.sampled_from([0.5, 1.0])))

    # ---- callers

    def start_run(self, thread: int, name: str) -> None:
        """Create a run; it is refused exactly if a run of the thread is active."""
        last = self.latest.get(thread)
        is_active = last is not None and not self.expected[last.id].run.state.is_final
        message = NewMessage(role=Role.USER, content=(Text(text="Hi"),))
        runs = create_run(
            self.processes[name].parts,
            self.assistants[thread],
            self.threads[thread],
            additional_messages=(message,),
        )
        try:
            run = self.run(runs)
        except RunActive:
            assert is_active
        else:
            assert not is_active
            self.latest[thread] = run
            self.expected[run.id] = Expected(run)

    def cancel(self, thread: int, name: str) -> None:
        """Cancel the last run of a thread; it is refused exactly if the run has ended."""
        run = self.latest.get(thread)
        if run is None:
            return
        expected, process = self.expected[run.id], self.processes[name].parts
        try:
            self.run(cancel_run(process, run))
        except RunNotCancellable:
            assert expected.run.state.is_final
        else:
            assert not expected.run.state.is_final
            expected.is_cancelled_by_caller = True

    def submit(self, thread: int, name: str) -> None:
        """Submit outputs; they are accepted exactly if the run waits for them."""
        run = self.latest.get(thread)
        if run is None:
            return
        expected, process = self.expected[run.id], self.processes[name].parts
        try:
            self.run(submit_outputs(process, run, OUTPUTS))
        except ToolOutputsNotAccepted:
            assert expected.run.state is not RunState.REQUIRES_ACTION
        else:
            assert expected.run.state is RunState.REQUIRES_ACTION
            expected.is_answered = True

    # ---- workers

    def claim_next(self, name: str) -> None:
        """A process claims the next run, and blocks before its first token."""
        self.run(self.claim(self.processes[name]))

    async def claim(self, process: Process) -> Attempt | None:
        """Claim the next run and start an attempt; None if there is none."""
        job = await process.parts.leases.claim([KIND])
        if job is None:
            return None
        attempt = Attempt(process, JobContext(job, process.parts.leases))
        process.attempts.append(attempt)
        await self.advance(attempt, 0)
        return attempt

    async def advance(self, attempt: Attempt, num_tokens: int) -> None:
        """Produce tokens. A worker without a lease fails with its first commit."""
        await attempt.settle(num_tokens)
        if not attempt.work.done():
            return
        attempt.process.attempts.remove(attempt)
        job = await self.read_job(attempt)
        try:
            await attempt.work
        except LeaseLost:
            assert job.claim != attempt.context.claim or job.state is not JobState.RUNNING
        else:
            assert attempt.context.is_finished or not attempt.context.is_finishing

    async def read_job(self, attempt: Attempt) -> Job:
        job = await self.world.database.transactions.of(PROJECT).read(
            lambda tx: JobQueries(tx).get(attempt.context.claim.job_id)
        )
        assert job is not None
        return job

    def generate(self, data: st.DataObject, name: str) -> None:
        """Produce one, two or all tokens of an attempt."""
        if not self.attempts():
            self.claim_next(name)
        attempt, num_tokens = draw_one(data, self.attempts()), data.draw(NUM_TOKENS)
        if attempt is not None:
            self.run(self.advance(attempt, num_tokens))

    def check_a_cancel(self, data: st.DataObject) -> None:
        attempt = draw_one(data, self.attempts())
        if attempt is not None:
            self.run(self.check_cancel(attempt))

    async def check_cancel(self, attempt: Attempt) -> None:
        job = await self.read_job(attempt)
        if job.cancel_requested_at is not None:
            attempt.context.cancelled.set()
            attempt.is_blocked.clear()
            await asyncio.wait([attempt.work])
            await self.advance(attempt, 0)

    def restart(self, name: str) -> None:
        self.run(self.kill(self.processes[name]))
        self.processes[name] = self.run(self.start(name))

    async def kill(self, process: Process) -> None:
        """Cancel all attempts of a process."""
        works = [attempt.work for attempt in process.attempts]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        process.attempts.clear()
        await process.stack.aclose()

    def take_over(self, name: str, successor: str) -> None:
        """Let all leases expire; one process releases the orphans, and another one (perhaps the
        same) claims them."""
        self.run(self.release_orphans(self.processes[name]))
        while self.run(self.claim(self.processes[successor])) is not None:
            pass

    async def release_orphans(self, process: Process) -> None:
        """Release the jobs whose leases have expired, and wait for the longest backoff."""
        self.clock.advance(seconds=LEASE.total_seconds())
        for orphan in await process.parts.leases.orphans():
            with suppress(LeaseLost):  # its worker has just committed
                await process.parts.leases.reclaim(orphan)
                self.expected[orphan.subject].num_lost += 1
        self.clock.advance(seconds=LONGEST_BACKOFF.total_seconds())

    def pass_time(self, name: str, share: float) -> None:
        """Advance the clock; runs that waited too long expire."""
        self.clock.advance(seconds=share * WAIT.total_seconds())
        self.run(self.run_expiry(self.processes[name]))

    async def run_expiry(self, process: Process) -> None:
        """Execute the expiry jobs that are due."""
        leases, expiry = process.parts.leases, RunExpiry()
        while (job := await leases.claim([EXPIRY_KIND])) is not None:
            await expiry.run(job.claim, JobContext(job, leases))

    # ---- invariants

    @invariant()
    def each_run_ends_once(self) -> None:
        """The state of each run agrees with its events and with earlier responses to callers. A run
        locks its thread exactly until it ends."""
        for expected in self.expected.values():
            before, run = expected.run, self.run(get_run(self.processes["a"].parts, expected.run))
            assert run == before or not before.state.is_final
            expected.run = run
            assert run.state is not RunState.FAILED or expected.num_lost >= MAX_LOST
            is_cancelled = run.state in (RunState.CANCELLING, RunState.CANCELLED)
            assert is_cancelled == expected.is_cancelled_by_caller
            if expected.is_answered:
                assert run.state not in (RunState.REQUIRES_ACTION, RunState.EXPIRED)
            ends = [each for each in self.run(self.run_states(run)) if each.is_final]
            assert ends == [run.state] * run.state.is_final
        for number, run in self.latest.items():
            holder = self.run(self.world.get_thread(self.threads[number].id)).active_run_id
            is_final = self.expected[run.id].run.state.is_final
            assert holder == ("" if is_final else run.id)

    async def run_states(self, run: Run) -> Sequence[RunState]:
        events = await self.world.database.across_projects.read(
            lambda tx: read_stored_events(tx, run.id)
        )
        changes = [decode_event(event.data).run_changed for event in events]
        return [RunState(each.what) for each in changes if each.what not in ("", CREATED)]

    def teardown(self) -> None:
        """One healthy process and a client end all runs."""
        try:
            self.run(self.end_all())
            self.each_run_ends_once()
            for expected in self.expected.values():
                self.run(self.check_ended(expected.run))
        finally:
            for process in self.processes.values():
                self.run(self.kill(process))
            self.run(self.stack.aclose())
            self.loop.close()

    async def end_all(self) -> None:
        for process in self.processes.values():
            await self.kill(process)
        self.processes |= {name: await self.start(name) for name in "ab"}
        last = self.processes["a"]
        await self.release_orphans(last)
        while True:
            while (attempt := await self.claim(last)) is not None:
                if attempt in last.attempts:
                    await self.advance(attempt, ALWAYS)
            waiting = [
                run
                for expected in self.expected.values()
                if (run := await get_run(last.parts, expected.run)).state
                is RunState.REQUIRES_ACTION
            ]
            if not waiting:
                return
            for run in waiting:
                await submit_outputs(last.parts, run, OUTPUTS)

    async def check_ended(self, run: Run) -> None:
        """No message is in progress. A completed run has one message; each token counts once."""
        assert run.state.is_final
        messages = await self.world.messages(run)
        assert all(each.item.status is not ItemStatus.IN_PROGRESS for each in messages)
        if run.state is RunState.COMPLETED:
            [message] = messages
            turns = [CALL, ANSWER] if run.settings.tools else [ANSWER]
            assert message.message.text == "one two three"
            assert run.usage.completion_tokens == sum(len(turn.deltas) for turn in turns)


def _script(request: TurnRequest) -> Script:
    """A call if the run has a function and the last message is the user's, else the answer."""
    is_question = request.messages[-1].role is TurnRole.USER
    return CALL if request.tools and is_question else ANSWER
