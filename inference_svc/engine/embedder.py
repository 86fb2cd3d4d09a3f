"""The step loop of embeddings and scores: pack inputs, decode, return vectors.

Steps are small, since the step thread is shared with generation; the projects
take turns.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch, check_native_limits
from inference_svc.engine.embedding_request import EmbeddingBackend, EmbeddingRequest, Vector
from inference_svc.engine.events import Cancelled, Embedded, Event, Failed
from svc_kit.errors import ContextLengthExceeded, DeadlineExpired, DecodeFailed, DomainError
from svc_kit.fairness import FairTurns

log = logging.getLogger(__name__)

_Flow = tuple[str, int]


@dataclass(slots=True)
class _Job:
    request: EmbeddingRequest
    num_started: int = 0
    num_done: int = 0

    @property
    def flow(self) -> _Flow:
        """The project and priority class that share turns."""
        return self.request.project, self.request.priority

    @property
    def has_unstarted(self) -> bool:
        return self.num_started < len(self.request.inputs)

    @property
    def phase(self) -> str:
        return "prefill" if self.num_started else "queued"


@dataclass(slots=True)
class _Input:
    """An input with a slot. `vector` is the result of the parts computed so far."""

    job: _Job
    index: int
    slot: int
    num_computed: int = 0
    vector: Vector | None = field(default=None, repr=False)

    @property
    def tokens(self) -> Sequence[int]:
        return self.job.request.inputs[self.index]

    @property
    def num_left(self) -> int:
        return len(self.tokens) - self.num_computed


class Embedder:
    """Processes the embedding requests of one model.

    A step computes up to `pack_tokens` tokens, or one longer input that cannot be split. `clock`
    returns seconds.
    """

    def __init__(
        self, name: str, backend: EmbeddingBackend, *, pack_tokens: int, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.limits = backend.limits
        self._backend = backend
        self._pack_tokens = min(pack_tokens, backend.limits.batch_tokens)
        self._clock = clock
        self._jobs: OrderedDict[int, _Job] = OrderedDict()
        self._open: dict[int, _Input] = {}
        self._alone: deque[_Input] = deque()
        self._turns: FairTurns[_Flow] = FairTurns()
        self._events: list[Event] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self._jobs)

    @property
    def has_sequences(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._jobs)

    @property
    def has_events(self) -> bool:
        """Whether there are events to collect."""
        return bool(self._events)

    def warm_up(self) -> None:
        """Compute one token, so that the first request is not slowed down by page faults.

        Raises `DecodeError` or a `DomainError`: the model cannot embed.
        """
        batch = TokenBatch.of([Row(0, 0, (0,), output=True)])
        check_native_limits(batch, self.limits.native)
        self._backend.embed(batch)
        self._backend.clear_slot(0)

    def submit(self, request: EmbeddingRequest) -> None:
        """Queue a request; it fails at once if an input is empty or too long."""
        for index, tokens in enumerate(request.inputs):
            if not 0 < len(tokens) <= self.limits.input_tokens:
                refusal = ContextLengthExceeded(
                    field=f"inputs[{index}]",
                    prompt_tokens=len(tokens),
                    context_tokens=self.limits.input_tokens,
                )
                self._events.append(Failed(request.sequence_id, refusal))
                return
        self._jobs[request.sequence_id] = _Job(request)

    def cancel(self, sequence_id: int, *, arrived_in_step: int, step: int) -> None:
        """Cancel a request before `step` begins; unknown ids are ignored."""
        job = self._jobs.get(sequence_id)
        if job is not None:
            self._remove(job)
            self._events.append(Cancelled(sequence_id, job.phase, arrived_in_step, step))

    def step(self) -> list[Event]:
        """Run one decode and return its events."""
        now = self._clock()
        for job in list(self._jobs.values()):
            deadline = job.request.deadline
            if deadline is not None and deadline <= now:
                self._fail(job, DeadlineExpired(phase=job.phase))
        rows = self._plan()
        if rows:
            self._compute(rows)
        events, self._events = self._events, []
        return events

    # --- planning ---------------------------------------------------------------------------------

    def _plan(self) -> list[Row]:
        """Plan the rows of the next decode: partly computed inputs, then new ones in turn.

        Inputs of a failed decode are computed alone.
        """
        if self._alone:
            first = self._alone[0]
            return [self._row(first, min(first.num_left, self.limits.batch_tokens))]
        room, rows = self._pack_tokens, []
        for item in self._open.values():
            if room:
                rows.append(self._row(item, min(item.num_left, room)))
                room -= len(rows[-1].tokens)
        while room and (started := self._start(room, is_first=not rows)) is not None:
            rows.append(self._row(started, min(started.num_left, max(room, self._whole(started)))))
            room = max(0, room - len(rows[-1].tokens))
        return sorted(rows, key=lambda row: row.slot)

    def _whole(self, item: _Input) -> int:
        return 0 if self.limits.splits else item.num_left

    def _start(self, room: int, *, is_first: bool) -> _Input | None:
        """Allocate a slot for the next input; None if it does not fit."""
        waiting = [job for job in self._jobs.values() if job.has_unstarted]
        if not waiting or len(self._open) == self.limits.sequences:
            return None
        flow = self._turns.next(dict.fromkeys(job.flow for job in waiting))
        job = next(job for job in waiting if job.flow == flow)
        size = len(job.request.inputs[job.num_started])
        if not self.limits.splits and size > room and not is_first:
            return None
        if sum(len(item.tokens) for item in self._open.values()) + size > self.limits.cells:
            return None
        # A priority class has twice the turns of the next lower one.
        self._turns.charge(flow, size / 2**job.request.priority)
        slot = next(slot for slot in count() if slot not in self._open)
        item = self._open[slot] = _Input(job, job.num_started, slot)
        job.num_started += 1
        return item

    @staticmethod
    def _row(item: _Input, size: int) -> Row:
        start = item.num_computed
        return Row(item.slot, start, item.tokens[start : start + size], output=True)

    # --- computing --------------------------------------------------------------------------------

    def _compute(self, rows: Sequence[Row]) -> None:
        batch = TokenBatch.of(rows)
        batch = replace(batch, outputs=np.ones_like(batch.outputs))  # pooling reads every token
        check_native_limits(batch, self.limits.native)
        inputs = [self._open[row.slot] for row in rows]
        try:
            vectors = self._backend.embed(batch)
        except DecodeError as error:
            self._isolate(inputs, error)
            return
        except DomainError as error:
            for job in {id(item.job): item.job for item in inputs}.values():
                self._fail(job, error)
            return
        for item, row in zip(inputs, rows, strict=True):
            if self._open.get(item.slot) is item:  # unless its request has failed
                self._add_output(item, vectors[row.slot], len(row.tokens))

    def _isolate(self, inputs: Sequence[_Input], error: DecodeError) -> None:
        """Restart the inputs of a failed decode, each alone; fail one that was alone."""
        log.warning("decode of %d inputs failed with code %d", len(inputs), error.code)
        if len(inputs) == 1:
            job = inputs[0].job
            self._fail(job, DecodeFailed(request_id=job.request.request_id))
            return
        for item in inputs:
            self._backend.clear_slot(item.slot)
            item.num_computed, item.vector = 0, None
        self._alone.extend(inputs)

    def _add_output(self, item: _Input, vector: Vector, size: int) -> None:
        item.num_computed += size
        if self.limits.averages and self.limits.splits:
            share = vector * np.float32(size / len(item.tokens))
            item.vector = share if item.vector is None else item.vector + share
        else:
            item.vector = vector
        if item.num_left == 0:
            self._finish(item)

    def _finish(self, item: _Input) -> None:
        job, request = item.job, item.job.request
        self._release(item)
        if item.vector is None or not np.isfinite(item.vector).all():
            log.error("the vector of an input of %d tokens is not finite", len(item.tokens))
            self._fail(job, DecodeFailed(request_id=request.request_id))
            return
        job.num_done += 1
        is_last = job.num_done == len(request.inputs)
        self._events.append(
            Embedded(
                request.sequence_id,
                request.model,
                item.index,
                finished_vector(item.vector, request.dimensions, normalize=request.normalize),
                len(item.tokens),
                is_last,
            )
        )
        if is_last:
            del self._jobs[request.sequence_id]

    # --- removal ----------------------------------------------------------------------------------

    def _release(self, item: _Input) -> None:
        self._backend.clear_slot(item.slot)
        del self._open[item.slot]
        if self._alone and self._alone[0] is item:
            self._alone.popleft()

    def _fail(self, job: _Job, error: DomainError) -> None:
        if job.request.sequence_id in self._jobs:
            self._remove(job)
            self._events.append(Failed(job.request.sequence_id, error))

    def _remove(self, job: _Job) -> None:
        del self._jobs[job.request.sequence_id]
        for item in [item for item in self._open.values() if item.job is job]:
            self._backend.clear_slot(item.slot)
            del self._open[item.slot]
        self._alone = deque(item for item in self._alone if item.job is not job)


def finished_vector(vector: Vector, dimensions: int | None, *, normalize: bool) -> Vector:
    """Truncate a vector to `dimensions` components, then scale it to length 1 if `normalize`.

    A zero vector stays zero.
    """
    vector = vector[:dimensions]
    if not normalize:
        return vector
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector
