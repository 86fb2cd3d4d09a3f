"""The output stream of one request: events from the engine in, batches of events to its reader.

A slow reader gets all pending events at once; beyond a bound its sequence is paused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from inference_svc.engine.events import Cancelled, Delta, Failed, Finished, Started
from svc_kit.errors import DomainError, SlowReader

SequenceEvent = Started | Delta | Finished


class ChoiceEvent(NamedTuple):
    """An event of one choice."""

    choice: int
    event: SequenceEvent


class ReaderLimits(NamedTuple):
    """When a reader counts as slow (unread events) and for how long it may be (seconds)."""

    unread_events: int
    patience_s: float


class OutputStream:
    """The sequences of one request. `sequence_ids[i]` is choice i.

    `steer` pauses (True) or unpauses the sequences; `end` cancels those that still run. Both are
    called at most once a change and never after the end.
    """

    def __init__(
        self,
        request_id: str,
        sequence_ids: tuple[int, ...],
        limits: ReaderLimits,
        *,
        steer: Callable[[bool], None],
        end: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.sequence_ids = sequence_ids
        self._limits = limits
        self._steer = steer
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._choices = {sequence: choice for choice, sequence in enumerate(sequence_ids)}
        self._open = set(sequence_ids)
        self._pending: list[ChoiceEvent] = []
        self._news = asyncio.Event()
        self._error: DomainError | None = None
        self._patience: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether no sequence of it runs any more."""
        return not self._open or self._error is not None

    @property
    def is_paused(self) -> bool:
        """Whether its reader is behind."""
        return self._patience is not None

    def deliver(self, event: Started | Delta | Finished | Failed | Cancelled) -> None:
        """Take an event from the engine."""
        if self._error is not None:
            return
        if isinstance(event, Failed):
            self.fail(event.error)
            return
        if isinstance(event, Cancelled):
            self._open.discard(event.sequence_id)
            return
        if isinstance(event, Finished):
            self._open.discard(event.sequence_id)
        self._pending.append(ChoiceEvent(self._choices[event.sequence_id], event))
        self._news.set()
        if len(self._pending) >= self._limits.unread_events and not self.is_paused and self._open:
            self._steer(True)
            self._patience = self._loop.call_later(self._limits.patience_s, self._lose_patience)

    def fail(self, error: DomainError) -> None:
        """End the stream with an error, after what is pending."""
        if self._error is not None or (not self._open and not self._pending):
            return
        self._error = error
        self._stop_waiting()
        self._end()
        self._open.clear()
        self._news.set()

    def close(self) -> None:
        """The reader is gone: cancel what runs and forget what is pending. May be called again."""
        self._stop_waiting()
        if self._open:
            self._end()
            self._open.clear()
        self._pending.clear()

    async def batches(self) -> AsyncIterator[list[ChoiceEvent]]:
        """What happened since the last batch, until every choice has finished. Raises the stream's
        `DomainError`."""
        while True:
            await self._news.wait()
            self._news.clear()
            pending, self._pending = self._pending, []
            if self._patience is not None and self._error is None:
                self._stop_waiting()
                self._steer(False)
            if pending:
                yield pending
            if self._pending:
                self._news.set()
                continue
            if self._error is not None:
                raise self._error
            if not self._open:
                return

    def _lose_patience(self) -> None:
        self._patience = None
        self._pending.clear()
        self.fail(
            SlowReader(unread_events=self._limits.unread_events, limit_s=self._limits.patience_s)
        )

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
