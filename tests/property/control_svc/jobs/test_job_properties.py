"""Jobs: that none is lost and none done twice, whatever becomes of the workers, and their rules."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from control_svc.jobs.model import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    MAX_ATTEMPTS,
    MAX_ENGINE_DEATHS,
    AttemptResult,
    Job,
    JobPriority,
    JobState,
    Outcome,
    backoff,
)
from tests.support.examples import examples
from tests.support.job_machine import BRIEF, JobMachine, Opened
from tests.support.jobs import LEASE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_no_job_is_lost_and_none_is_done_twice(on_sqlite: Opened) -> None:
    """With workers that stall, die and come back late; see the machine for what is checked."""

    class OnSqlite(JobMachine):
        pass

    OnSqlite.opened = on_sqlite
    run_state_machine_as_test(OnSqlite, settings=settings(BRIEF, max_examples=examples(15)))


@given(failures=st.integers(1, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_waits_are_bounded_and_spread(failures: int, chance: float) -> None:
    """Between half a second and a minute; never shorter after one failure more."""
    wait = backoff(failures, chance)

    assert FIRST_BACKOFF / 2 <= wait <= LONGEST_BACKOFF
    assert wait <= backoff(failures + 1, chance)
    assert backoff(failures, 0) <= wait


@given(outcomes=st.lists(st.sampled_from(Outcome), max_size=60), data=st.data())
def test_only_what_may_be_its_own_fault_kills_a_job(
    outcomes: list[Outcome], data: st.DataObject
) -> None:
    """Three failures without progress, three engines, or one refusal; fences only grow."""
    job = Job(
        project="p", id="j", kind="k", subject="s",
        priority=JobPriority.NORMAL, run_after=NOW, created_at=NOW,
    )  # fmt: skip
    own = engines = 0
    for outcome in outcomes:
        before, job = job, job.start_attempt("me", NOW, LEASE)
        assert job.fence == before.fence + 1
        if data.draw(st.booleans(), label="progress"):
            job, own = job.reset_attempts(), 0
        job = job.end_attempt(AttemptResult(outcome), NOW + timedelta(seconds=1), 0.5)
        own += outcome in (Outcome.FAILED, Outcome.LOST)
        engines += outcome is Outcome.ENGINE_DIED
        is_dead = outcome is Outcome.REFUSED or own >= MAX_ATTEMPTS or engines >= MAX_ENGINE_DEATHS
        wanted = JobState.DONE if outcome is Outcome.DONE else JobState.QUEUED
        assert job.state is (JobState.DEAD if is_dead else wanted)
        assert job.lease_owner is None
        assert job.claim.runs_alone == (engines >= 2)
        if job.state is not JobState.QUEUED:
            break
