"""JobService on both databases: lists of jobs, and retries of dead ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from corral.control.v1.audit_service_pb2 import ListAuditEventsRequest
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub

from control_svc.batches.lines import LineResult, PendingLine, response_line
from control_svc.batches.model import Batch, LineState
from svc_kit.errors import (
    InternalError,
    InvalidField,
    JobNotFound,
    JobNotRetriable,
    ProjectNotFound,
    ScopeMissing,
)
from tests.support.batches import RunningBatches, chat_line, run_batches
from tests.support.operators import JobPb, Operator

DEAD, DONE = JobPb.STATE_DEAD, JobPb.STATE_DONE


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """Both services, on each database."""
    async with run_batches(tmp_path, database_url) as services:
        yield services


@pytest.fixture
def operator(running: RunningBatches) -> Operator:
    return Operator.of(running.control)


async def dead_jobs(operator: Operator, batch_id: str) -> Sequence[JobPb]:
    """The dead jobs of a batch, newest first."""
    page = await operator.list_jobs(state=DEAD)
    return [job for job in page.jobs if job.subject == batch_id]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_closing_job_writes_the_files_if_the_first_job_dies(
    running: RunningBatches, is_cancelled: bool
) -> None:
    """The batch ends as without the failure: completed, or cancelled with the lines that ran."""
    release = running.fake.block("b")
    batch = await running.create_failing([chat_line("a"), chat_line("b")], failed_writes=1)
    await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
    if is_cancelled:
        await running.batches.cancel(batch.id)
    else:
        release.set()
    outcome = await running.batches.wait_for_outcome(batch.id)

    if is_cancelled:
        assert (outcome.state, outcome.counts) == ("cancelled", (2, 1, 1))
        assert outcome.failed["b"]["error"]["code"] == "batch_cancelled"
    else:
        assert (outcome.state, outcome.counts) == ("completed", (2, 2, 0))
    assert "a" in outcome.completed


async def test_a_retried_job_writes_the_results_that_there_are(
    running: RunningBatches, operator: Operator
) -> None:
    """No line runs twice, and the batch completes."""
    lines = [chat_line("a"), chat_line("b", temperature="hot")]
    batch = await running.create_failing(lines, failed_writes=2)
    failed = await running.batches.wait_for_outcome(batch.id)
    await running.control.control.sweeper.sweep()
    newest, first = await dead_jobs(operator, batch.id)
    retried = await operator.retry_job(newest.id)
    audit = AuditServiceStub(operator.channel)
    events = (await operator.call(audit.ListAuditEvents, ListAuditEventsRequest())).events
    assert [(each.method, each.target) for each in events] == [("JobService/RetryJob", newest.id)]
    outcome = await running.batches.wait_for_outcome(batch.id)

    assert (failed.state, failed.completed, failed.failed) == ("failed", {}, {})
    assert (newest.kind, newest.error_reason) == ("batch-closing", "INTERNAL")
    assert (retried.state, retried.attempt, retried.error_reason) == (JobPb.STATE_QUEUED, 0, "")
    assert (outcome.state, outcome.counts) == ("completed", (2, 1, 1))
    assert set(outcome.completed) == {"a"}
    assert set(outcome.failed) == {"b"}
    assert set(running.fake.answered.values()) == {1}
    for job in (first, newest):
        with pytest.raises(JobNotRetriable):
            await operator.retry_job(job.id)


class FailingLines:
    """A LineRunner whose second line kills the job while `is_defective`."""

    def __init__(self) -> None:
        self.is_defective = True
        self.may_fail = asyncio.Event()
        self.completed: list[int] = []

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """Complete the line, or raise an error that is not retryable."""
        if line.number == 2 and self.is_defective:
            await self.may_fail.wait()
            raise InternalError(request_id="r")
        self.completed.append(line.number)
        text = response_line(batch.id, line.number, f"line-{line.number}", 200, "r", {})
        return LineResult(line.number, LineState.COMPLETED, text)


async def test_a_retried_job_runs_the_lines_that_the_failure_ended(
    tmp_path: Path, database_url: str | None
) -> None:
    """Lines with results keep them."""
    lines = FailingLines()
    async with run_batches(tmp_path, database_url, lines=lines) as running:
        operator = Operator.of(running.control)
        batch = await running.create_failing([chat_line("a"), chat_line("b")], failed_writes=1)
        await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
        lines.may_fail.set()
        failed = await running.batches.wait_for_outcome(batch.id)
        lines.is_defective = False
        newest = (await dead_jobs(operator, batch.id))[0]
        await operator.retry_job(newest.id)
        outcome = await running.batches.wait_for_outcome(batch.id)

    assert (failed.state, failed.counts, failed.completed) == ("failed", (2, 1, 1), {})
    assert (outcome.state, outcome.counts) == ("completed", (2, 2, 0))
    assert lines.completed == [1, 2]


async def test_jobs_are_listed_by_project_and_state(
    running: RunningBatches, operator: Operator
) -> None:
    """Newest first, in pages; a job is returned as it is listed."""
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


async def test_only_dead_jobs_can_be_retried(running: RunningBatches, operator: Operator) -> None:
    """Unknown and malformed ids are not found."""
    await running.batches.wait_for_outcome((await running.batches.create([chat_line("a")])).id)
    (done,) = (await operator.list_jobs()).jobs

    with pytest.raises(JobNotRetriable, match="it is done"):
        await operator.retry_job(done.id)
    for unknown in ("", "job_1", "x\0", done.id[:-1] + "g", done.id[:-4] + "0000"):
        for call in (operator.get_job, operator.retry_job):
            with pytest.raises(JobNotFound):
                await call(unknown)


async def test_jobs_are_for_operators(tmp_path: Path) -> None:
    """An API key of a project may not list jobs, not even its own."""
    async with run_batches(tmp_path, require_keys=True) as running:
        operator = Operator.of(running.control)
        key = (await operator.create_key()).secret
        with pytest.raises(ScopeMissing):
            await Operator.of(running.control, key).list_jobs()
