"""The dispatcher over both databases, with a handler that does what it is told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_svc.domain.ids import IdSource
from control_svc.domain.jobs import Claim, EngineDied, Job, JobState
from control_svc.domain.ports import Repositories
from control_svc.storage.database import Database
from control_svc.usecases.working import JobContext
from svc_kit.errors import EngineRestarting, FileNotFound, SlowReader, UpstreamUnavailable
from tests.support.control import SetClock
from tests.support.dispatching import dispatching
from tests.support.jobs import Handler, Jobs, a_database, for_ever

TOO_SLOW = SlowReader(unread_events=1, limit_s=1)


@pytest.fixture
def clock() -> SetClock:
    """The database's time, which stands still unless told."""
    return SetClock()


@pytest.fixture
async def database(
    tmp_path: Path, database_url: str | None, clock: SetClock
) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    async with a_database(tmp_path, database_url, clock) as database:
        yield database


@pytest.fixture
def jobs(database: Database, clock: SetClock) -> Jobs:
    """Jobs of a project."""
    return Jobs(database, IdSource(clock))


async def nothing(_: Repositories) -> None:
    """Work that changes nothing."""


async def test_a_job_is_done_without_a_poll(database: Database, jobs: Jobs) -> None:
    """Whoever adds one wakes the dispatcher."""
    handler = Handler()
    async with dispatching(database, handler) as work:
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
    async with dispatching(database, handler) as work:
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

    async with dispatching(database, Handler(fail)) as work:
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
    async with dispatching(database, handler) as work:
        added = await jobs.add()
        ended = [await work.ends.get()]
        while ended[-1].state is not JobState.DEAD:
            clock.now = ended[-1].run_after
            database.notices.send(["jobs"])
            ended.append(await work.ends.get())

    assert [job.attempt for job in ended] == [1, 1, 2, 3]
    assert [job.id for job in handler.buried] == [added.id]
    assert ended[-1].error is not None
    assert ended[-1].error.reason == "SLOW_READER"


async def test_a_cancelled_job_hears_of_it_and_finishes(database: Database, jobs: Jobs) -> None:
    """While it runs, at once; what its last transaction writes is written."""

    async def until_cancelled(_claim: Claim, context: JobContext) -> None:
        await context.cancelled.wait()
        await context.finish(nothing)

    handler = Handler(until_cancelled)
    async with dispatching(database, handler) as work:
        added = await jobs.add()
        await handler.news.wait()
        await jobs.cancel(added)
        ended = await work.ends.get()

    assert ended.state is JobState.DONE


async def test_a_process_that_stops_gives_its_work_back(database: Database, jobs: Jobs) -> None:
    """Another one goes on at once, and the attempt does not count."""
    first, second = Handler(for_ever), Handler()
    async with dispatching(database, first, "first") as stopping:
        added = await jobs.add()
        await first.news.wait()
    given_back = stopping.ends.get_nowait()
    async with dispatching(database, second, "second") as work:
        ended = await work.ends.get()

    assert (given_back.state, given_back.attempt) == (JobState.QUEUED, 0)
    assert (ended.id, ended.state, ended.fence) == (added.id, JobState.DONE, 2)


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
    async with dispatching(database, handler, "first", ends=ends):
        added = await jobs.add()
        await handler.news.wait()
        clock.advance(minutes=1)
        async with dispatching(database, handler, "second", ends=ends):
            ended = await ends.get()
            database.notices.send(["jobs"])
            await left.wait()

    assert (ended.id, ended.state, ended.attempt) == (added.id, JobState.DONE, 2)
    assert ends.empty()
