"""Leases of jobs on both databases: claim, cancel, take over."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from control_svc.blobs.local import FolderBlobs
from control_svc.db.engine import Database
from control_svc.jobs.model import AttemptResult, Job, JobPriority, JobState, LeaseLost, Outcome
from control_svc.jobs.queries import JobQueueQueries, delete_ended_jobs
from control_svc.slices import BLOB_COLUMNS
from control_svc.sweeper import Sweeper
from svc_kit.errors import FileNotFound, UpstreamUnavailable
from tests.support.control import SetClock
from tests.support.jobs import KIND, LEASE, Handler, Jobs, make_leases, no_change


async def test_jobs_are_claimed_by_priority_and_age(database: Database, jobs: Jobs) -> None:
    """A job that is not due is not claimed."""
    batch = await jobs.add(priority=JobPriority.BATCH)
    late = await jobs.add(delay=timedelta(seconds=1))
    first, second = await jobs.add(), await jobs.add()
    leases = make_leases(database.across_projects, "a")

    claimed = [await leases.claim([KIND]) for _ in range(4)]

    assert [job and job.id for job in claimed] == [first.id, second.id, batch.id, None]
    assert (await jobs.get(late)).state is JobState.QUEUED


async def test_projects_share_the_workers(database: Database, jobs: Jobs) -> None:
    """The project with fewer running jobs comes first, however many the other has queued."""
    other = Jobs(database, jobs.ids, project="q")
    for _ in range(3):
        await jobs.add()
    for _ in range(2):
        await other.add()
    leases = make_leases(database.across_projects, "a")

    claimed = [await leases.claim([KIND]) for _ in range(5)]

    assert [job and job.project for job in claimed] == ["p", "q", "p", "q", "p"]


@pytest.mark.parametrize("seed", range(3))
async def test_claims_follow_the_documented_order(
    database: Database, clock: SetClock, jobs: Jobs, seed: int
) -> None:
    """Priority, then the fewest running jobs of the project, then age; only due jobs of the kinds
    that are asked for.
    """
    random = Random(seed)
    projects = [Jobs(database, jobs.ids, project=f"p{number}") for number in range(5)]
    kinds, queued, running = ["a", "b"], dict[str, Job](), dict[str, Job]()
    for _ in range(40):
        clock.advance(seconds=1)
        job = await random.choice(projects).add(
            kind=random.choice([*kinds, "other"]),
            priority=random.choice([*JobPriority]),
            delay=timedelta(hours=random.choice([0, 0, 0, 1])),
        )
        queued[job.id] = job
    leases = make_leases(database.across_projects, "one")

    def rank(job: Job) -> tuple[int, int, datetime]:
        flow = (job.project, job.kind)
        num_running = sum((each.project, each.kind) == flow for each in running.values())
        return job.priority, num_running, job.run_after

    due = [job for job in queued.values() if job.kind in kinds and job.run_after <= clock()]
    while due:
        expected = min(due, key=rank)
        claimed = await leases.claim(kinds)
        assert claimed is not None
        assert claimed.id == expected.id
        due.remove(expected)
        running[claimed.id] = claimed
        if random.random() < 0.5:
            ended = running.pop(random.choice([*running]))
            await leases.finish(ended.claim, no_change)

    assert await leases.claim(kinds) is None


async def test_a_worker_that_lost_its_job_cannot_write(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Once another worker has the job, every transaction of the first is rolled back."""
    added = await jobs.add()
    one, two = (make_leases(database.across_projects, owner) for owner in ("one", "two"))
    late = await one.claim_next()
    clock.advance(seconds=LEASE.total_seconds() - 1)
    assert await two.take_over_all() == []
    await one.write(late.claim, no_change, progress=False)
    clock.advance(seconds=LEASE.total_seconds())
    assert [job.id for job in await two.take_over_all()] == [added.id]
    current = await two.claim_next()

    for attempt in (
        one.write(late.claim, no_change, progress=False),
        one.finish(late.claim, no_change),
        one.end(late.claim, AttemptResult(Outcome.FAILED)),
    ):
        with pytest.raises(LeaseLost):
            await attempt

    assert current.fence == late.fence + 1
    await two.finish(current.claim, no_change)
    assert (await jobs.get(added)).state is JobState.DONE


async def test_a_renewed_lease_is_not_taken_over(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """A heartbeat renews the whole lease."""
    await jobs.add()
    one, two = (make_leases(database.across_projects, owner) for owner in ("one", "two"))
    await one.claim([KIND])
    clock.advance(seconds=14)
    await database.across_projects.write(lambda tx: JobQueueQueries(tx).renew("one", LEASE))
    clock.advance(seconds=14)

    assert await two.take_over_all() == []


async def test_a_refused_job_dies_at_once(database: Database, jobs: Jobs) -> None:
    added = await jobs.add()
    handler = Handler()
    leases = make_leases(database.across_projects, "a", {KIND: handler})
    job = await leases.claim_next()
    await leases.end(job.claim, AttemptResult(Outcome.REFUSED, FileNotFound(file="file-1")))

    dead = await jobs.get(added)
    assert (dead.state, dead.error and dead.error.reason) == (JobState.DEAD, "FILE_NOT_FOUND")
    assert [each.id for each in handler.dead_jobs] == [added.id]


async def test_a_job_is_postponed_without_limit(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """An outage is not a failure of the job; the backoff grows to a minute."""
    added = await jobs.add()
    leases = make_leases(database.across_projects, "a")
    waits = []
    for _ in range(10):
        job = await leases.claim_next()
        error = UpstreamUnavailable(service="inference")
        job = await leases.end(job.claim, AttemptResult(Outcome.POSTPONED, error))
        waits.append((job.run_after - clock.now).total_seconds())
        clock.now = job.run_after

    assert (await jobs.get(added)).state is JobState.QUEUED
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1, 30)


async def test_a_cancelled_job_becomes_due(database: Database, jobs: Jobs, clock: SetClock) -> None:
    """Its handler ends its subject; a job that has ended cannot be cancelled."""
    added = await jobs.add(delay=timedelta(hours=1))
    cancelled = await jobs.cancel(added)
    leases = make_leases(database.across_projects, "a")
    job = await leases.claim_next()
    assert cancelled is not None
    assert job.cancel_requested_at == clock.now == cancelled.cancel_requested_at
    await leases.finish(job.claim, no_change)

    assert await jobs.cancel(added) is None


async def test_concurrent_claims_get_different_jobs(database: Database, jobs: Jobs) -> None:
    """Each job goes to one of the workers."""
    added = {(await jobs.add()).id for _ in range(20)}
    claimed = []

    async def claim_all(number: int) -> None:
        leases = make_leases(database.across_projects, str(number))
        while (job := await leases.claim([KIND])) is not None:
            claimed.append(job.id)

    await asyncio.gather(*(claim_all(number) for number in range(8)))

    assert len(claimed) == len(added)
    assert set(claimed) == added


async def test_ended_jobs_are_deleted(
    tmp_path: Path, database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Done jobs after a day, dead letters after 30 days, queued ones never."""
    done, dead, queued = [await jobs.add() for _ in range(3)]
    leases = make_leases(database.across_projects, "a")
    for result in (
        AttemptResult(Outcome.DONE),
        AttemptResult(Outcome.REFUSED, FileNotFound(file="file-1")),
    ):
        job = await leases.claim_next()
        await leases.end(job.claim, result)
    blobs = FolderBlobs(tmp_path / "blobs")
    blobs.prepare()
    sweeper = Sweeper(
        database.across_projects,
        blobs,
        clock,
        timedelta(hours=1),
        [delete_ended_jobs],
        BLOB_COLUMNS,
    )

    remaining = []
    for days in (0.9, 0.2, 28, 1):
        clock.advance(days=days)
        await sweeper.sweep()
        remaining.append([each for each in (done, dead, queued) if await jobs.find(each.id)])

    assert remaining == [[done, dead, queued], [dead, queued], [dead, queued], [queued]]


async def test_a_cancellation_is_of_one_project_kind_and_subject(
    database: Database, jobs: Jobs
) -> None:
    """Other unfinished jobs go on."""
    others = Jobs(database, jobs.ids, "other-project")
    cancelled = await jobs.add(subject="s")
    kept = [await jobs.add(subject="s", kind="another"), await jobs.add(subject="t")]
    foreign = await others.add(subject="s")

    await jobs.cancel(cancelled)

    assert (await jobs.get(cancelled)).cancel_requested_at is not None
    for job in kept:
        assert (await jobs.get(job)).cancel_requested_at is None
    assert (await others.get(foreign)).cancel_requested_at is None
