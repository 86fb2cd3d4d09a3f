"""The dispatcher on both databases."""

import asyncio
from collections.abc import Collection

import pytest
from prometheus_client import CollectorRegistry

from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.jobs import model as job_model
from control_svc.jobs.dispatcher import Dispatcher, JobGauges
from control_svc.jobs.handler import JobContext
from control_svc.jobs.leases import LeaseTerms
from svc_kit.errors import (
    EngineRestarting,
    FileNotFound,
    SlowReader,
    UpstreamUnavailable,
)
from svc_kit.metrics import JobMetrics
from svc_kit.sandbox.jobs import SANDBOX
from tests.support.control import SetClock
from tests.support.dispatching import NEVER_S, run_dispatcher
from tests.support.jobs import (
    KIND,
    LEASE,
    Fault,
    Handler,
    Jobs,
    WatchedLeases,
    make_leases,
    no_change,
    run_forever,
)

TOO_SLOW = SlowReader(unread_events=1, limit_s=1)


async def test_a_new_job_runs_without_a_poll(database: Database, jobs: Jobs) -> None:
    """Queueing a job notifies the dispatcher."""
    handler = Handler()
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        done = await work.ended.get()

    assert (done.id, done.state, done.attempt) == (added.id, job_model.JobState.DONE, 1)
    assert [claim.subject for claim in handler.claims] == [added.subject]
    labels = {"kind": handler.kind, "outcome": "done"}
    assert work.metrics.get_sample_value("corral_job_attempts_total", labels) == 1


async def test_a_poll_without_jobs_writes_nothing(database: Database) -> None:
    async with run_dispatcher(database, Handler(), poll_s=0.001) as work:
        while work.transactions.num_read < 3:
            await database.across_projects.read(lambda tx: tx.now())

    assert work.transactions.num_written == 0


async def test_long_jobs_are_released_for_a_project_that_waits(
    database: Database, jobs: Jobs
) -> None:
    """Its job runs beside endless ones of another project, of which one is queued again."""
    blue, red = (Jobs(database, jobs.ids, project) for project in ("blue", "red"))

    async def run(claim: job_model.Claim, context: JobContext) -> None:
        if claim.project == "blue":
            await run_forever(claim, context)

    handler = Handler(run, concurrency=2)
    async with run_dispatcher(database, handler, poll_s=0.02, time_slice_s=0) as work:
        for _ in range(3):
            await blue.add()
        while len(handler.claims) < 2:
            handler.is_called.clear()
            await handler.is_called.wait()
        await red.add()
        ended = [await work.ended.get() for _ in range(2)]

    assert [(job.project, job.state) for job in ended] == [
        ("blue", job_model.JobState.QUEUED),
        ("red", job_model.JobState.DONE),
    ]
    assert len(handler.claims) >= 3


async def test_the_handler_limits_the_concurrency(database: Database, jobs: Jobs) -> None:
    """Each job waits for another one that runs at the same time; at most two run."""
    pair = asyncio.Barrier(2)
    running = max_running = 0

    async def count(_claim: job_model.Claim, _context: JobContext) -> None:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        await pair.wait()
        running -= 1

    handler = Handler(count, concurrency=2)
    async with run_dispatcher(database, handler) as work:
        for _ in range(6):
            await jobs.add()
        ended = [await work.ended.get() for _ in range(6)]

    assert {job.state for job in ended} == {job_model.JobState.DONE}
    assert max_running == 2


@pytest.mark.parametrize(
    ("error", "state", "attempt"),
    [
        (FileNotFound(file="f"), job_model.JobState.DEAD, 1),
        (TOO_SLOW, job_model.JobState.QUEUED, 1),
        (RuntimeError("a defect"), job_model.JobState.QUEUED, 1),
        (UpstreamUnavailable(service="inference"), job_model.JobState.QUEUED, 0),
        (job_model.EngineDied(EngineRestarting()), job_model.JobState.QUEUED, 0),
    ],
)
async def test_the_error_of_an_attempt_decides_whether_it_is_retried(
    database: Database, jobs: Jobs, error: Exception, state: job_model.JobState, attempt: int
) -> None:
    """The job is dead, or queued again; outages and engine deaths do not count as attempts."""

    async def fail(_claim: job_model.Claim, _context: JobContext) -> None:
        raise error

    async with run_dispatcher(database, Handler(fail)) as work:
        await jobs.add()
        ended = await work.ended.get()

    assert (ended.state, ended.attempt) == (state, attempt)
    assert ended.error is not None
    assert "a defect" not in ended.error.message


async def test_a_job_that_makes_the_sandbox_fail_dies(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Its document may be the cause. Other outages postpone it without limit."""

    async def fail(_claim: job_model.Claim, _context: JobContext) -> None:
        is_long = len(ended) > job_model.MAX_POSTPONED_BY_SANDBOX
        raise UpstreamUnavailable(service=SANDBOX if is_long else "inference")

    ended: list[job_model.Job] = []
    async with run_dispatcher(database, Handler(fail)) as work:
        await jobs.add()
        ended.append(await work.ended.get())
        while ended[-1].state is not job_model.JobState.DEAD:
            clock.now = ended[-1].run_after
            database.notifications.send(["jobs"])
            ended.append(await work.ended.get())

    uncounted = job_model.MAX_POSTPONED_BY_SANDBOX + 1
    assert [job.attempt for job in ended] == [*(0,) * uncounted, 1, 2, job_model.MAX_ATTEMPTS]


async def test_a_job_dies_of_its_third_failure_without_progress(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Progress resets the count; the dead letter has the error."""

    async def fail(claim: job_model.Claim, context: JobContext) -> None:
        if len(handler.claims) == 2:
            await context.write(no_change, progress=True)
        raise TOO_SLOW

    handler = Handler(fail)
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        ended = [await work.ended.get()]
        while ended[-1].state is not job_model.JobState.DEAD:
            clock.now = ended[-1].run_after
            database.notifications.send(["jobs"])
            ended.append(await work.ended.get())

    assert [job.attempt for job in ended] == [1, 1, 2, 3]
    assert [job.id for job in handler.dead_jobs] == [added.id]
    assert ended[-1].error is not None
    assert ended[-1].error.reason == "SLOW_READER"


async def test_a_running_job_is_notified_of_its_cancellation(
    database: Database, jobs: Jobs
) -> None:
    """The handler's `cancelled` event is set, and it can still finish the job."""

    async def until_cancelled(_claim: job_model.Claim, context: JobContext) -> None:
        await context.cancelled.wait()
        await context.finish(no_change)

    handler = Handler(until_cancelled)
    async with run_dispatcher(database, handler) as work:
        added = await jobs.add()
        await handler.is_called.wait()
        await jobs.cancel(added)
        ended = await work.ended.get()

    assert ended.state is job_model.JobState.DONE


async def test_a_dispatcher_that_stops_releases_its_jobs(database: Database, jobs: Jobs) -> None:
    """Another process claims them at once, and the attempt does not count."""
    first, second = Handler(run_forever), Handler()
    async with run_dispatcher(database, first, "first") as stopping:
        added = await jobs.add()
        await first.is_called.wait()
    released = stopping.ended.get_nowait()
    async with run_dispatcher(database, second, "second") as work:
        ended = await work.ended.get()

    assert (released.state, released.attempt) == (job_model.JobState.QUEUED, 0)
    assert (ended.id, ended.state, ended.attempt) == (added.id, job_model.JobState.DONE, 1)
    assert ended.fence > released.fence


class StoppingLeases(WatchedLeases):
    """Leases that stop the dispatcher during a claim."""

    dispatcher: Dispatcher

    async def claim(self, kinds: Collection[str]) -> job_model.Job | None:
        self.dispatcher.stop()
        return await super().claim(kinds)


async def test_a_job_claimed_during_the_stop_is_released(database: Database, jobs: Jobs) -> None:
    """The handler does not start, and the attempt does not count."""
    added = await jobs.add()
    handler = Handler(run_forever)
    terms = LeaseTerms(owner="a", lease=LEASE, is_exclusive=False)
    leases = StoppingLeases(database.across_projects, {KIND: handler}, terms)
    leases.dispatcher = Dispatcher(
        leases, database.notifications, [handler], JobMetrics(CollectorRegistry())
    )
    async with asyncio.timeout(50):
        await leases.dispatcher.run(NEVER_S)

    job = await jobs.get(added)
    assert (job.state, job.attempt, job.fence) == (job_model.JobState.QUEUED, 0, 1)
    assert handler.claims == []


async def test_an_attempt_that_lost_its_lease_is_cancelled(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """The process that took the job over finishes it."""
    cancelled = asyncio.Event()

    async def stall_at_first(claim: job_model.Claim, _context: JobContext) -> None:
        if claim.fence == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    handler, ended = Handler(stall_at_first), asyncio.Queue[job_model.Job]()
    async with run_dispatcher(database, handler, "first", ended=ended):
        added = await jobs.add()
        await handler.is_called.wait()
        clock.advance(minutes=1)
        async with run_dispatcher(database, handler, "second", ended=ended):
            done = await ended.get()
            database.notifications.send(["jobs"])
            await cancelled.wait()

    assert (done.id, done.state, done.num_lost) == (added.id, job_model.JobState.DONE, 0)
    assert ended.empty()


async def test_a_claim_whose_commit_got_no_response_is_found(
    database: Database, jobs: Jobs
) -> None:
    """The process that owns the lease releases the job, whose attempt never began, and claims it
    again: this is no death of a process."""
    added = await jobs.add()
    await make_leases(database.across_projects, "a").claim([KIND])

    async with run_dispatcher(database, Handler(), "a") as work:
        released, done = await work.ended.get(), await work.ended.get()

    assert (released.id, released.state, released.attempt) == (
        added.id,
        job_model.JobState.QUEUED,
        0,
    )
    assert (released.num_lost, released.error) == (0, None)
    assert (done.id, done.state, done.attempt) == (added.id, job_model.JobState.DONE, 1)


async def test_a_failing_dead_letter_handler_blocks_no_other_job(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Its job keeps running, to be tried again; others are taken over and done."""

    class Broken(Handler):
        async def on_dead(self, tx: Transaction, job: job_model.Job) -> None:
            raise RuntimeError("a defect")

    dead_worker, failing_job = make_leases(database.across_projects, "gone"), await jobs.add()
    for _ in range(job_model.MAX_LOST - 1):
        job = await dead_worker.claim_next()
        clock.now = (
            await dead_worker.end(job.claim, job_model.AttemptResult(job_model.Outcome.LOST))
        ).run_after
    await dead_worker.claim_next()
    orphan = await jobs.add()
    await dead_worker.claim_next()
    clock.advance(minutes=5)

    async with run_dispatcher(database, Broken()) as work:
        added = await jobs.add()
        ended = [await work.ended.get() for _ in range(2)]

    assert {job.id for job in ended} == {orphan.id, added.id}
    assert (await jobs.get(failing_job)).state is job_model.JobState.RUNNING


async def test_the_result_is_stored_once_the_database_is_available(
    database: Database, jobs: Jobs
) -> None:
    """A failure at the end of an attempt does not repeat the work."""

    async def fail_next_write(_claim: job_model.Claim, _context: JobContext) -> None:
        work.transactions.faults = [Fault.UNAVAILABLE]

    handler = Handler(fail_next_write)
    async with run_dispatcher(database, handler) as work:
        await jobs.add()
        ended = await work.ended.get()

    assert work.transactions.faults == []
    assert (ended.state, ended.fence, len(handler.claims)) == (job_model.JobState.DONE, 1, 1)


async def test_gauges_count_jobs(database: Database, jobs: Jobs, clock: SetClock) -> None:
    """By kind and state, and the time since the oldest queued job was due."""
    registry = CollectorRegistry()
    gauges = JobGauges(database.across_projects, JobMetrics(registry))
    await jobs.add()
    clock.advance(seconds=5)
    await jobs.add()
    await jobs.add()
    await make_leases(database.across_projects, "a").claim([KIND])
    clock.advance(seconds=2)
    await gauges.count()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"kind": KIND, **labels})

    assert value("corral_jobs", state="queued") == 2
    assert value("corral_jobs", state="running") == 1
    assert value("corral_jobs_oldest_queued_seconds") == 2
