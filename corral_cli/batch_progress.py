"""How far a batch is, for people: a bar on a terminal, a line for each state elsewhere."""

import sys
from types import TracebackType
from typing import Any, Self

import click
from corral.control.v1 import batch_pb2


def state_of(batch: batch_pb2.Batch) -> str:
    """Its state in words."""
    return batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower().replace("_", " ")


def describe(batch: batch_pb2.Batch) -> str:
    """One batch in one line."""
    counts, usage = batch.request_counts, batch.usage
    facts = [state_of(batch), f"{counts.completed} of {counts.total} completed"]
    if counts.failed:
        facts.append(f"{counts.failed} failed")
    if usage.input_tokens or usage.output_tokens:
        facts.append(f"{usage.input_tokens} tokens in, {usage.output_tokens} out")
    return f"{batch.id}    {batch.endpoint}, {', '.join(facts)}"


class Progress:
    """Shows a batch while it changes, on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._state: batch_pb2.Batch.State | None = None
        self._is_waiting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.render_finish()

    def show(self, batch: batch_pb2.Batch) -> None:
        """The batch as it is now."""
        self._is_waiting = False
        counts = batch.request_counts
        if not sys.stderr.isatty():
            if batch.state != self._state:
                click.echo(f"{state_of(batch)} {counts.completed}/{counts.total}", err=True)
        elif counts.total:
            self._draw(batch, counts.completed + counts.failed, counts.total)
        self._state = batch.state

    @property
    def has_begun(self) -> bool:
        """Whether anything was shown."""
        return self._state is not None

    def wait(self, target: str) -> None:
        """Nobody knows how the batch is now: say so once, until it is shown again."""
        if self._is_waiting:
            return
        self._is_waiting = True
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
        click.echo(f"waiting for the server at {target}", err=True)

    def _draw(self, batch: batch_pb2.Batch, ended: int, total: int) -> None:
        if self._bar is None:
            self._bar = click.progressbar(length=total, file=sys.stderr, show_pos=True)
        self._bar.label = state_of(batch)
        self._bar.update(ended - self._bar.pos)
        self._bar.render_progress()
