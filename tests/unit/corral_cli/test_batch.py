"""Progress of a batch, as text and as a bar."""

import io

import pytest
from corral.control.v1 import batch_pb2

from corral_cli.batch import Progress, describe


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def make_batch(completed: int, state: str = "STATE_IN_PROGRESS") -> batch_pb2.Batch:
    counts = batch_pb2.BatchRequestCounts(total=10, completed=completed)
    return batch_pb2.Batch(id="batch_1", state=state, endpoint="/v1/x", request_counts=counts)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar shows counts and state."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress() as progress:
        for completed in (0, 4, 10):
            progress.show(make_batch(completed))

    assert "4/10" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
    assert "in progress" in terminal.getvalue()


def test_a_disconnection_is_reported_once_between_two_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own line; then the bar is redrawn with the same position."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress() as progress:
        progress.show(make_batch(4))
        progress.show_disconnected("here")
        progress.show_disconnected("here")
        progress.show(make_batch(4))

    before, message, after = terminal.getvalue().partition("\nwaiting for the server at here\n")
    assert message
    assert "4/10" in before
    assert "4/10" in after
    assert "waiting" not in after


def test_a_batch_is_formatted_as_one_line() -> None:
    """Failures and tokens are shown if there are any."""
    batch = make_batch(4)
    batch.request_counts.failed = 1
    batch.usage.input_tokens, batch.usage.output_tokens = 30, 12

    assert describe(batch) == (
        "batch_1    /v1/x, in progress, 4 of 10 completed, 1 failed, 30 tokens in, 12 out"
    )
    assert describe(make_batch(4)) == "batch_1    /v1/x, in progress, 4 of 10 completed"
