"""Tracks generation requests: admission, the state of each sequence, and cancellation."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from inference_svc.engine.events import (
    Cancelled,
    Delta,
    Failed,
    Finished,
    Moved,
    Preempted,
    PromptTokens,
    Resumed,
    Started,
)
from inference_svc.engine.request import Cancel, Command, Pause, SequenceRequest, Submit
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits, WaitingRequests
from svc_kit.errors import AbortedByOperator, DomainError
from svc_kit.queue_share import QueueEntry
from svc_kit.tracing.span import Span, current_span

SequenceEvent = (
    Started | Preempted | Resumed | Moved | PromptTokens | Delta | Finished | Failed | Cancelled
)


@dataclass(slots=True)
class ActiveSequence:
    """A waiting or running sequence as the frontend sees it. Times are monotonic seconds."""

    request: SequenceRequest
    stream: OutputStream
    label: str
    arrived_at: float
    adapters: tuple[Adapter, ...] = ()
    span: Span = field(default_factory=current_span)
    """Of the call, for exemplars."""
    slot: int | None = None
    num_output: int = 0
    num_cached: int | None = None
    """Prompt tokens that need not be computed; None if it has not started."""

    @property
    def is_waiting(self) -> bool:
        """Whether it has no slot."""
        return self.slot is None


def _waiting(request: SequenceRequest) -> QueueEntry:
    return QueueEntry(request.project, request.priority, request.num_prompt_tokens)


def _media(request: SequenceRequest) -> QueueEntry:
    return QueueEntry(request.project, request.priority, request.media_bytes)


class RequestTracker:
    """The waiting and running sequences, by id; at most `slots` run at once.

    `send` sends a command to the engine. `on_adapters_released` is called when a sequence that used
    adapters ends. `ids` are those of the next sequences.
    """

    def __init__(
        self,
        limits: QueueLimits,
        reader: ReaderLimits,
        send: Callable[[Command], None],
        on_adapters_released: Callable[[], None],
        ids: Iterator[int],
    ) -> None:
        self.live: dict[int, ActiveSequence] = {}
        self.slots = 0
        self._waiting = WaitingRequests()
        self._limits = limits
        self._reader = reader
        self._send = send
        self._on_adapters_released = on_adapters_released
        self._ids = ids
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(
        self,
        requests: Sequence[SequenceRequest],
        label: str = "",
        adapters: tuple[Adapter, ...] = (),
    ) -> tuple[OutputStream, int]:
        """Admit the choices of one request. Return its stream and its position in the queue (0 is
        next). Raises `QueueFull`; then nothing was admitted."""
        position = max(0, len(self.live) - self.slots)
        self.check_queue([_waiting(request) for request in requests])
        self._check_media(requests[0])
        ids = tuple(islice(self._ids, len(requests)))
        stream = OutputStream(
            requests[0].request_id,
            ids,
            self._reader,
            set_paused=lambda paused: self._set_paused(ids, paused=paused),
            cancel=lambda: self._cancel(ids),
        )
        now = time.monotonic()
        for sequence_id, request in zip(ids, requests, strict=True):
            request = replace(request, sequence_id=sequence_id)
            self.live[sequence_id] = ActiveSequence(request, stream, label, now, adapters)
            self._waiting.add(_waiting(request))
            self._send(Submit(request))
        self._idle.clear()
        return stream, position

    def check_queue(self, new: Sequence[QueueEntry]) -> None:
        """Raise `QueueFull` unless sequences with these prompt tokens may be admitted."""
        waiting = len(self.live) + len(new) - self.slots
        if waiting <= 0:
            return  # all have slots, although `Started` may not have arrived for the last ones
        queued, added = self._waiting.num_tokens, sum(each.amount for each in new)
        turns = 1 + max(waiting - len(new), 0) / max(self.slots, 1)
        self._limits.check(
            self._waiting,
            new,
            requests=waiting if self.live else 0,  # a single request is always accepted
            tokens=queued + added if queued else 0,
            wait_s=lambda: self._mean_age_s() * turns,
        )

    def _check_media(self, new: SequenceRequest) -> None:
        """Raise `QueueFull` unless the pictures of a request, which its choices share, may be held
        until it ends."""
        if not new.media_bytes:
            return
        held = {
            item.stream.request_id: _media(item.request)
            for item in self.live.values()
            if item.request.media_bytes
        }
        entries = list(held.values())
        self._limits.check_media(entries, _media(new), retry_after=self._mean_age_s())

    def _mean_age_s(self) -> float:
        """The mean age of running sequences: an estimate of how long one takes."""
        now = time.monotonic()
        ages = [now - live.arrived_at for live in self.live.values() if not live.is_waiting]
        return sum(ages) / len(ages) if ages else 1.0

    def deliver(self, event: SequenceEvent) -> None:
        """Process an engine event; events of sequences that have ended are ignored."""
        live = self.live.get(event.sequence_id)
        if live is None:
            return
        if isinstance(event, Delta):  # nearly all are
            live.num_output += event.num_tokens
            live.stream.deliver(event)
            return
        match event:
            case Preempted():
                self._set_slot(live, None)
            case Resumed() | Moved():
                self._set_slot(live, event.slot)
            case Started():
                self._set_slot(live, event.slot)
                live.num_cached = event.cached_tokens
                live.stream.deliver(event)
            case PromptTokens():
                live.stream.deliver(event)
            case Finished() | Failed() | Cancelled():
                self._remove(event.sequence_id)
                live.stream.deliver(event)

    def _set_slot(self, live: ActiveSequence, slot: int | None) -> None:
        if live.is_waiting and slot is not None:
            self._waiting.remove(_waiting(live.request))
        elif slot is None and not live.is_waiting:
            self._waiting.add(_waiting(live.request))
        live.slot = slot

    def _remove(self, sequence_id: int) -> None:
        live = self.live.pop(sequence_id)
        if live.is_waiting:
            self._waiting.remove(_waiting(live.request))
        if live.adapters:
            self._on_adapters_released()
        if not self.live:
            self._idle.set()

    def num_requests(self, adapter: Adapter) -> int:
        users = (live for live in self.live.values() if adapter in live.adapters)
        return len({live.stream.request_id for live in users})

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """Abort a request (only of `project` if given). Return whether it was live.

        A request that has ended is not live, even if the engine has not freed its slot yet.
        """
        for live in self.live.values():
            request = live.request
            matches = request.request_id == request_id and project in (None, request.project)
            if matches and not live.stream.is_finished:
                live.stream.fail(AbortedByOperator())
                return True
        return False

    def fail_all(self, error: DomainError) -> None:
        """Fail all requests, because the engine has ended."""
        streams = {live.stream.request_id: live.stream for live in self.live.values()}
        self.live.clear()
        self._waiting = WaitingRequests()
        for stream in streams.values():
            stream.fail(error)
        self._idle.set()

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()

    def _set_paused(self, ids: Iterable[int], *, paused: bool) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Pause(sequence_id, paused))

    def _cancel(self, ids: Iterable[int]) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Cancel(sequence_id))
