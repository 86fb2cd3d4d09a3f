"""A Hypothesis state machine of writers that die, stall and resume late, and followers that join
anywhere, over a real database that fails now and then.

In every step each follower has read a prefix of the log, and the log has only grown. At the end all
followers have read all of it.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from control_svc.base.ids import IdSource
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import BEFORE_FIRST, MAX_CHUNK_EVENTS, Event, FinalEvents
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.writer import StreamWriter
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LONGEST_BACKOFF, Job, JobState, LeaseLost
from tests.support.examples import draw_one
from tests.support.job_machine import DatabaseMachine, insert_mark
from tests.support.jobs import KIND, LEASE, PROJECT, Fault, Jobs
from tests.support.streams import (
    Follower,
    StreamProcess,
    create_stream,
    make_process,
    read_stored_events,
)

STREAMS = ("run_1", "run_2", "run_3")
PROCESSES = st.sampled_from("ab")
FAULTS = st.lists(st.sampled_from(Fault), max_size=2)
COUNTS = st.sampled_from([0, 1, 2, 3, MAX_CHUNK_EVENTS + 1])
END = b"the end"


class Step(StrEnum):
    CLAIM = "claim"
    APPEND = "append"
    CHANGE = "change"
    FINISH = "finish"
    RESTART = "restart"
    TAKE_OVER = "take over"
    FOLLOW = "follow"
    READ = "read"


FREQUENT = (Step.CLAIM, Step.APPEND, Step.APPEND, Step.APPEND, Step.TAKE_OVER)
STEPS = st.sampled_from([*FREQUENT, *Step])


@dataclass(eq=False)
class Attempt:
    """A worker's attempt at a job, which may have lost its lease."""

    process: "Process"
    context: JobContext
    writer: StreamWriter
    stack: AsyncExitStack
    added: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """A process and the state that it loses when it dies."""

    parts: StreamProcess
    reader_task: asyncio.Task[None]
    stack: AsyncExitStack
    attempts: list[Attempt] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)

    async def claim(self) -> Attempt | None:
        """Claim the next job and open the writer of its stream."""
        job = await self.parts.leases.claim([KIND])
        if job is None:
            return None
        context = JobContext(job, self.parts.leases)
        stack = await self.stack.enter_async_context(AsyncExitStack())
        writer = await stack.enter_async_context(self.parts.committer.writer(context, job.subject))
        attempt = Attempt(self, context, writer, stack)
        self.attempts.append(attempt)
        return attempt

    async def close_attempt(self, attempt: Attempt) -> None:
        """Close the writer of an attempt, perhaps while its successor writes."""
        self.attempts.remove(attempt)
        await attempt.stack.aclose()

    async def close_attempts(self) -> None:
        """Close all writers."""
        await self.stack.aclose()
        self.attempts.clear()

    async def kill(self) -> None:
        """End the process without releasing its jobs."""
        for follower in self.followers:
            await follower.cancel()
        self.reader_task.cancel()
        await self.close_attempts()


async def finish(attempt: Attempt) -> None:
    """Append the last event and finish the job, unless the attempt has lost it."""

    async def work(tx: Transaction) -> FinalEvents:
        await insert_mark(tx, attempt.context.claim, "done")
        return FinalEvents((), is_end=True)

    try:
        await attempt.writer.add([END])
        await attempt.writer.conclude(work)
    except LeaseLost:
        pass


class StreamEnder:
    async def on_dead(self, tx: Transaction, job: Job) -> None:
        await StreamQueries(tx).end(job.subject, [END])


class StreamMachine(DatabaseMachine):
    """Two processes and three streams."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs(self.database, IdSource(self.clock))
        self.num_events = 0
        self.num_starts = 0
        self.log: dict[str, list[Event]] = {name: [] for name in STREAMS}
        for name in STREAMS:
            self.run(create_stream(self.jobs, name))
        self.processes = {name: self.run(self.start(name)) for name in "ab"}

    async def start(self, name: str) -> Process:
        """Start a process that follows each stream from its first event."""
        self.num_starts += 1
        owner = f"{name}{self.num_starts}"
        parts = make_process(self.database, owner, dead_letter_handler=StreamEnder())
        process = Process(parts, asyncio.create_task(parts.group_reader.run()), AsyncExitStack())
        process.followers += [parts.follow(stream_id, BEFORE_FIRST) for stream_id in STREAMS]
        return process

    # ---- steps

    @rule(step=STEPS, name=PROCESSES, data=st.data())
    def step(self, step: Step, name: str, data: st.DataObject) -> None:
        """Run a step. A single rule, because Hypothesis omits some of several rules from a history
        and has no weights for them.
        """
        match step:
            case Step.CLAIM:
                self.run(self.processes[name].claim())
            case Step.APPEND:
                self.append(data, name)
            case Step.CHANGE:
                self.change(data)
            case Step.FINISH:
                self.finish(data)
            case Step.RESTART:
                self.run(self.processes[name].kill())
                self.processes[name] = self.run(self.start(name))
            case Step.TAKE_OVER:
                self.take_over(name, data.draw(PROCESSES))
            case Step.FOLLOW:
                self.follow(data, name)
            case Step.READ:
                self.run(asyncio.sleep(0))  # lets followers read

    def append(self, data: st.DataObject, name: str) -> None:
        """Attempts, some of which have lost their jobs, add events; then a process commits, with
        faults.
        """
        for count in data.draw(st.lists(COUNTS, max_size=4)):
            self.add(self.draw_attempt(data), count)
        parts = self.processes[name].parts
        parts.transactions.faults = data.draw(FAULTS)
        self.run(parts.committer.commit())
        parts.transactions.faults = []

    def draw_attempt(self, data: st.DataObject) -> Attempt | None:
        attempts = [each for process in self.processes.values() for each in process.attempts]
        return draw_one(data, attempts)

    def add(self, attempt: Attempt | None, count: int) -> None:
        """Add events; the data of each is a token id."""
        tokens = range(self.num_events, self.num_events + count)
        self.num_events += count
        if attempt is None:
            return
        events = [b"%d" % token for token in tokens]
        attempt.added += events
        try:
            self.run(attempt.writer.add(events, tokens))
        except LeaseLost:
            self.run(attempt.process.close_attempt(attempt))

    def change(self, data: st.DataObject) -> None:
        """An attempt changes rows, with faults: once if it has the job, otherwise never."""
        attempt, faults = self.draw_attempt(data), data.draw(FAULTS)
        if attempt is None:
            return
        self.num_events += 1
        mark = f"change {self.num_events}"

        async def work(tx: Transaction) -> str:
            await insert_mark(tx, attempt.context.claim, mark)
            return mark

        is_valid = self.is_valid(attempt)
        attempt.process.parts.transactions.faults = faults
        try:
            assert self.run(attempt.writer.commit(work, progress=True)) == mark
            assert is_valid
            events = self.run(self.read_log(attempt.context.claim.subject))
            assert {*attempt.added} <= {event.data for event in events}
        except LeaseLost:
            assert not is_valid
            self.run(attempt.process.close_attempt(attempt))
        attempt.process.parts.transactions.faults = []

    def finish(self, data: st.DataObject) -> None:
        """An attempt, which may have lost its job, finishes."""
        attempt = self.draw_attempt(data)
        if attempt is not None:
            self.run(finish(attempt))
            self.run(attempt.process.close_attempt(attempt))

    def take_over(self, name: str, successor: str) -> None:
        """All leases expire, a process takes the orphans over, and one claims all jobs, perhaps the
        one that had them.
        """
        self.clock.advance(seconds=LEASE.total_seconds())
        self.run(self.processes[name].parts.leases.take_over_all())
        while self.run(self.processes[successor].claim()) is not None:
            pass

    def follow(self, data: st.DataObject, name: str) -> None:
        stream_id = data.draw(st.sampled_from(STREAMS))
        after = draw_one(data, range(BEFORE_FIRST, len(self.log[stream_id])))
        assert after is not None
        process = self.processes[name]

        async def follow() -> Follower:
            return process.parts.follow(stream_id, after)

        process.followers.append(self.run(follow()))

    # ---- invariants

    def is_valid(self, attempt: Attempt) -> bool:
        job = self.run(self.jobs.get(attempt.context.claim.job_id))
        return job.state is JobState.RUNNING and job.claim == attempt.context.claim

    @invariant()
    def followers_have_read_a_prefix_of_the_log(self) -> None:
        """And the log has only grown."""
        for name in STREAMS:
            events = self.run(self.read_log(name))
            assert [event.number for event in events] == list(range(len(events)))
            assert events[: len(self.log[name])] == self.log[name]
            self.log[name] = events
        for process in self.processes.values():
            for follower in process.followers:
                expected = self.log[follower.stream_id][follower.after + 1 :]
                assert follower.events == expected[: len(follower.events)]

    async def read_log(self, name: str) -> list[Event]:
        """Read all committed events of a stream."""
        return await self.jobs.across_projects.read(lambda tx: read_stored_events(tx, name))

    def teardown(self) -> None:
        """One healthy process ends all streams, and all followers read them to the end."""
        try:
            self.run(self.end_all())
            self.followers_have_read_a_prefix_of_the_log()
            self.check_complete()
        finally:
            for process in self.processes.values():
                self.run(process.kill())
            self.run(self.stack.aclose())
            self.loop.close()

    async def end_all(self) -> None:
        """End every stream and wait for the followers."""
        for process in self.processes.values():
            await process.close_attempts()
        self.processes["last"] = last = await self.start("last")
        self.clock.advance(seconds=(LONGEST_BACKOFF + LEASE).total_seconds())
        await last.parts.leases.take_over_all()
        self.clock.advance(seconds=LONGEST_BACKOFF.total_seconds())
        while (attempt := await last.claim()) is not None:
            await finish(attempt)
        for process in self.processes.values():
            for follower in process.followers:
                await asyncio.wait_for(follower.task, 120)

    def check_complete(self) -> None:
        """Followers have read everything, and the stored tokens are those of the events."""
        for process in self.processes.values():
            for follower in process.followers:
                assert follower.events == self.log[follower.stream_id][follower.after + 1 :]
        for name in STREAMS:
            *events, last = [event.data for event in self.log[name]]
            assert last == END
            assert self.run(self.read_tokens(name)) == [int(data) for data in events]

    async def read_tokens(self, name: str) -> list[int]:
        return await self.jobs.transactions.of(PROJECT).read(
            lambda tx: StreamQueries(tx).tokens(name, 0)
        )
