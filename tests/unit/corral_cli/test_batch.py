"""How far a batch is, in words and as a bar."""

import io

import pytest
from corral.control.v1 import batch_pb2

from corral_cli.batch import Progress, describe


class Terminal(io.StringIO):
    """Output that people look at."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def a_batch(completed: int, state: str = "STATE_IN_PROGRESS") -> batch_pb2.Batch:
    """A batch of ten lines."""
    counts = batch_pb2.BatchRequestCounts(total=10, completed=completed)
    return batch_pb2.Batch(id="batch_1", state=state, endpoint="/v1/x", request_counts=counts)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the counts and the state."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress() as progress:
        for completed in (0, 4, 10):
            progress.show(a_batch(completed))

    assert "4/10" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
    assert "in progress" in terminal.getvalue()


def test_a_bar_makes_room_for_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line of its own, once; the bar is drawn anew below it, where it had come to."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress() as progress:
        progress.show(a_batch(4))
        progress.wait("here")
        progress.wait("here")
        progress.show(a_batch(4))

    before, said, after = terminal.getvalue().partition("\nwaiting for the server at here\n")
    assert said
    assert "4/10" in before
    assert "4/10" in after
    assert "waiting" not in after


def test_a_line_has_what_counts() -> None:
    """Failures and tokens where there are some."""
    batch = a_batch(4)
    batch.request_counts.failed = 1
    batch.usage.input_tokens, batch.usage.output_tokens = 30, 12

    assert describe(batch) == (
        "batch_1    /v1/x, in progress, 4 of 10 completed, 1 failed, 30 tokens in, 12 out"
    )
    assert describe(a_batch(4)) == "batch_1    /v1/x, in progress, 4 of 10 completed"
