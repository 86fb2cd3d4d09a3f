"""Batches: what callers may ask for, and the walks through their states."""

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
    OutOfRange,
    TooLong,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def asked(**changed: Any) -> NewBatch:
    """What a caller asks for."""
    fields = {"input_file_id": "file-1", "endpoint": BatchEndpoint.CHAT_COMPLETIONS.value}
    return NewBatch(**{**fields, **changed})


def a_batch(**changed: Any) -> Batch:
    """A batch at its beginning."""
    return asked(**changed).make("batch_1", NOW)


def test_a_window_is_a_day_unless_said() -> None:
    """From the creation on."""
    assert a_batch().expires_at == NOW + timedelta(days=1)
    assert a_batch(window=timedelta(hours=2)).expires_at == NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("changed", "error", "field"),
    [
        ({"input_file_id": ""}, MissingField, "input_file_id"),
        ({"endpoint": ""}, MissingField, "endpoint"),
        ({"endpoint": "/v1/moderations"}, InvalidField, "endpoint"),
        ({"endpoint": "/v1/images/generations"}, InvalidField, "endpoint"),
        ({"window": timedelta(minutes=59)}, OutOfRange, "completion_window"),
        ({"window": timedelta(days=8)}, OutOfRange, "completion_window"),
        ({"output_ttl": timedelta(minutes=59)}, OutOfRange, "output_ttl"),
        ({"metadata": {str(n): "" for n in range(17)}}, TooLong, "metadata"),
        ({"metadata": {"": "x"}}, MissingField, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, TooLong, "metadata"),
        ({"metadata": {"k": "v" * 513}}, TooLong, "metadata.k"),
        ({"metadata": {"k": "\0"}}, InvalidField, "metadata.k"),
        ({"request_id": "r" * 129}, TooLong, "request_id"),
    ],
)
def test_what_cannot_be_asked_for_names_its_field(
    changed: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """Before anything is done."""
    with pytest.raises(error) as refused:
        asked(**changed).check()

    assert refused.value.field == field


def test_the_input_has_the_purpose_of_one() -> None:
    """Another purpose is the input's fault."""
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
    with pytest.raises(InvalidField) as refused:
        check_input(file)

    assert refused.value.field == "input_file_id"
    assert "user_data" in refused.value.message


def test_a_batch_that_runs_to_its_end_is_completed() -> None:
    """Each state leaves its time."""
    running = a_batch().begin("demo", 2, NOW).count(1, 1, TokenUsage(5, 2, 3, 1))
    done = running.close(LATER).finish("file-out", "file-err", LATER)

    assert (done.state, done.completed_at) == (BatchState.COMPLETED, LATER)
    assert (done.in_progress_at, done.finalizing_at) == (NOW, LATER)
    assert (done.counts.total, done.counts.completed, done.counts.failed) == (2, 1, 1)
    assert done.usage == TokenUsage(5, 2, 3, 1)


def test_a_file_that_cannot_be_used_fails_the_batch() -> None:
    """With what is wrong with it."""
    problems = (LineProblem("empty_file", "The file has no requests."),)
    failed = a_batch().refuse(problems, LATER)

    assert (failed.state, failed.failed_at, failed.problems) == (BatchState.FAILED, LATER, problems)


def test_lines_that_did_not_run_in_time_expire_with_their_batch() -> None:
    """They count as failed, so that the counts add up."""
    closed = a_batch().begin("demo", 3, NOW).count(1, 0, TokenUsage()).close(LATER)
    done = closed.finish("file-out", "file-err", LATER)

    assert closed.state is BatchState.FINALIZING
    assert (done.state, done.expired_at) == (BatchState.EXPIRED, LATER)
    assert (done.counts.completed, done.counts.failed) == (1, 2)


def test_a_batch_given_up_keeps_what_has_run() -> None:
    """And its pending lines count as failed."""
    cancelling = a_batch().begin("demo", 3, NOW).count(1, 0, TokenUsage()).cancel(LATER)
    unrun = cancelling.unrun
    done = cancelling.close(LATER).finish("file-out", "file-err", LATER)

    assert unrun is LineState.CANCELLED
    assert (done.state, done.cancelled_at) == (BatchState.CANCELLED, LATER)
    assert (done.counts.completed, done.counts.failed) == (1, 2)
    assert done.cancel(LATER) is done


def test_a_batch_given_up_while_it_is_checked_runs_nothing() -> None:
    """Whatever the check finds."""
    cancelling = a_batch().cancel(LATER)

    assert cancelling.begin("demo", 3, LATER) == cancelling.refuse((), LATER) == cancelling
    assert not cancelling.has_begun


def test_work_that_cannot_be_done_fails_its_batch_unless_it_has_ended() -> None:
    """With the reason, which no line has."""
    problem = LineProblem("work_abandoned", "gone")
    running = a_batch().begin("demo", 1, NOW)
    ended = running.close(LATER).finish(None, "f", LATER)

    abandoned = running.abandon(problem, LATER, is_last=False)
    failed = abandoned.finish("out", None, LATER)

    assert (abandoned.state, abandoned.counts.failed) == (BatchState.FINALIZING, 1)
    assert (failed.state, failed.output_file_id, failed.problems) == ("failed", "out", (problem,))
    assert abandoned.abandon(problem, LATER, is_last=True).state is BatchState.FAILED
    assert ended.abandon(problem, LATER, is_last=True) is ended


def test_who_had_only_files_to_write_ends_as_it_would_have() -> None:
    """All lines had ended, or the owner had given up: another job writes what there is."""
    problem = LineProblem("work_abandoned", "gone")
    running = a_batch().begin("demo", 2, NOW).count(1, 0, TokenUsage())
    finalizing = running.count(1, 0, TokenUsage()).close(LATER)
    cancelling = running.cancel(LATER)

    closed = cancelling.abandon(problem, LATER, is_last=False)

    assert cancelling.abandoned_lines is LineState.CANCELLED
    assert finalizing.abandon(problem, LATER, is_last=False) == finalizing
    assert (closed.counts.pending, closed.finish("f", "e", LATER).state) == (0, "cancelled")


@pytest.mark.parametrize("state", ["validating", "in_progress", "cancelling"])
def test_who_failed_without_files_can_begin_again_where_it_was(state: str) -> None:
    """The lines that the failure ended are to run once more."""
    problem = LineProblem("work_abandoned", "gone")
    running = a_batch().begin("demo", 3, NOW).count(1, 0, TokenUsage())
    abandoned = running.abandon(problem, NOW, is_last=False)
    failed = {
        "validating": a_batch(),
        "in_progress": abandoned,
        "cancelling": a_batch().cancel(NOW),
    }[state].abandon(problem, LATER, is_last=True)

    revived = failed.revive(2 if state == "in_progress" else 0)

    assert failed.can_begin_again
    assert not abandoned.finish("out", "errors", LATER).can_begin_again
    assert (revived.state, revived.problems, revived.failed_at) == (state, (), None)
    if state == "in_progress":
        assert (revived.counts.completed, revived.counts.pending) == (1, 2)


@pytest.mark.parametrize("state", ["finalizing", "completed", "failed", "expired"])
def test_a_batch_that_has_ended_cannot_be_given_up(state: str) -> None:
    """The error tells its state."""
    begun = a_batch().begin("demo", 1, NOW)
    ended = {
        "finalizing": begun.close(LATER),
        "completed": begun.count(1, 0, TokenUsage()).close(LATER).finish("f", None, LATER),
        "failed": a_batch().refuse((), LATER),
        "expired": begun.close(LATER).finish(None, "f", LATER),
    }[state]
    with pytest.raises(BatchNotCancellable) as refused:
        ended.cancel(LATER)

    assert refused.value.state == state
