"""Jobs as operators see them, on both databases: lists, and dead ones that begin again."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from control_svc.batches.line_client import LineClient
from svc_kit.errors import (
    InternalError,
    InvalidField,
    JobNotFound,
    JobNotRetriable,
    ProjectNotFound,
    ScopeMissing,
)
from tests.support.batches import (
    BatchClient,
    RunningBatches,
    chat_line,
    fail_to_write,
    running_batches,
)
from tests.support.operators import JobPb, Operator

DEAD, DONE = JobPb.STATE_DEAD, JobPb.STATE_DONE


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """Batches, on each database."""
    async with running_batches(tmp_path, database_url) as both:
        yield both


@pytest.fixture
def operator(running: RunningBatches) -> Operator:
    """Who looks after them."""
    return Operator.of(running.control)


async def a_failed_batch(batches: BatchClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """A batch that failed without files."""
    fail_to_write(monkeypatch, times=2)
    batch = await batches.create([chat_line("a"), chat_line("b", temperature="hot")])
    outcome = await batches.wait_for_outcome(batch.id)
    assert (outcome.state, outcome.completed, outcome.failed) == ("failed", {}, {})
    return batch.id


async def dead_jobs(operator: Operator, batch_id: str) -> Sequence[JobPb]:
    """Those of a batch, newest first."""
    page = await operator.list_jobs(state=DEAD)
    return [job for job in page.jobs if job.subject == batch_id]


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_files_are_written_by_another_job_where_the_first_is_dead(
    running: RunningBatches, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """The batch ends as it would have: completed, or cancelled with what had run."""
    fail_to_write(monkeypatch, times=1)
    hold = running.fake.block("b")
    batch = await running.batches.create([chat_line("a"), chat_line("b")])
    await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
    if is_given_up:
        await running.batches.cancel(batch.id)
    else:
        hold.set()
    outcome = await running.batches.wait_for_outcome(batch.id)

    if is_given_up:
        assert (outcome.state, outcome.counts) == ("cancelled", (2, 1, 1))
        assert outcome.failed["b"]["error"]["code"] == "batch_cancelled"
    else:
        assert (outcome.state, outcome.counts) == ("completed", (2, 2, 0))
    assert "a" in outcome.completed


async def test_a_dead_job_begins_again_and_writes_what_had_run(
    running: RunningBatches, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed twice, and the batch completes after all."""
    batch_id = await a_failed_batch(running.batches, monkeypatch)
    await running.control.control.sweeper.sweep()
    newest, first = await dead_jobs(operator, batch_id)
    retried = await operator.retry_job(newest.id)
    outcome = await running.batches.wait_for_outcome(batch_id)

    assert (newest.kind, newest.error_reason) == ("batch-closing", "INTERNAL")
    assert (retried.state, retried.attempt, retried.error_reason) == (JobPb.STATE_QUEUED, 0, "")
    assert (outcome.state, outcome.counts) == ("completed", (2, 1, 1))
    assert set(outcome.completed) == {"a"}
    assert set(outcome.failed) == {"b"}
    assert set(running.fake.answered.values()) == {1}
    for job in (first, newest):
        with pytest.raises(JobNotRetriable):
            await operator.retry_job(job.id)


async def test_lines_that_a_failure_ended_run_when_the_job_begins_again(
    running: RunningBatches, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that had answers keep them."""
    fail_to_write(monkeypatch, times=1)
    work = LineClient.run
    defective = {"b"}

    async def run(self: LineClient, *line: object) -> object:
        if defective and b'"b"' in line[2].request:  # type: ignore[attr-defined]
            await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
            raise InternalError(request_id="r")
        return await work(self, *line)  # type: ignore[arg-type]

    monkeypatch.setattr(LineClient, "run", run)
    batch = await running.batches.create([chat_line("a"), chat_line("b")])
    failed = await running.batches.wait_for_outcome(batch.id)
    defective.clear()
    newest = (await dead_jobs(operator, batch.id))[0]
    await operator.retry_job(newest.id)
    outcome = await running.batches.wait_for_outcome(batch.id)

    assert (failed.state, failed.counts, failed.completed) == ("failed", (2, 1, 1), {})
    assert (outcome.state, outcome.counts) == ("completed", (2, 2, 0))
    assert dict(running.fake.answered) == {"a": 1, "b": 1}


async def test_jobs_are_listed_by_project_and_state(
    running: RunningBatches, operator: Operator
) -> None:
    """Newest first, in pages; one is described as in the list."""
    for project in ("red", "blue", "red"):
        client = running.of_project(project)
        await client.wait_for_outcome((await client.create([chat_line("a")])).id)
    first = await operator.list_jobs(page_size=2)
    rest = await operator.list_jobs(page_size=2, page_token=first.next_page_token)
    red = await operator.list_jobs(project_id="red", state=DONE)

    assert [job.project for job in (*first.jobs, *rest.jobs)] == ["red", "blue", "red"]
    assert [job.project for job in red.jobs] == ["red", "red"]
    assert not (await operator.list_jobs(state=DEAD)).jobs
    assert await operator.get_job(red.jobs[0].id) == red.jobs[0]
    with pytest.raises(InvalidField):
        await operator.list_jobs(project_id="red", page_token=first.next_page_token)
    with pytest.raises(ProjectNotFound):
        await operator.list_jobs(project_id="no project")
    with pytest.raises(InvalidField):
        await operator.list_jobs(state=77)


async def test_what_is_not_dead_does_not_begin_again(
    running: RunningBatches, operator: Operator
) -> None:
    """Nor does what is not there."""
    await running.batches.wait_for_outcome((await running.batches.create([chat_line("a")])).id)
    (done,) = (await operator.list_jobs()).jobs

    with pytest.raises(JobNotRetriable, match="it is done"):
        await operator.retry_job(done.id)
    for unknown in ("", "job_1", "x\0", done.id[:-1] + "g", done.id[:-4] + "0000"):
        for call in (operator.get_job, operator.retry_job):
            with pytest.raises(JobNotFound):
                await call(unknown)


async def test_jobs_are_for_operators(tmp_path: Path) -> None:
    """A key of a project sees none, its own neither."""
    async with running_batches(tmp_path, require_keys=True) as running:
        operator = Operator.of(running.control)
        key = (await operator.create_key()).secret
        with pytest.raises(ScopeMissing):
            await Operator.of(running.control, key).list_jobs()
