"""The embeddings of an upstream: OpenAI's `/embeddings`, with token ids or in text mode.

The inputs of a call are sent a few at a time, and its turn goes on with the rest at another engine.
"""

import time
from array import array
from collections.abc import Sequence as SequenceOf
from typing import Any, Final, NamedTuple

import numpy as np

from inference_svc.engine.embedder import finished_vector
from inference_svc.engine.embedding_request import EmbeddingRequest, Vector
from inference_svc.engine.events import Embedded
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine.sequence import Sequence
from inference_svc.upstream.endpoint import MAX_BODY_BYTES, REFUSED, Endpoint
from inference_svc.upstream.engine_api import members, positive, raise_error
from inference_svc.upstream.faults import AnswerInvalid, EngineOverloaded, RequestRefused, excerpt
from inference_svc.upstream.upstream_turn import ServedModel, Turn
from svc_kit.errors import ContextLengthExceeded, DomainError, InvalidField

_MAX_INPUTS: Final = 32
"""Inputs of a request: some services take no more."""
_MAX_TOKENS: Final = 8192
"""Tokens of a request with several inputs, so that others have their turns soon."""
_COMPONENT_BYTES: Final = 25
"""The most bytes of a number in JSON."""
_MAX_TOLD: Final = 1 << 24
"""The most tokens that an engine may report for a request."""
_REFUSED: Final = "the engine does not accept them; the log of the service has its reason"


class Answer(NamedTuple):
    """Vectors in the order of the inputs; `num_tokens` is None if the engine does not count."""

    vectors: list[Vector]
    num_tokens: int | None


class EmbeddingRoute(NamedTuple):
    """Where engines embed. `refused` are the statuses that are for the request."""

    path: str = "/v1/embeddings"
    refused: frozenset[int] = REFUSED

    async def vector_size(
        self, endpoint: Endpoint, model: str, probe: str | SequenceOf[int]
    ) -> int:
        """The length of the vectors, by that of an input. Raises `EngineFault`."""
        body = {"model": model, "input": [probe]}
        answer = read_answer(await endpoint.call("POST", self.path, body), 1)
        return len(answer.vectors[0])


def read_answer(value: Any, count: int, size: int | None = None) -> Answer:
    """Check an answer of `count` vectors, each with `size` components. Raises `EngineFault`."""
    answer = members(value, "an answer with embeddings")
    if answer.get("error"):
        raise_error(answer["error"])
    items = answer.get("data")
    if not isinstance(items, list) or len(items) != count:
        raise AnswerInvalid(f"it was sent {count} inputs, and did not answer with as many vectors")
    vectors: dict[int, Vector] = {}
    for item in items:
        embedding = members(item, "an embedding")
        index, vector = embedding.get("index"), _vector(embedding.get("embedding"))
        if type(index) is not int or not 0 <= index < count or index in vectors:
            raise AnswerInvalid(f"an embedding has the index {excerpt(str(index))}")
        size = len(vector) if size is None else size
        if len(vector) != size:
            raise AnswerInvalid(f"an embedding has {len(vector)} components instead of {size}")
        vectors[index] = vector
    usage = answer.get("usage")
    told = positive(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
    num_tokens = told if told is not None and told <= _MAX_TOLD else None
    return Answer([vectors[index] for index in range(count)], num_tokens)


def _vector(value: Any) -> Vector:
    if not isinstance(value, list) or not value or not {*map(type, value)} <= {int, float}:
        raise AnswerInvalid(f"an embedding is no list of numbers: {excerpt(str(value))}")
    with np.errstate(over="ignore"):
        vector: Vector = np.array(value, np.float64).astype(np.float32)
    if not np.isfinite(vector).all():
        raise AnswerInvalid("an embedding has numbers that are not finite")
    return vector


class EmbeddingTurn(Turn):
    """The inputs of one call, in the queue as a sequence without tokens. What was computed before
    an engine was lost is kept."""

    def __init__(
        self, request: EmbeddingRequest, served: ServedModel, *, route: EmbeddingRoute, size: int
    ) -> None:
        """`size` is that of the vectors."""
        super().__init__(_queued(request), served)
        self._request = request
        self._sizes = request.sizes
        self._route = route
        self._vector_size = size
        self._num_done = 0
        self._max_inputs = max(min(_MAX_INPUTS, MAX_BODY_BYTES // (size * _COMPONENT_BYTES)), 1)

    @property
    def can_go_on(self) -> bool:
        return True

    @property
    def may_wait_there(self) -> bool:
        return False  # nothing comes before its answer, so that it cannot be seen whether it waits

    def refusal(self, fault: RequestRefused) -> DomainError:
        """What an engine does not accept is most likely something of the inputs."""
        limit = self._served.context_tokens
        if fault.is_too_long and limit:
            longest = max(self._sizes[self._next_inputs()])
            return ContextLengthExceeded(
                field="inputs", prompt_tokens=longest, context_tokens=limit
            )
        problem = "one is too long for the engine" if fault.is_too_long else _REFUSED
        return InvalidField(field="inputs", problem=problem)

    async def run(self, endpoint: Endpoint) -> None:
        self._leave_queue()
        request = self._request
        while self._num_done < len(self._sizes):
            part = self._next_inputs()
            inputs = [*request.texts[part], *(each.tolist() for each in request.inputs[part])]
            body = {"model": self._served.model, "input": inputs}
            try:
                found = await endpoint.compute(self._route.path, body, self._route.refused)
            except EngineOverloaded as fault:
                # vLLM queues each input as a request, and does not say when it takes as many.
                self._max_inputs = max(len(inputs) // 2, 1)
                if fault.has_said_when or len(inputs) == 1:
                    raise
                continue
            self._deliver(part, read_answer(found, len(inputs), self._vector_size))
        self.is_finished = True

    def _next_inputs(self) -> slice:
        first, sizes = self._num_done, self._sizes
        end, num_tokens = first + 1, sizes[first]
        for size in sizes[end : first + self._max_inputs]:
            num_tokens += size
            if num_tokens > _MAX_TOKENS:
                break
            end += 1
        return slice(first, end)

    def _deliver(self, part: slice, answer: Answer) -> None:
        """Emit vectors. The tokens that an engine counts for texts together count for the first."""
        request, counts = self._request, self._sizes[part]
        is_estimated = bool(request.texts) and answer.num_tokens is None
        if request.texts and answer.num_tokens is not None:
            counts = [answer.num_tokens, *(0 for _ in counts[1:])]
        for vector, num_tokens in zip(answer.vectors, counts, strict=True):
            index, self._num_done = self._num_done, self._num_done + 1
            finished = finished_vector(vector, request.dimensions, normalize=request.normalize)
            is_last = self._num_done == len(self._sizes)
            self._served.emit(
                Embedded(
                    request.sequence_id,
                    request.model,
                    index,
                    finished,
                    num_tokens,
                    is_last,
                    is_estimated,
                )
            )


def _queued(request: EmbeddingRequest) -> Sequence:
    queued = SequenceRequest(
        sequence_id=request.sequence_id,
        model=request.model,
        prompt=array("i"),
        sampling=Sampling(),
        seed=0,
        choice=0,
        max_tokens=0,
        cache_key=b"",
        resumed=array("i"),
        priority=request.priority,
        project=request.project,
        deadline=request.deadline,
        request_id=request.request_id,
        estimated_tokens=request.num_tokens,
    )
    return Sequence(queued, arrived_at=time.monotonic())
