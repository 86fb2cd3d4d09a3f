"""Jobs: that none is lost and none done twice, whatever becomes of the workers, and their rules."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from control_svc.domain.jobs import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    MAX_ATTEMPTS,
    MAX_ENGINE_DEATHS,
    Ending,
    Job,
    JobPriority,
    JobState,
    Outcome,
    backoff,
)
from control_svc.storage.database import Database, open_database
from tests.support.control import SetClock
from tests.support.job_machine import BRIEF, JobMachine
from tests.support.jobs import LEASE, a_database

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A folder with an empty database, made once: the migrations take longer than an example."""

    async def make(folder: Path) -> None:
        async with a_database(folder):
            pass

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder)))
        yield Path(folder)


def test_no_job_is_lost_and_none_is_done_twice(template: Path) -> None:
    """With workers that stall, die and come back late; see the machine for what is checked."""

    @asynccontextmanager
    async def opened(clock: SetClock) -> AsyncIterator[Database]:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(template, folder, dirs_exist_ok=True)
            async with open_database(None, Path(folder), clock) as database:
                yield database

    class OnSqlite(JobMachine):
        pass

    OnSqlite.opened = opened
    run_state_machine_as_test(OnSqlite, settings=settings(BRIEF, max_examples=15))


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
        before, job = job, job.claimed("me", NOW, LEASE)
        assert job.fence == before.fence + 1
        if data.draw(st.booleans(), label="progress"):
            job, own = job.progressed(), 0
        job = job.ended(Ending(outcome), NOW + timedelta(seconds=1), 0.5)
        own += outcome in (Outcome.FAILED, Outcome.LOST)
        engines += outcome is Outcome.ENGINE_DIED
        is_dead = outcome is Outcome.REFUSED or own >= MAX_ATTEMPTS or engines >= MAX_ENGINE_DEATHS
        wanted = JobState.DONE if outcome is Outcome.DONE else JobState.QUEUED
        assert job.state is (JobState.DEAD if is_dead else wanted)
        assert job.lease_owner is None
        assert job.claim.runs_alone == (engines >= 2)
        if job.state is not JobState.QUEUED:
            break
