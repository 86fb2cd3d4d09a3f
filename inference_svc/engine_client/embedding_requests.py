"""Tracks embedding requests: admission, results and cancellation."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference_svc.engine.embedding_request import (
    EmbeddingRequest,
    Embeddings,
    SubmitEmbedding,
    Vector,
)
from inference_svc.engine.events import Embedded, Failed
from inference_svc.engine.request import Cancel, Command
from inference_svc.engine_client.queue_limits import QueueLimits, WaitingRequests
from svc_kit.errors import AbortedByOperator, DomainError
from svc_kit.queue_share import QueueEntry


@dataclass(slots=True)
class PendingEmbedding:
    """A waiting or running request. `arrived_at` is in monotonic seconds."""

    request: EmbeddingRequest
    done: "asyncio.Future[Embeddings]"
    arrived_at: float = field(default_factory=time.monotonic)
    vectors: dict[int, Vector] = field(default_factory=dict)
    num_tokens: int = 0
    is_estimated: bool = False
    entry: QueueEntry = field(init=False)
    """What it is for the limits of the queue."""

    def __post_init__(self) -> None:
        request = self.request
        self.entry = QueueEntry(request.project, request.priority, request.num_tokens)

    def fail(self, error: DomainError) -> None:
        """Fail the request, unless it is done."""
        if not self.done.done():
            self.done.set_exception(error)


class EmbeddingTracker:
    """The unfinished embedding requests of a model. `limits` apply to waiting and running ones;
    `send` sends a command to the engine."""

    def __init__(self, limits: QueueLimits, send: Callable[[Command], None]) -> None:
        self.live: dict[int, PendingEmbedding] = {}
        self.num_inputs_done = 0
        self.num_tokens_done = 0
        self._waiting = WaitingRequests()
        self._limits = limits
        self._send = send
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, request: EmbeddingRequest) -> Embeddings:
        """Return the vectors of all inputs.

        Raises `QueueFull`, or the error that ended the request. Cancelling the call cancels the
        request in the engine.
        """
        pending = PendingEmbedding(request, asyncio.get_running_loop().create_future())
        self._check_queue(pending.entry)
        self.live[request.sequence_id] = pending
        self._waiting.add(pending.entry)
        self._idle.clear()
        self._send(SubmitEmbedding(request))
        try:
            return await pending.done
        finally:
            if request.sequence_id in self.live:
                self._remove(request.sequence_id)
                self._send(Cancel(request.sequence_id))
            if not self.live:
                self._idle.set()

    def deliver(self, event: Embedded | Failed) -> None:
        """Process an engine event; events of cancelled requests are ignored."""
        if isinstance(event, Embedded):
            self.num_inputs_done += 1
            self.num_tokens_done += event.num_tokens
        pending = self.live.get(event.sequence_id)
        if pending is None:
            return
        if isinstance(event, Failed):
            self._remove(event.sequence_id)
            pending.fail(event.error)
            return
        pending.vectors[event.input_index] = event.vector
        pending.num_tokens += event.num_tokens
        pending.is_estimated |= event.is_estimated
        if event.is_last and not pending.done.done():
            self._remove(event.sequence_id)
            vectors = [vector for _, vector in sorted(pending.vectors.items())]
            pending.done.set_result(Embeddings(vectors, pending.num_tokens, pending.is_estimated))

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """Abort a request (only of `project` if given). Return whether it was live."""
        for pending in self.live.values():
            matches = pending.request.request_id == request_id
            if matches and project in (None, pending.request.project) and not pending.done.done():
                pending.fail(AbortedByOperator())
                return True
        return False

    def fail_all(self, error: DomainError) -> None:
        """Fail all requests, because the engine has ended."""
        failed = list(self.live.values())
        self.live.clear()
        self._waiting = WaitingRequests()
        for pending in failed:
            pending.fail(error)

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()

    def _remove(self, sequence_id: int) -> None:
        self._waiting.remove(self.live.pop(sequence_id).entry)

    def _check_queue(self, new: QueueEntry) -> None:
        if not self.live:
            return  # a single request is always accepted
        oldest = next(iter(self.live.values()))
        self._limits.check(
            self._waiting,
            [new],
            requests=len(self.live) + 1,
            tokens=self._waiting.num_tokens + new.amount,
            wait_s=lambda: time.monotonic() - oldest.arrived_at,
        )
