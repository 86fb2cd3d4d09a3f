"""Writers that die, stall and come back late, and followers that join anywhere, over a real
database that is away now and then. Hypothesis chooses what happens; beside every step each follower
has seen a prefix of the log, and the log has only grown. At the end everybody has seen all of it.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control_svc.base.ids import IdSource
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.event_log.model import BEFORE_FIRST, MAX_CHUNK_EVENTS, Event
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.writer import StreamWriter
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import LONGEST_BACKOFF, Job, JobState, LeaseLost
from tests.support.control import SetClock
from tests.support.job_machine import START, OpenDatabase, insert_mark
from tests.support.jobs import KIND, LEASE, PROJECT, Jobs
from tests.support.streams import Follower, StreamProcess, Fault, make_process, create_stream

ResultT = TypeVar("ResultT")
STREAMS = ("run_1", "run_2", "run_3")
PROCESSES = st.sampled_from("ab")
FAULTS = st.lists(st.sampled_from(Fault), max_size=2)
COUNTS = st.sampled_from([0, 1, 2, 3, MAX_CHUNK_EVENTS + 1])
END = b"the end"


class Step(StrEnum):
    """What may happen."""

    CLAIM = "claim"
    TALK = "talk"
    CHANGE = "change"
    FINISH = "finish"
    DIE = "die"
    TAKE_OVER = "take over"
    FOLLOW = "follow"
    READ = "read"


OFTEN = (Step.CLAIM, Step.TALK, Step.TALK, Step.TALK, Step.TAKE_OVER)
STEPS = st.sampled_from([*OFTEN, *Step])


@dataclass(eq=False)
class Attempt:
    """A worker's attempt at a job; its process may be gone, and its job another's."""

    process: "Process"
    context: JobContext
    writer: StreamWriter
    stack: AsyncExitStack
    said: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """A process, with what is lost when it dies."""

    parts: StreamProcess
    reading: asyncio.Task[None]
    stack: AsyncExitStack
    attempts: list[Attempt] = field(default_factory=list)
    followers: list[Follower] = field(default_factory=list)


class Mourner:
    """Ends the stream of a dead job, as its object's undertaker does."""

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """In the transaction in which it dies."""
        await StreamQueries(tx).end(job.project, job.subject, [END])


class StreamMachine(RuleBasedStateMachine):
    """Two processes, three streams."""

    open_database: OpenDatabase

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock(START)
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.database: Database = self.do(
            self.stack.enter_async_context(type(self).open_database(self.clock))
        )
        self.jobs = Jobs(self.database, IdSource(self.clock))
        self.num_said = 0
        self.lives = 0
        self.log: dict[str, list[Event]] = {name: [] for name in STREAMS}
        for name in STREAMS:
            self.do(create_stream(self.jobs, name))
        self.processes = {name: self.do(self.start(name)) for name in "ab"}

    def do(self, step: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a step to its end."""
        return self.loop.run(step)

    async def start(self, name: str) -> Process:
        """A process begins, and in it somebody to read each stream from its first event on."""
        self.lives += 1
        parts = make_process(self.database, f"{name}{self.lives}", dead_letter_handler=Mourner())
        begun = Process(parts, asyncio.create_task(parts.reader.run()), AsyncExitStack())
        begun.followers += [parts.follow(stream_id, BEFORE_FIRST) for stream_id in STREAMS]
        return begun

    # ---- what happens

    @rule(step=STEPS, name=PROCESSES, data=st.data())
    def happen(self, step: Step, name: str, data: st.DataObject) -> None:
        """The next step. One rule for all: of several, Hypothesis leaves some out of a history, and
        none has a weight."""
        match step:
            case Step.CLAIM:
                self.claim(name)
            case Step.TALK:
                self.talk(data, name)
            case Step.CHANGE:
                self.change(data)
            case Step.FINISH:
                self.finish(data)
            case Step.DIE:
                self.die(name)
            case Step.TAKE_OVER:
                self.take_over(name, data.draw(PROCESSES))
            case Step.FOLLOW:
                self.follow(data, name)
            case Step.READ:
                self.read()

    def claim(self, name: str) -> None:
        """A process takes the next job."""
        self.do(self.claimed(self.processes[name]))

    async def claimed(self, process: Process) -> Attempt | None:
        """The next job, with a writer of its stream."""
        job = await process.parts.leases.claim([KIND])
        if job is None:
            return None
        context = JobContext(job, process.parts.leases)
        opened = process.parts.committer.writer(context, job.subject)
        stack = await process.stack.enter_async_context(AsyncExitStack())
        attempt = Attempt(process, context, await stack.enter_async_context(opened), stack)
        process.attempts.append(attempt)
        return attempt

    def talk(self, data: st.DataObject, name: str) -> None:
        """Workers, some of them late, say something; then a process commits, which may fail, or be
        known by nobody."""
        for count in data.draw(st.lists(COUNTS, max_size=4)):
            self.say(self.some_attempt(data), count)
        self.commit(name, data.draw(FAULTS))

    def some_attempt(self, data: st.DataObject) -> Attempt | None:
        """One that has not heard that it is over."""
        attempts = [each for process in self.processes.values() for each in process.attempts]
        return data.draw(st.sampled_from(attempts)) if attempts else None

    def say(self, attempt: Attempt | None, count: int) -> None:
        """Each event is a token."""
        tokens = range(self.num_said, self.num_said + count)
        self.num_said += count
        if attempt is None:
            return
        events = [b"%d" % token for token in tokens]
        attempt.said += events
        try:
            self.do(attempt.writer.add(events, tokens))
        except LeaseLost:
            self.do(self.left(attempt))

    def commit(self, name: str, faults: list[Fault]) -> None:
        """A group commit."""
        parts = self.processes[name].parts
        parts.transactions.faults = faults
        self.do(parts.committer.commit())
        parts.transactions.faults = []

    def change(self, data: st.DataObject) -> None:
        """A worker changes rows; that works exactly if the job is its own, and happens once."""
        attempt = self.some_attempt(data)
        if attempt is None:
            return
        self.num_said += 1
        mark = f"change {self.num_said}"

        async def work(tx: Transaction) -> str:
            await insert_mark(tx, attempt.context.claim, mark)
            return mark

        counts = self.counts(attempt)
        attempt.process.parts.transactions.faults = data.draw(FAULTS)
        try:
            assert self.do(attempt.writer.commit(work, progress=True)) == mark
            assert counts
            logged = self.do(self.logged(attempt.context.claim.subject))
            assert {*attempt.said} <= {event.data for event in logged}
        except LeaseLost:
            assert not counts
            self.do(self.left(attempt))
        attempt.process.parts.transactions.faults = []

    def finish(self, data: st.DataObject) -> None:
        """A worker, perhaps a late one, comes to the end."""
        attempt = self.some_attempt(data)
        if attempt is not None:
            self.do(self.finishing(attempt))
            self.do(self.left(attempt))

    async def left(self, attempt: Attempt) -> None:
        """Its writer goes, perhaps while the one that goes on is there."""
        attempt.process.attempts.remove(attempt)
        await attempt.stack.aclose()

    async def finishing(self, attempt: Attempt) -> None:
        """The last event and the job's end are one."""

        async def work(tx: Transaction) -> None:
            await insert_mark(tx, attempt.context.claim, "done")

        try:
            await attempt.writer.add([END])
            await attempt.writer.finish(work)
        except LeaseLost:
            pass

    def die(self, name: str) -> None:
        """A process is killed, with its followers, and started again."""
        self.do(self.end(self.processes[name]))
        self.processes[name] = self.do(self.start(name))

    async def end(self, process: Process) -> None:
        """Nothing more comes of it."""
        for follower in process.followers:
            await follower.cancel()
        process.task.cancel()
        await process.stack.aclose()
        process.attempts.clear()

    def take_over(self, name: str, heir: str) -> None:
        """Everybody stalls for a lease, a process finds what is nobody's any more, and one goes on
        with it, perhaps the one that had it."""
        self.clock.advance(seconds=LEASE.total_seconds())
        self.do(self.orphans_taken(self.processes[name]))
        while self.do(self.claimed(self.processes[heir])) is not None:
            pass

    async def orphans_taken(self, process: Process) -> None:
        """What no worker has."""
        for orphan in await process.parts.leases.orphans():
            await process.parts.leases.take_over(orphan)

    def follow(self, data: st.DataObject, name: str) -> None:
        """Somebody reads, from anywhere in what there is."""
        stream_id = data.draw(st.sampled_from(STREAMS))
        after = data.draw(st.integers(BEFORE_FIRST, len(self.log[stream_id]) - 1))
        process = self.processes[name]
        process.followers.append(self.do(self.following(process, stream_id, after)))

    async def following(self, process: Process, stream_id: str, after: int) -> Follower:
        """A reader, begun."""
        return process.parts.follow(stream_id, after)

    def read(self) -> None:
        """Followers get on."""
        self.do(asyncio.sleep(0))

    # ---- what must hold

    def counts(self, attempt: Attempt) -> bool:
        """Whether its claim is the one that may write."""
        job = self.do(self.jobs.get(attempt.context.claim.job_id))
        return job.state is JobState.RUNNING and job.claim == attempt.context.claim

    @invariant()
    def everybody_sees_a_prefix_of_the_log(self) -> None:
        """And the log has only grown."""
        for name in STREAMS:
            events = self.do(self.logged(name))
            assert [event.number for event in events] == list(range(len(events)))
            assert events[: len(self.log[name])] == self.log[name]
            self.log[name] = events
        for process in self.processes.values():
            for follower in process.followers:
                self.check_seen(follower)

    def check_seen(self, follower: Follower) -> None:
        """No number is missing, none comes twice, and every byte is the log's."""
        start = follower.after + 1
        assert follower.events == self.log[follower.stream_id][start : start + len(follower.events)]

    async def logged(self, name: str) -> list[Event]:
        """All that is committed."""
        return await self.jobs.transactions.read(
            lambda each: StreamQueries(each).read(PROJECT, name, BEFORE_FIRST, 1 << 30)
        )

    def teardown(self) -> None:
        """One healthy process ends everything, and everybody has seen all of it."""
        try:
            self.do(self.end_everything())
            self.everybody_sees_a_prefix_of_the_log()
            self.check_whole()
        finally:
            for process in self.processes.values():
                self.do(self.end(process))
            self.do(self.stack.aclose())
            self.loop.close()

    async def end_everything(self) -> None:
        """Whatever happened before, every stream ends."""
        for process in self.processes.values():
            await process.stack.aclose()
            process.attempts.clear()
        self.processes["last"] = last = await self.start("last")
        self.clock.advance(seconds=(LONGEST_BACKOFF + LEASE).total_seconds())
        await self.orphans_taken(last)
        self.clock.advance(seconds=LONGEST_BACKOFF.total_seconds())
        while (attempt := await self.claimed(last)) is not None:
            await self.finishing(attempt)
        for process in self.processes.values():
            for follower in process.followers:
                await asyncio.wait_for(follower.task, timedelta(seconds=20).total_seconds())

    def check_whole(self) -> None:
        """Followers have all, and the tokens are those of the events."""
        for process in self.processes.values():
            for follower in process.followers:
                assert follower.events == self.log[follower.stream_id][follower.after + 1 :]
        for name in STREAMS:
            *events, last = [event.data for event in self.log[name]]
            assert last == END
            assert self.do(self.tokens(name)) == [int(data) for data in events]

    async def tokens(self, name: str) -> list[int]:
        """All tokens of a stream."""
        return await self.jobs.transactions.read(
            lambda each: StreamQueries(each).tokens(PROJECT, name, 0)
        )
