"""The dispatcher over both databases, with a handler that does what it is told."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.jobs.dispatcher import Dispatcher, JobGauges
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import (
    MAX_ATTEMPTS,
    AttemptResult,
    Claim,
    EngineDied,
    Job,
    JobState,
    Outcome,
)
from svc_kit.errors import (
    EngineRestarting,
    FileNotFound,
    SlowReader,
    StorageFailed,
    UpstreamUnavailable,
)
from svc_kit.metrics import JobMetrics
from tests.support.control import SetClock
from tests.support.dispatching import NEVER_S, run_dispatcher
from tests.support.jobs import (
    KIND,
    Handler,
    Jobs,
    WatchedLeases,
    for_ever,
    leases_of,
)

TOO_SLOW = SlowReader(unread_events=1, limit_s=1)


async def nothing(_: Transaction) -> None:
    """Work that changes nothing."""


async def test_a_job_is_done_without_a_poll(database: Database, jobs: Jobs) -> None:
    """Whoever adds one wakes the dispatcher."""
    handler = Handler()
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        done = await work.ends.get()

    assert (done.id, done.state, done.attempt) == (added.id, JobState.DONE, 1)
    assert [claim.subject for claim in handler.claims] == [added.subject]
    labels = {"kind": handler.kind, "outcome": "done"}
    assert work.metrics.get_sample_value("corral_job_attempts_total", labels) == 1


async def test_as_many_run_as_the_handler_takes(database: Database, jobs: Jobs) -> None:
    """Each waits here for one that runs beside it; the next begins when one has ended."""
    pair = asyncio.Barrier(2)
    running = most = 0

    async def count(_claim: Claim, _context: JobContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await pair.wait()
        running -= 1

    handler = Handler(count, concurrency=2)
    async with run_dispatcher(database, handler) as work:
        for _ in range(6):
            await jobs.add()
        ended = [await work.ends.get() for _ in range(6)]

    assert {job.state for job in ended} == {JobState.DONE}
    assert most == 2


@pytest.mark.parametrize(
    ("problem", "state", "attempt"),
    [
        (FileNotFound(file="f"), JobState.DEAD, 1),
        (TOO_SLOW, JobState.QUEUED, 1),
        (RuntimeError("a defect"), JobState.QUEUED, 1),
        (UpstreamUnavailable(service="inference"), JobState.QUEUED, 0),
        (EngineDied(EngineRestarting()), JobState.QUEUED, 0),
    ],
)
async def test_what_an_attempt_raises_decides(
    database: Database, jobs: Jobs, problem: Exception, state: JobState, attempt: int
) -> None:
    """Refused for good, to be tried again, or only not yet."""

    async def fail(_claim: Claim, _context: JobContext) -> None:
        raise problem

    async with run_dispatcher(database, Handler(fail)) as work:
        await jobs.add()
        ended = await work.ends.get()

    assert (ended.state, ended.attempt) == (state, attempt)
    assert ended.error is not None
    assert "a defect" not in ended.error.message


async def test_the_third_failure_is_the_last(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """A dead letter keeps why; progress in between would have counted anew."""

    async def fail(claim: Claim, context: JobContext) -> None:
        if len(handler.claims) == 2:
            await context.write(nothing, progress=True)
        raise TOO_SLOW

    handler = Handler(fail)
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        ended = [await work.ends.get()]
        while ended[-1].state is not JobState.DEAD:
            clock.now = ended[-1].run_after
            database.notifications.send(["jobs"])
            ended.append(await work.ends.get())

    assert [job.attempt for job in ended] == [1, 1, 2, 3]
    assert [job.id for job in handler.dead_jobs] == [added.id]
    assert ended[-1].error is not None
    assert ended[-1].error.reason == "SLOW_READER"


async def test_a_cancelled_job_hears_of_it_and_finishes(database: Database, jobs: Jobs) -> None:
    """While it runs, at once; what its last transaction writes is written."""

    async def until_cancelled(_claim: Claim, context: JobContext) -> None:
        await context.cancelled.wait()
        await context.finish(nothing)

    handler = Handler(until_cancelled)
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        await handler.news.wait()
        await jobs.cancel(added)
        ended = await work.ends.get()

    assert ended.state is JobState.DONE


async def test_a_process_that_stops_gives_its_work_back(database: Database, jobs: Jobs) -> None:
    """Another one goes on at once, and the attempt does not count; nor does one that a claim under
    way at the stop begins."""
    first, second = Handler(for_ever), Handler()
    async with run_dispatcher(database, first, "first") as stopping:
        added = await jobs.add()
        await first.news.wait()
    given_back = stopping.ends.get_nowait()
    async with run_dispatcher(database, second, "second") as work:
        ended = await work.ends.get()

    assert (given_back.state, given_back.attempt) == (JobState.QUEUED, 0)
    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 1)
    assert ended.fence > given_back.fence


async def test_work_that_never_began_is_given_back(database: Database, jobs: Jobs) -> None:
    """The process stops between the claim and the first step of the handler."""
    added = await jobs.add()
    handler = Handler(for_ever)
    leases = leases_of(database, "a", dead_letter_handler=handler)
    dispatcher = Dispatcher(
        leases, database.notifications, [handler], JobMetrics(CollectorRegistry())
    )

    async def claim_and_stop(kinds: Collection[str]) -> Job | None:
        dispatcher.stop()
        return await WatchedLeases.claim(leases, kinds)

    leases.claim = claim_and_stop  # type: ignore[method-assign]  # the moment is the point
    async with asyncio.timeout(25):
        await dispatcher.run(NEVER_S)

    found = await jobs.get(added)
    assert (found.state, found.attempt, found.fence) == (JobState.QUEUED, 0, 1)
    assert handler.claims == []


async def test_a_lost_job_is_left(database: Database, jobs: Jobs, clock: SetClock) -> None:
    """The attempt that has lost its lease is broken off; whoever is next does the job."""
    left = asyncio.Event()

    async def stall_at_first(claim: Claim, _context: JobContext) -> None:
        if claim.fence == 1:
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

    handler, ends = Handler(stall_at_first), asyncio.Queue[Job]()
    async with run_dispatcher(database, handler, "first", ends=ends):
        added = await jobs.add()
        await handler.news.wait()
        clock.advance(minutes=1)
        async with run_dispatcher(database, handler, "second", ends=ends):
            ended = await ends.get()
            database.notifications.send(["jobs"])
            await left.wait()

    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 2)
    assert ends.empty()


async def test_a_claim_that_nobody_heard_of_is_found(database: Database, jobs: Jobs) -> None:
    """Its commit succeeded and the answer was lost: the same process takes it over from itself."""
    added = await jobs.add()
    await leases_of(database, "a").claim([KIND])

    async with run_dispatcher(database, Handler(), "a") as work:
        lost, done = await work.ends.get(), await work.ends.get()

    assert (lost.id, lost.state, lost.attempt) == (added.id, JobState.QUEUED, 1)
    assert (done.id, done.state, done.attempt) == (added.id, JobState.DONE, 2)


async def test_a_subject_that_cannot_be_ended_holds_up_no_other(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Its job stays, to be tried again; other jobs are taken over, and done."""

    class Broken(Handler):
        async def on_dead(self, tx: Transaction, job: Job) -> None:
            raise RuntimeError("cannot be buried")

    gone, poison = leases_of(database, "gone"), await jobs.add()
    for _ in range(MAX_ATTEMPTS - 1):
        job = await gone.claim([KIND])
        assert job is not None
        clock.now = (await gone.end(job.claim, AttemptResult(Outcome.FAILED))).run_after
    await gone.claim([KIND])
    orphan = await jobs.add()
    await gone.claim([KIND])
    clock.advance(minutes=5)

    async with run_dispatcher(database, Broken()) as work:
        added = await jobs.add()
        ended = [await work.ends.get() for _ in range(2)]

    assert {job.id for job in ended} == {orphan.id, added.id}
    assert (await jobs.get(poison)).state is JobState.RUNNING


async def test_an_end_is_written_once_there_is_room(
    database: Database, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full at the end of the work does not make it be done again."""
    handler = Handler()
    transactions, refusals = database.transactions, iter([StorageFailed(problem="full")])
    write = transactions.write

    async def write_unless_full(work: Callable[[Transaction], Awaitable[Any]]) -> Any:
        if handler.claims:
            for refusal in refusals:
                raise refusal
        return await write(work)

    async with run_dispatcher(database, handler) as work:
        monkeypatch.setattr(transactions, "write", write_unless_full)
        await jobs.add()
        ended = await work.ends.get()

    assert (ended.state, ended.fence, len(handler.claims)) == (JobState.DONE, 1, 1)


async def test_gauges_count_what_waits(database: Database, jobs: Jobs, clock: SetClock) -> None:
    """By kind and state, and for how long the oldest job could have run."""
    registry = CollectorRegistry()
    gauges = JobGauges(database.transactions, JobMetrics(registry))
    await jobs.add()
    clock.advance(seconds=5)
    await jobs.add()
    await jobs.add()
    await leases_of(database, "a").claim([KIND])
    clock.advance(seconds=2)
    await gauges.count()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"kind": KIND, **labels})

    assert value("corral_jobs", state="queued") == 2
    assert value("corral_jobs", state="running") == 1
    assert value("corral_jobs_oldest_queued_seconds") == 2
