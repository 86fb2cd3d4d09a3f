"""Embedding requests: bounded admission, a future for each, cancellation."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference_svc.engine.embedding_request import EmbeddingRequest, SubmitEmbedding, Vector
from inference_svc.engine.events import Embedded, Failed
from inference_svc.engine.request import Cancel, Command
from inference_svc.engine_client.queue_limits import QueueLimits
from svc_kit.errors import AbortedByOperator, DomainError


@dataclass(slots=True)
class PendingEmbedding:
    """A request that waits or runs. `arrived_at` is in monotonic seconds."""

    request: EmbeddingRequest
    done: "asyncio.Future[list[Vector]]"
    arrived_at: float = field(default_factory=time.monotonic)
    vectors: dict[int, Vector] = field(default_factory=dict)

    def end(self, error: DomainError) -> None:
        """Fail the waiting future."""
        if not self.done.done():
            self.done.set_exception(error)


class EmbeddingTracker:
    """The unfinished embedding requests of a model. `limits` bound what waits or runs; `send`
    reaches the engine."""

    def __init__(self, limits: QueueLimits, send: Callable[[Command], None]) -> None:
        self.live: dict[int, PendingEmbedding] = {}
        self.num_inputs_done = 0
        self.num_tokens_done = 0
        self._limits = limits
        self._send = send
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, request: EmbeddingRequest) -> list[Vector]:
        """The vectors of all inputs, in order.

        Raises `QueueFull`, or whatever ended the request; cancelled, it ends in the engine too.
        """
        self._check_room(request)
        job = PendingEmbedding(request, asyncio.get_running_loop().create_future())
        self.live[request.sequence_id] = job
        self._idle.clear()
        self._send(SubmitEmbedding(request))
        try:
            return await job.done
        finally:
            if self.live.pop(request.sequence_id, None) is not None:
                self._send(Cancel(request.sequence_id))
            if not self.live:
                self._idle.set()

    def deliver(self, event: Embedded | Failed) -> None:
        """Handle an event of the engine; events of cancelled requests are dropped."""
        if isinstance(event, Embedded):
            self.num_inputs_done += 1
            self.num_tokens_done += event.num_tokens
        job = self.live.get(event.sequence_id)
        if job is None:
            return
        if isinstance(event, Failed):
            del self.live[event.sequence_id]
            job.end(event.error)
            return
        job.vectors[event.input_index] = event.vector
        if event.is_last and not job.done.done():
            del self.live[event.sequence_id]
            job.done.set_result([vector for _, vector in sorted(job.vectors.items())])

    def abort(self, request_id: str, *, project: str | None) -> bool:
        """End a request (of `project`, where one is given). Returns whether it was live."""
        for job in self.live.values():
            named = job.request.request_id == request_id
            if named and project in (None, job.request.project) and not job.done.done():
                job.end(AbortedByOperator())
                return True
        return False

    def fail_all(self, error: DomainError) -> None:
        """End everything; the engine is gone."""
        jobs = list(self.live.values())
        self.live.clear()
        for job in jobs:
            job.end(error)

    async def wait_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self._idle.wait()

    def _check_room(self, request: EmbeddingRequest) -> None:
        jobs = self.live.values()
        if not jobs:
            return  # one request is always taken
        self._limits.check(
            requests=len(jobs) + 1,
            tokens=sum(job.request.num_tokens for job in jobs) + request.num_tokens,
            retry_after=time.monotonic() - min(job.arrived_at for job in jobs),
        )
