"""The transitions of a job: every field that an attempt, a cancellation or a retry changes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control_svc.jobs.model import (
    AttemptResult,
    Job,
    JobError,
    JobPriority,
    JobState,
    LeaseLost,
    Outcome,
    backoff,
)
from svc_kit.errors import EngineCrashed, EngineRestarting, JobNotRetriable, WorkAbandoned

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=15)
QUEUED = Job(
    project="p",
    id="job_1",
    kind="batch",
    subject="batch_1",
    priority=JobPriority.BATCH,
    run_after=NOW - timedelta(hours=1),
    created_at=NOW - timedelta(hours=2),
)
RUNNING = QUEUED.start_attempt("worker", NOW, LEASE)
RELEASED = replace(RUNNING, lease_owner=None, lease_expires_at=None)
PROBLEM = EngineRestarting(phase="running")
ERROR = JobError(PROBLEM.reason, PROBLEM.message)
ABANDONED = WorkAbandoned(attempts=1)


def ended(job: Job, outcome: Outcome, error: Any = None) -> Job:
    """The job after an attempt without jitter."""
    return job.end_attempt(AttemptResult(outcome, error), NOW, 0.0)


def seconds(count: float) -> datetime:
    return NOW + timedelta(seconds=count)


def test_an_attempt_holds_a_lease() -> None:
    """It has a number and a fence of its own."""
    assert replace(QUEUED, attempt=1, fence=4).start_attempt("worker", NOW, LEASE) == replace(
        QUEUED,
        state=JobState.RUNNING,
        attempt=2,
        fence=5,
        lease_owner="worker",
        lease_expires_at=NOW + LEASE,
    )


@pytest.mark.parametrize(
    ("job", "outcome", "expected"),
    [
        (RUNNING, Outcome.DONE, {"state": JobState.DONE, "ended_at": NOW}),
        (RUNNING, Outcome.REFUSED, {"state": JobState.DEAD, "ended_at": NOW}),
        (RUNNING, Outcome.FAILED, {"run_after": seconds(0.5)}),
        (replace(RUNNING, attempt=2), Outcome.FAILED, {"attempt": 2, "run_after": seconds(1)}),
        (
            replace(RUNNING, attempt=3),
            Outcome.FAILED,
            {"attempt": 3, "state": JobState.DEAD, "ended_at": NOW},
        ),
        (RUNNING, Outcome.RELEASED, {"attempt": 0, "run_after": NOW}),
        (
            RUNNING,
            Outcome.LOST,
            {
                "attempt": 0,
                "num_lost": 1,
                "run_after": NOW,
                "error": JobError(ABANDONED.reason, ABANDONED.message),
            },
        ),
        (
            RUNNING,
            Outcome.POSTPONED,
            {"attempt": 0, "num_postponed": 1, "run_after": seconds(0.5)},
        ),
        (
            replace(RUNNING, num_postponed=2),
            Outcome.POSTPONED,
            {"attempt": 0, "num_postponed": 3, "run_after": seconds(2)},
        ),
        (
            RUNNING,
            Outcome.ENGINE_DIED,
            {"attempt": 0, "engine_deaths": 1, "run_after": seconds(0.5)},
        ),
        (
            replace(RUNNING, engine_deaths=1),
            Outcome.ENGINE_DIED,
            {"attempt": 0, "engine_deaths": 2, "run_after": seconds(1)},
        ),
    ],
)
def test_the_outcome_of_an_attempt_decides_what_is_next(
    job: Job, outcome: Outcome, expected: dict[str, Any]
) -> None:
    """The lease ends in any case; a job that is not over is queued again."""
    assert ended(job, outcome) == replace(RELEASED, **{"state": JobState.QUEUED, **expected})


def test_a_third_lost_attempt_ends_the_job() -> None:
    abandoned = WorkAbandoned(attempts=3)

    job = ended(replace(RUNNING, num_lost=2), Outcome.LOST)

    assert (job.state, job.ended_at) == (JobState.DEAD, NOW)
    assert job.error == JobError(abandoned.reason, abandoned.message)


@pytest.mark.parametrize("between", [Outcome.POSTPONED, Outcome.RELEASED, Outcome.FAILED])
def test_an_attempt_that_ends_by_itself_ends_the_row_of_deaths(between: Outcome) -> None:
    """Two kills, an attempt during an outage and one more kill are not three in a row."""
    job = QUEUED
    for outcome in (Outcome.LOST, Outcome.LOST, between, Outcome.LOST, Outcome.LOST):
        job = ended(job.start_attempt("worker", NOW, LEASE), outcome, PROBLEM)
        assert job.state is JobState.QUEUED
    assert ended(job.start_attempt("worker", NOW, LEASE), Outcome.LOST).state is JobState.DEAD


def test_a_third_engine_death_ends_the_job() -> None:
    """Its error counts the deaths, whatever the error of the call was."""
    crashed = EngineCrashed(times=3)

    job = ended(replace(RUNNING, engine_deaths=2), Outcome.ENGINE_DIED, PROBLEM)

    assert (job.state, job.ended_at, job.engine_deaths) == (JobState.DEAD, NOW, 3)
    assert job.error == JobError(crashed.reason, crashed.message)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.POSTPONED, Outcome.ENGINE_DIED])
def test_the_error_of_an_attempt_is_kept(outcome: Outcome) -> None:
    """Until an attempt is done."""
    failed = ended(RUNNING, outcome, PROBLEM)

    assert failed.error == ERROR
    assert ended(failed.start_attempt("worker", NOW, LEASE), Outcome.DONE).error is None


@pytest.mark.parametrize("outcome", [Outcome.POSTPONED, Outcome.ENGINE_DIED])
def test_the_wait_that_an_error_asks_for_is_kept(outcome: Outcome) -> None:
    """It is longer than the backoff."""
    problem = EngineRestarting(phase="running", retry_after=40.0)

    assert ended(RUNNING, outcome, problem).run_after == seconds(40)


@pytest.mark.parametrize(
    ("failures", "jitter", "wait"),
    [(1, 0.0, 0.5), (1, 0.5, 0.75), (3, 0.0, 2), (6, 0.0, 16), (7, 0.0, 30), (99, 0.0, 30)],
)
def test_the_backoff_doubles_up_to_a_minute(failures: int, jitter: float, wait: float) -> None:
    """Half of it is random."""
    assert backoff(failures, jitter) == timedelta(seconds=wait)


def test_a_lease_is_renewed_in_its_second_half() -> None:
    """Earlier the job does not change."""
    early = seconds(7)

    assert RUNNING.extend_lease(early, LEASE) is RUNNING
    assert RUNNING.extend_lease(seconds(7.5), LEASE).lease_expires_at == seconds(22.5)
    assert QUEUED.extend_lease(seconds(99), LEASE) is QUEUED


@pytest.mark.parametrize(
    ("owner", "now", "is_exclusive", "is_orphan"),
    [
        ("worker", seconds(99), True, False),
        ("other", seconds(14), False, False),
        ("other", seconds(15), False, True),
        ("other", seconds(0), True, True),
    ],
)
def test_a_job_is_orphaned_when_its_process_is_gone(
    owner: str, now: datetime, is_exclusive: bool, is_orphan: bool
) -> None:
    """Its lease has expired, or there can be no other process."""
    assert RUNNING.is_orphan(owner, now, is_exclusive=is_exclusive) is is_orphan
    assert not QUEUED.is_orphan(owner, now, is_exclusive=is_exclusive)


def test_only_the_current_claim_holds_a_job() -> None:
    """The fence differs after another claim; an ended job is held by none."""
    again = ended(RUNNING, Outcome.RELEASED).start_attempt("worker", NOW, LEASE)

    again.check_held(again.claim)
    for job, claim in ((again, RUNNING.claim), (ended(again, Outcome.DONE), again.claim)):
        with pytest.raises(LeaseLost):
            job.check_held(claim)


def test_a_claim_runs_alone_after_two_engine_deaths() -> None:
    """The job may be their cause."""
    claims = [replace(RUNNING, engine_deaths=deaths).claim for deaths in range(4)]

    assert [claim.runs_alone for claim in claims] == [False, False, True, True]


def test_progress_resets_failures_but_not_engine_deaths() -> None:
    """A job can make progress and kill an engine in every attempt."""
    job = replace(RUNNING, attempt=3, num_postponed=2, num_lost=2, engine_deaths=2)

    assert job.reset_attempts() == replace(RUNNING, attempt=1, engine_deaths=2)


def test_a_cancelled_job_is_due_at_once() -> None:
    """Again, or when it has ended, nothing changes."""
    waiting = replace(QUEUED, run_after=seconds(60))
    cancelled = waiting.request_cancel(NOW)

    assert cancelled == replace(waiting, cancel_requested_at=NOW, run_after=NOW)
    assert QUEUED.request_cancel(NOW).run_after == QUEUED.run_after
    assert RUNNING.request_cancel(NOW).cancel_requested_at == NOW
    for unchanged in (cancelled, ended(RUNNING, Outcome.DONE), ended(RUNNING, Outcome.REFUSED)):
        assert unchanged.request_cancel(seconds(1)) is unchanged


def test_an_expedited_job_is_due_at_once() -> None:
    waiting = replace(QUEUED, run_after=seconds(60))

    assert waiting.expedite("fast", NOW) == replace(waiting, kind="fast", run_after=NOW)
    assert QUEUED.expedite("fast", NOW).run_after == QUEUED.run_after


def test_a_dead_job_starts_anew() -> None:
    """Its counters and its error are reset; another job cannot be retried."""
    worn = replace(RUNNING, engine_deaths=2, num_postponed=1, num_lost=2)
    dead = ended(worn, Outcome.ENGINE_DIED, PROBLEM)
    dead.check_dead()

    assert dead.retry("other", seconds(5)) == replace(
        RELEASED, kind="other", state=JobState.QUEUED, attempt=0, run_after=seconds(5)
    )
    with pytest.raises(JobNotRetriable, match="queued"):
        QUEUED.check_dead()
