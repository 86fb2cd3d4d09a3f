"""Jobs run exactly once despite failing workers; backoff and outcome rules."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from control_svc.jobs.model import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    MAX_ATTEMPTS,
    MAX_ENGINE_DEATHS,
    MAX_LOST,
    AttemptResult,
    Job,
    JobPriority,
    JobState,
    Outcome,
    backoff,
)
from tests.support.job_machine import JobMachine, OpenDatabase, check_histories
from tests.support.jobs import LEASE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_job_ends_exactly_once(on_sqlite: OpenDatabase) -> None:
    """With workers that stall, die and resume late; `JobMachine` checks the invariants."""

    check_histories(JobMachine, on_sqlite, max_examples=10)


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_monotonic_and_jittered(failures: int, jitter: float) -> None:
    """Between half a second and a minute, and never shorter after one more failure."""
    wait = backoff(failures, jitter)

    assert FIRST_BACKOFF / 2 <= wait <= LONGEST_BACKOFF
    assert wait <= backoff(failures + 1, jitter)
    assert backoff(failures, 0) <= wait


@given(outcomes=st.lists(st.sampled_from(Outcome), max_size=60), data=st.data())
def test_only_failures_that_a_job_may_have_caused_kill_it(
    outcomes: list[Outcome], data: st.DataObject
) -> None:
    """Three failures without progress, three deaths of its process in a row, three engine deaths,
    or one refusal; fences only grow."""
    job = Job(
        project="p", id="j", kind="k", subject="s",
        priority=JobPriority.NORMAL, run_after=NOW, created_at=NOW,
    )  # fmt: skip
    num_failed = num_lost = engine_deaths = 0
    for outcome in outcomes:
        before, job = job, job.start_attempt("me", NOW, LEASE)
        assert job.fence == before.fence + 1
        if data.draw(st.booleans(), label="progress"):
            job, num_failed, num_lost = job.reset_attempts(), 0, 0
        job = job.end_attempt(AttemptResult(outcome), NOW + timedelta(seconds=1), 0.5)
        num_failed += outcome is Outcome.FAILED
        num_lost = num_lost + 1 if outcome is Outcome.LOST else 0
        engine_deaths += outcome is Outcome.ENGINE_DIED
        is_exhausted = (
            num_failed >= MAX_ATTEMPTS or num_lost >= MAX_LOST or engine_deaths >= MAX_ENGINE_DEATHS
        )
        is_dead = outcome is Outcome.REFUSED or is_exhausted
        otherwise = JobState.DONE if outcome is Outcome.DONE else JobState.QUEUED
        assert job.state is (JobState.DEAD if is_dead else otherwise)
        assert job.lease_owner is None
        assert job.claim.runs_alone == (engine_deaths >= 2)
        if job.state is not JobState.QUEUED:
            break
