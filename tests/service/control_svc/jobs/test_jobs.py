"""Jobs on both databases: claimed, cancelled, taken over, and never by two."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from control_svc.blobs.local import FolderBlobs
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.jobs.model import AttemptResult, JobPriority, JobState, LeaseLost, Outcome
from control_svc.jobs.queries import JobQueueQueries
from control_svc.sweeper import Sweeper
from svc_kit.errors import FileNotFound, UpstreamUnavailable
from tests.support.archives import NO_ARCHIVE
from tests.support.control import SetClock
from tests.support.jobs import KIND, LEASE, Handler, Jobs, leases_of


async def nothing(_: Transaction) -> None:
    """Work that changes nothing."""


async def test_the_more_urgent_job_comes_first(database: Database, jobs: Jobs) -> None:
    """By priority, then by age; one that is not due does not come at all."""
    batch = await jobs.add(priority=JobPriority.BATCH)
    late = await jobs.add(delay=timedelta(seconds=1))
    first, second = await jobs.add(), await jobs.add()
    leases = leases_of(database, "a")

    claimed = [await leases.claim([KIND]) for _ in range(4)]

    assert [job and job.id for job in claimed] == [first.id, second.id, batch.id, None]
    assert (await jobs.get(late)).state is JobState.QUEUED


async def test_projects_take_turns(database: Database, jobs: Jobs) -> None:
    """The one with fewer running jobs comes first, however many the other one has queued."""
    other = Jobs(database, jobs.ids, project="q")
    for _ in range(3):
        await jobs.add()
    for _ in range(2):
        await other.add()
    leases = leases_of(database, "a")

    claimed = [await leases.claim([KIND]) for _ in range(5)]

    assert [job and job.project for job in claimed] == ["p", "q", "p", "q", "p"]


async def test_a_late_worker_changes_nothing(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Once another one has the job, every transaction of the first is rolled back."""
    added = await jobs.add()
    one, two = leases_of(database, "one"), leases_of(database, "two")
    late = await one.claim([KIND])
    assert late is not None
    clock.advance(seconds=LEASE.total_seconds() - 1)
    assert await two.take_over_all() == []
    await one.write(late.claim, nothing, progress=False)
    clock.advance(seconds=LEASE.total_seconds())
    assert [job.id for job in await two.take_over_all()] == [added.id]
    now_of_two = await two.claim([KIND])
    assert now_of_two is not None

    for attempt in (
        one.write(late.claim, nothing, progress=False),
        one.finish(late.claim, nothing),
        one.end(late.claim, AttemptResult(Outcome.FAILED)),
    ):
        with pytest.raises(LeaseLost):
            await attempt

    assert now_of_two.fence == late.fence + 1
    await two.finish(now_of_two.claim, nothing)
    assert (await jobs.get(added)).state is JobState.DONE


async def test_a_renewed_lease_is_not_taken(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """A heartbeat is worth a whole lease from its time on."""
    await jobs.add()
    one, two = leases_of(database, "one"), leases_of(database, "two")
    await one.claim([KIND])
    clock.advance(seconds=14)
    await database.transactions.write(lambda each: JobQueueQueries(each).renew("one", LEASE))
    clock.advance(seconds=14)

    assert await two.take_over_all() == []


async def test_a_refusal_buries_and_tells(database: Database, jobs: Jobs) -> None:
    """What cannot succeed later dies at once, with the reason, and its subject hears of it."""
    added = await jobs.add()
    handler = Handler()
    leases = leases_of(database, "a", dead_letter_handler=handler)
    job = await leases.claim([KIND])
    assert job is not None
    await leases.end(job.claim, AttemptResult(Outcome.REFUSED, FileNotFound(file="file-1")))

    dead = await jobs.get(added)
    assert (dead.state, dead.error and dead.error.reason) == (JobState.DEAD, "FILE_NOT_FOUND")
    assert [each.id for each in handler.dead_jobs] == [added.id]


async def test_what_waits_for_others_waits_for_ever(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """An outage is no failure of the job; the waits grow to a minute."""
    added = await jobs.add()
    leases = leases_of(database, "a")
    waits = []
    for _ in range(10):
        job = await leases.claim([KIND])
        assert job is not None
        error = UpstreamUnavailable(service="inference")
        job = await leases.end(job.claim, AttemptResult(Outcome.POSTPONED, error))
        waits.append((job.run_after - clock.now).total_seconds())
        clock.now = job.run_after

    assert (await jobs.get(added)).state is JobState.QUEUED
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1, 30)


async def test_a_cancelled_job_runs_at_once(
    database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Its worker ends its subject; what has ended cannot be cancelled."""
    added = await jobs.add(delay=timedelta(hours=1))
    cancelled = await jobs.cancel(added)
    leases = leases_of(database, "a")
    job = await leases.claim([KIND])
    assert job is not None
    assert cancelled is not None
    assert job.cancel_requested_at == clock.now == cancelled.cancel_requested_at
    await leases.finish(job.claim, nothing)

    assert await jobs.cancel(added) is None


async def test_claims_at_the_same_moment_differ(database: Database, jobs: Jobs) -> None:
    """Each job is given to one of the workers."""
    added = {(await jobs.add()).id for _ in range(20)}
    workers = [leases_of(database, str(number)) for number in range(8)]

    async def claim_all(number: int) -> list[str]:
        found = []
        while (job := await workers[number].claim([KIND])) is not None:
            found.append(job.id)
        return found

    claimed = await asyncio.gather(*(claim_all(number) for number in range(8)))

    together = [job_id for each in claimed for job_id in each]
    assert len(together) == len(added)
    assert set(together) == added


async def test_what_has_ended_is_forgotten(
    tmp_path: Path, database: Database, jobs: Jobs, clock: SetClock
) -> None:
    """Done jobs after a day, dead letters after a month, others never."""
    done, dead, waiting = [await jobs.add() for _ in range(3)]
    leases = leases_of(database, "a")
    for ending in (
        AttemptResult(Outcome.DONE),
        AttemptResult(Outcome.REFUSED, FileNotFound(file="file-1")),
    ):
        job = await leases.claim([KIND])
        assert job is not None
        await leases.end(job.claim, ending)
    blobs = FolderBlobs(tmp_path / "blobs")
    blobs.prepare()
    sweeper = Sweeper(
        database.transactions, blobs, clock, timedelta(hours=1), timedelta(hours=1), NO_ARCHIVE
    )

    left = []
    for days in (0.9, 0.2, 28, 1):
        clock.advance(days=days)
        await sweeper.sweep()
        left.append([each for each in (done, dead, waiting) if await jobs.exists(each)])

    assert left == [[done, dead, waiting], [dead, waiting], [dead, waiting], [waiting]]
