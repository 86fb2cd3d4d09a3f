"""The output stream of one request: receives engine events and hands them to its reader.

Deltas of a sequence are joined on arrival, so that a fast reader gets a delta per token and a slow
one fewer, larger ones. Beyond a limit the sequences of a slow reader are paused.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from inference_svc.engine.events import (
    Cancelled,
    Delta,
    DivergenceText,
    Failed,
    Finished,
    PromptTokens,
    Started,
)
from svc_kit.errors import DomainError, SlowReader

StreamEvent = Started | PromptTokens | Delta | Finished


class ReaderLimits(NamedTuple):
    """The unread events at which a stream is paused, and how long it may stay paused (seconds)."""

    unread_events: int
    max_pause_s: float


class OutputStream:
    """The sequences of one request. `sequence_ids[i]` is choice i.

    `set_paused` pauses (True) or unpauses the sequences; `cancel` cancels those that still run.
    Both are called at most once per change and never after the end.
    """

    def __init__(
        self,
        request_id: str,
        sequence_ids: tuple[int, ...],
        limits: ReaderLimits,
        *,
        set_paused: Callable[[bool], None],
        cancel: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.sequence_ids = sequence_ids
        self.divergence: DivergenceText | None = None
        """Where its prompt differs from what is cached, once its reader has found that."""
        self._limits = limits
        self._set_paused = set_paused
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._open = set(sequence_ids)
        self._unread: dict[int, list[StreamEvent]] = {}  # by sequence, deltas joined
        self._num_unread = 0
        self._has_news = asyncio.Event()
        self._has_urgent = asyncio.Event()
        """Whether something other than deltas is unread, or so many that the interval ends."""
        self._error: DomainError | None = None
        self._pause_timer: asyncio.TimerHandle | None = None

    @property
    def is_finished(self) -> bool:
        """Whether none of its sequences runs."""
        return not self._open or self._error is not None

    @property
    def is_paused(self) -> bool:
        """Whether its sequences are paused because the reader is slow."""
        return self._pause_timer is not None

    def deliver(self, event: StreamEvent | Failed | Cancelled) -> None:
        """Queue an engine event for the reader."""
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
        unread = self._unread.setdefault(event.sequence_id, [])
        last = unread[-1] if unread else None
        if isinstance(event, Delta) and isinstance(last, Delta):
            unread[-1] = last.join(event)
        else:
            unread.append(event)
        self._num_unread += 1
        self._has_news.set()
        if not isinstance(event, Delta) or self._num_unread >= self._limits.unread_events // 2:
            self._has_urgent.set()
        if self._num_unread >= self._limits.unread_events and not self.is_paused and self._open:
            self._set_paused(True)
            self._pause_timer = self._loop.call_later(
                self._limits.max_pause_s, self._on_pause_timeout
            )

    def fail(self, error: DomainError) -> None:
        """End the stream with an error, after the unread events."""
        if self._error is not None or (not self._open and not self._num_unread):
            return
        self._error = error
        self._stop_pause_timer()
        self._cancel()
        self._open.clear()
        self._has_news.set()
        self._has_urgent.set()

    def close(self) -> None:
        """Cancel running sequences and drop unread events. Can be called repeatedly."""
        self._stop_pause_timer()
        if self._open:
            self._cancel()
            self._open.clear()
        self._pop_unread()

    async def read(self, interval_s: float = 0.0) -> list[StreamEvent]:
        """Wait for events and return all unread ones; none after the end of the last sequence.
        Deltas without other events are gathered for `interval_s` seconds.

        Raises the stream's `DomainError`.
        """
        while not self._num_unread:
            if self._error is not None:
                raise self._error
            if not self._open:
                return []
            self._has_news.clear()
            await self._has_news.wait()
        if interval_s and not self._has_urgent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._has_urgent.wait()
        self._has_urgent.clear()
        if self.is_paused and self._error is None:
            self._stop_pause_timer()
            self._set_paused(False)
        return self._pop_unread()

    def _pop_unread(self) -> list[StreamEvent]:
        unread, self._unread, self._num_unread = self._unread, {}, 0
        return [event for events in unread.values() for event in events]

    def _on_pause_timeout(self) -> None:
        self._pause_timer = None
        self._pop_unread()
        limits = self._limits
        self.fail(SlowReader(unread_events=limits.unread_events, limit_s=limits.max_pause_s))

    def _stop_pause_timer(self) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
