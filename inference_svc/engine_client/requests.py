"""Generation requests in flight: admission, the state of each sequence, cancellation, ends."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from inference_svc.engine.events import (
    Cancelled,
    Delta,
    Failed,
    Finished,
    Moved,
    Preempted,
    Resumed,
    Started,
)
from inference_svc.engine.request import Cancel, Command, Pause, SequenceRequest, Submit, Unpause
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from svc_kit.errors import AbortedByOperator, DomainError

SequenceEvent = Started | Preempted | Resumed | Moved | Delta | Finished | Failed | Cancelled


@dataclass(slots=True)
class ActiveSequence:
    """What the frontend knows of a sequence that waits or runs. Times are monotonic seconds."""

    request: SequenceRequest
    generation: OutputStream
    project: str
    label: str
    arrived_at: float
    adapters: tuple[Adapter, ...] = ()
    slot: int | None = None
    num_output: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether it has no slot yet."""
        return self.slot is None


@dataclass(frozen=True, slots=True)
class Submission:
    """Whose request it is, and the adapters that it uses."""

    request_id: str
    project: str
    label: str
    adapters: tuple[Adapter, ...] = ()


class RequestTracker:
    """The sequences that wait or run, by id; `slots` of them run at once. `send` reaches the
    engine, `on_left` hears when the adapters of a sequence are used by one less."""

    def __init__(
        self,
        limits: QueueLimits,
        reader: ReaderLimits,
        send: Callable[[Command], None],
        on_left: Callable[[], None],
    ) -> None:
        self.live: dict[int, ActiveSequence] = {}
        self.slots = 0
        self._limits = limits
        self._reader = reader
        self._send = send
        self._on_left = on_left
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(
        self, requests: Sequence[SequenceRequest], submission: Submission, first_id: int
    ) -> tuple[OutputStream, int]:
        """Admit the choices of one request, numbered from `first_id`; returns its stream and its
        place in the queue (0 is next). Raises `QueueFull`; then nothing was done."""
        ahead = max(0, len(self.live) - self.slots)
        self._check_room(requests, ahead)
        ids = tuple(range(first_id, first_id + len(requests)))
        generation = OutputStream(
            submission.request_id,
            ids,
            self._reader,
            steer=lambda paused: self._steer(ids, paused=paused),
            end=lambda: self._cancel(ids),
        )
        now = time.monotonic()
        for sequence_id, request in zip(ids, requests, strict=True):
            request = replace(request, sequence_id=sequence_id, request_id=submission.request_id)
            self.live[sequence_id] = ActiveSequence(
                request, generation, submission.project, submission.label, now, submission.adapters
            )
            self._send(Submit(request))
        self._idle.clear()
        return generation, ahead

    def _check_room(self, requests: Sequence[SequenceRequest], ahead: int) -> None:
        waiting = len(self.live) + len(requests) - self.slots
        if waiting <= 0:
            return  # nobody waits, though the last ones may not have been heard to start
        queued = sum(len(item.request.prompt) for item in self.live.values() if item.is_waiting)
        wanted = sum(len(request.prompt) for request in requests)
        self._limits.check(
            requests=waiting if self.live else 0,  # one request is always taken
            tokens=queued + wanted if queued else 0,
            retry_after=self._typical_s() * (1 + ahead / max(self.slots, 1)),
        )

    def _typical_s(self) -> float:
        """A guess from the age of what runs: how long a sequence takes."""
        now = time.monotonic()
        ages = [now - live.arrived_at for live in self.live.values() if not live.is_waiting]
        return sum(ages) / len(ages) if ages else 1.0

    def deliver(self, event: SequenceEvent) -> None:
        """Take an event of the engine; those of sequences that are gone are dropped."""
        live = self.live.get(event.sequence_id)
        if live is None:
            return
        match event:
            case Preempted():
                live.slot = None
            case Resumed() | Moved():
                live.slot = event.slot
            case Started():
                live.slot = event.slot
                live.generation.deliver(event)
            case Delta():
                live.num_output += len(event.tokens)
                live.generation.deliver(event)
            case Finished() | Failed() | Cancelled():
                self._forget(event.sequence_id)
                live.generation.deliver(event)

    def _forget(self, sequence_id: int) -> None:
        live = self.live.pop(sequence_id)
        if live.adapters:
            self._on_left()
        if not self.live:
            self._idle.set()

    def num_requests(self, adapter: Adapter) -> int:
        """How many requests use an adapter."""
        users = (live for live in self.live.values() if adapter in live.adapters)
        return len({live.generation.request_id for live in users})

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """End a request (of `project`, where one is given). Returns whether it was live.

        One that has ended, and whose slot the engine has not reported free yet, no longer is.
        """
        for live in self.live.values():
            named = live.generation.request_id == request_id and project in (None, live.project)
            if named and not live.generation.is_over:
                live.generation.fail(AbortedByOperator())
                return True
        return False

    def fail_all(self, error: DomainError) -> None:
        """End everything; the engine is gone."""
        generations = {live.generation.request_id: live.generation for live in self.live.values()}
        self.live.clear()
        for generation in generations.values():
            generation.fail(error)
        self._idle.set()

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()

    def _steer(self, ids: Iterable[int], *, paused: bool) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Pause(sequence_id) if paused else Unpause(sequence_id))

    def _cancel(self, ids: Iterable[int]) -> None:
        for sequence_id in ids:
            if sequence_id in self.live:
                self._send(Cancel(sequence_id))
