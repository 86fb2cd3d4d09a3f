"""Jobs run exactly once despite failing workers; backoff and outcome rules."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from control_svc.jobs import model as job_model
from tests.support.job_machine import JobMachine, OpenDatabase, check_histories
from tests.support.jobs import LEASE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_job_ends_exactly_once(on_sqlite: OpenDatabase) -> None:
    """With workers that stall, die and resume late; `JobMachine` checks the invariants."""

    check_histories(JobMachine, on_sqlite, max_examples=10)


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_monotonic_and_jittered(failures: int, jitter: float) -> None:
    """Between half a second and a minute, and never shorter after one more failure."""
    wait = job_model.backoff(failures, jitter)

    assert job_model.FIRST_BACKOFF / 2 <= wait <= job_model.LONGEST_BACKOFF
    assert wait <= job_model.backoff(failures + 1, jitter)
    assert job_model.backoff(failures, 0) <= wait


@given(outcomes=st.lists(st.sampled_from(job_model.Outcome), max_size=60), data=st.data())
def test_only_failures_that_a_job_may_have_caused_kill_it(
    outcomes: list[job_model.Outcome], data: st.DataObject
) -> None:
    """Three failures without progress, three deaths of its process in a row, three engine deaths,
    or one refusal; fences only grow."""
    job = job_model.Job(
        project="p", id="j", kind="k", subject="s",
        priority=job_model.JobPriority.NORMAL, run_after=NOW, created_at=NOW,
    )  # fmt: skip
    num_failed = num_lost = engine_deaths = 0
    for outcome in outcomes:
        before, job = job, job.start_attempt("me", NOW, LEASE)
        assert job.fence == before.fence + 1
        if data.draw(st.booleans(), label="progress"):
            job, num_failed, num_lost = job.reset_attempts(), 0, 0
        job = job.end_attempt(job_model.AttemptResult(outcome), NOW + timedelta(seconds=1), 0.5)
        num_failed += outcome is job_model.Outcome.FAILED
        num_lost = num_lost + 1 if outcome is job_model.Outcome.LOST else 0
        engine_deaths += outcome is job_model.Outcome.ENGINE_DIED
        is_exhausted = (
            num_failed >= job_model.MAX_ATTEMPTS
            or num_lost >= job_model.MAX_LOST
            or engine_deaths >= job_model.MAX_ENGINE_DEATHS
        )
        is_dead = outcome is job_model.Outcome.REFUSED or is_exhausted
        otherwise = (
            job_model.JobState.DONE
            if outcome is job_model.Outcome.DONE
            else job_model.JobState.QUEUED
        )
        assert job.state is (job_model.JobState.DEAD if is_dead else otherwise)
        assert job.lease_owner is None
        assert job.claim.runs_alone == (engine_deaths >= 2)
        if job.state is not job_model.JobState.QUEUED:
            break
