"""Validation of new batches, and state transitions."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control_svc.batches.model import (
    Batch,
    BatchEndpoint,
    BatchState,
    LineProblem,
    LineState,
    NewBatch,
    TokenUsage,
    check_input,
)
from control_svc.files.model import File, FilePurpose
from svc_kit.errors import (
    BatchNotCancellable,
    DomainError,
    InvalidField,
    MissingField,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def new_batch(**changes: Any) -> NewBatch:
    fields = {"input_file_id": "file-1", "endpoint": BatchEndpoint.CHAT_COMPLETIONS.value}
    return NewBatch(**{**fields, **changes})


def make_batch(**changes: Any) -> Batch:
    return new_batch(**changes).make("batch_1", NOW)


def test_the_default_window_is_a_day() -> None:
    assert make_batch().expires_at == NOW + timedelta(days=1)
    assert make_batch(window=timedelta(hours=2)).expires_at == NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"input_file_id": ""}, MissingField, "input_file_id"),
        ({"endpoint": ""}, MissingField, "endpoint"),
        ({"endpoint": "/v1/moderations"}, InvalidField, "endpoint"),
        ({"endpoint": "/v1/images/generations"}, InvalidField, "endpoint"),
    ],
)
def test_invalid_parameters_are_rejected(
    changes: dict[str, Any], error: type[DomainError], field: str
) -> None:
    with pytest.raises(error) as raised:
        new_batch(**changes).check()

    assert raised.value.field == field


def test_the_input_file_must_have_the_purpose_batch() -> None:
    """The error names the field and the purpose."""
    file = File(
        id="file-1",
        filename="a",
        purpose=FilePurpose.USER_DATA,
        size_bytes=1,
        sha256="",
        blob_key="k",
        created_at=NOW,
        expires_at=None,
    )
    with pytest.raises(InvalidField) as raised:
        check_input(file)

    assert raised.value.field == "input_file_id"
    assert "user_data" in raised.value.message


def test_a_batch_whose_lines_have_ended_completes() -> None:
    """Each state has a timestamp."""
    running = make_batch().start("demo", 2, NOW).add_results(1, 1, TokenUsage(5, 2, 3, 1))
    done = running.close(LATER).finish("file-out", "file-err", LATER)

    assert (done.state, done.completed_at) == (BatchState.COMPLETED, LATER)
    assert (done.in_progress_at, done.finalizing_at) == (NOW, LATER)
    assert (done.counts.total, done.counts.completed, done.counts.failed) == (2, 1, 1)
    assert done.usage == TokenUsage(5, 2, 3, 1)


def test_an_invalid_file_fails_the_batch() -> None:
    problems = (LineProblem("empty_file", "The file has no requests."),)
    failed = make_batch().fail_validation(problems, LATER)

    assert (failed.state, failed.failed_at, failed.problems) == (BatchState.FAILED, LATER, problems)


def test_a_batch_with_lines_that_did_not_run_expires() -> None:
    closed = make_batch().start("demo", 3, NOW).add_results(1, 0, TokenUsage()).close(LATER)
    done = closed.finish("file-out", "file-err", LATER)

    assert closed.state is BatchState.FINALIZING
    assert (done.state, done.expired_at) == (BatchState.EXPIRED, LATER)
    assert (done.counts.completed, done.counts.failed) == (1, 2)


def test_a_cancelled_batch_keeps_its_results() -> None:
    """Pending lines count as failed."""
    cancelling = make_batch().start("demo", 3, NOW).add_results(1, 0, TokenUsage()).cancel(LATER)
    done = cancelling.close(LATER).finish("file-out", "file-err", LATER)

    assert cancelling.unrun_line_state is LineState.CANCELLED
    assert (done.state, done.cancelled_at) == (BatchState.CANCELLED, LATER)
    assert (done.counts.completed, done.counts.failed) == (1, 2)
    assert done.cancel(LATER) is done


def test_a_batch_cancelled_during_validation_does_not_start() -> None:
    """Whatever the result of the validation."""
    cancelling = make_batch().cancel(LATER)

    assert cancelling.start("demo", 3, LATER) == cancelling.fail_validation((), LATER) == cancelling
    assert not cancelling.is_validated


def test_a_dead_job_fails_the_batch_unless_it_has_ended() -> None:
    problem = LineProblem("work_abandoned", "gone")
    running = make_batch().start("demo", 1, NOW)
    ended = running.close(LATER).finish(None, "f", LATER)

    abandoned = running.abandon(problem, LATER, is_last=False)
    failed = abandoned.finish("out", None, LATER)

    assert (abandoned.state, abandoned.counts.failed) == (BatchState.FINALIZING, 1)
    assert (failed.state, failed.output_file_id, failed.problems) == ("failed", "out", (problem,))
    assert abandoned.abandon(problem, LATER, is_last=True).state is BatchState.FAILED
    assert ended.abandon(problem, LATER, is_last=True) is ended


def test_a_dead_job_does_not_fail_a_batch_that_is_closing() -> None:
    """A closing job writes the files of finalizing and cancelling batches."""
    problem = LineProblem("work_abandoned", "gone")
    running = make_batch().start("demo", 2, NOW).add_results(1, 0, TokenUsage())
    finalizing = running.add_results(1, 0, TokenUsage()).close(LATER)
    cancelling = running.cancel(LATER)

    closed = cancelling.abandon(problem, LATER, is_last=False)

    assert cancelling.abandoned_line_state is LineState.CANCELLED
    assert finalizing.abandon(problem, LATER, is_last=False) == finalizing
    assert (closed.counts.pending, closed.finish("f", "e", LATER).state) == (0, "cancelled")


@pytest.mark.parametrize("state", ["validating", "in_progress", "cancelling"])
def test_a_batch_that_failed_without_files_can_be_reopened(state: str) -> None:
    """It returns to its previous state, and abandoned lines are pending again."""
    problem = LineProblem("work_abandoned", "gone")
    running = make_batch().start("demo", 3, NOW).add_results(1, 0, TokenUsage())
    abandoned = running.abandon(problem, NOW, is_last=False)
    failed = {
        "validating": make_batch(),
        "in_progress": abandoned,
        "cancelling": make_batch().cancel(NOW),
    }[state].abandon(problem, LATER, is_last=True)

    reopened = failed.reopen(2 if state == "in_progress" else 0)

    assert failed.can_reopen
    assert not abandoned.finish("out", "errors", LATER).can_reopen
    assert (reopened.state, reopened.problems, reopened.failed_at) == (state, (), None)
    if state == "in_progress":
        assert (reopened.counts.completed, reopened.counts.pending) == (1, 2)


@pytest.mark.parametrize("state", ["finalizing", "completed", "failed", "expired"])
def test_an_ended_batch_cannot_be_cancelled(state: str) -> None:
    """The error contains its state."""
    started = make_batch().start("demo", 1, NOW)
    ended = {
        "finalizing": started.close(LATER),
        "completed": started.add_results(1, 0, TokenUsage()).close(LATER).finish("f", None, LATER),
        "failed": make_batch().fail_validation((), LATER),
        "expired": started.close(LATER).finish(None, "f", LATER),
    }[state]
    with pytest.raises(BatchNotCancellable) as raised:
        ended.cancel(LATER)

    assert raised.value.state == state
