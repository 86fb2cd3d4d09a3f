"""One sequence at upstream engines, over as many attempts as it takes.

What an attempt sends and reads is of `token_mode` or of `text_mode`; what both need is here.
"""

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from inference_svc.engine.events import Divergence, Event, Started, Timings
from inference_svc.engine.kv_cache.divergence import MIN_LOST_TOKENS, find_divergence
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.scheduler.queue import BATCH
from inference_svc.engine.sequence import Sequence
from inference_svc.engine.slots import common_prefix
from inference_svc.upstream.endpoint import REFUSED, Endpoint, OnData
from inference_svc.upstream.faults import EngineFault, RequestRefused
from inference_svc.upstream.http_connection import HttpConnection
from svc_kit.errors import DomainError

_MAX_SENT: Final = 256
_MAX_SENT_TOKENS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt that was sent, followed by the output."""

    tokens: "array[int]"
    key: bytes
    project: str

    def is_continued_by(self, request: SequenceRequest) -> bool:
        length = len(self.tokens)
        is_same = (self.key, self.project) == (request.cache_key, request.project)
        return is_same and common_prefix(self.tokens, request.prompt, limit=length) == length


class SentPrompts:
    """The last prompts that were sent, which engines probably have cached: they do not tell which
    of them. At most `max_tokens` with their outputs."""

    def __init__(self, max_tokens: int = _MAX_SENT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._sent: list[SentPrompt] = []

    def add(self, sequence: Sequence) -> None:
        """Add the prompt of a sequence, instead of those that it continues."""
        request = sequence.request
        if not request.may_start_cached or len(request.prompt) < MIN_LOST_TOKENS:
            return
        kept = [each for each in self._sent[-_MAX_SENT:] if not each.is_continued_by(request)]
        self._sent = [*kept, SentPrompt(sequence.tokens, request.cache_key, request.project)]
        num_tokens = sum(len(each.tokens) for each in self._sent)
        while num_tokens > self._max_tokens:
            num_tokens -= len(self._sent.pop(0).tokens)

    def find_divergence(self, request: SequenceRequest, num_cached: int) -> Divergence | None:
        """Where a prompt differs from an earlier one; None if an engine had more of it cached."""
        found = find_divergence(request, self._sent)
        return found if found is not None and num_cached <= found.token_index else None


@dataclass(slots=True)
class Counters:
    """Tokens since the connection was made."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model at all URLs of an upstream. `context_tokens` is 0 if that is not known.

    `takes_gbnf` is whether all take constraints in this form, beside those of `takes_grammars`.
    `on_token` is told the project of each output token.
    """

    model: str
    context_tokens: int
    takes_grammars: bool
    takes_gbnf: bool
    emit: Callable[[Event], None]
    on_token: Callable[[str], None]
    counters: Counters = field(default_factory=Counters)
    sent: SentPrompts = field(default_factory=SentPrompts)


class Turn(ABC):
    """A sequence in the queue or at an engine, which was sent to `endpoint` last. `slot` is its
    number among those in flight.

    `num_lost` are the engines that it lost, `num_failed` the errors with which engines answered it,
    the last one at `failed_at`; `refused_at` is when engines began to refuse it as overloaded.
    `is_charged`: its prompt was charged to the project.
    """

    def __init__(self, sequence: Sequence, served: ServedModel) -> None:
        self.sequence = sequence
        self.is_finished = False
        self.is_charged = False
        self.num_lost = self.num_failed = 0
        self.endpoint: Endpoint | None = None
        self.failed_at: Endpoint | None = None
        self.refused_at: float | None = None
        self.slot = 0
        self._served = served
        self._connection: HttpConnection | None = None
        self._has_told_start = False

    @property
    @abstractmethod
    def can_go_on(self) -> bool:
        """Whether it may be sent to another engine after what was shown."""

    @abstractmethod
    async def run(self, endpoint: Endpoint) -> None:
        """Go on at an engine until the sequence is finished. Raises `EngineFault`."""

    @abstractmethod
    def refusal(self, fault: RequestRefused) -> DomainError:
        """The error of a request that an engine does not accept."""

    @property
    def may_wait_there(self) -> bool:
        """Whether it may be sent to an engine that will begin with it later."""
        return self.sequence.request.priority <= BATCH

    @property
    def phase(self) -> str:
        """Where it is: "queued", "prefill" or "decode"."""
        if not self.sequence.has_started:
            return "queued"
        return "prefill" if self.sequence.first_token_at is None else "decode"

    def set_paused(self, *, paused: bool) -> None:
        """Read no more of the answer, which stops the engine once the buffers are full."""
        self.sequence.paused = paused
        if self._connection is not None and not self.is_finished:
            self._connection.set_paused(paused=paused)

    def set_aside(self) -> None:
        """Wait in the queue as before, if no engine has begun with it."""
        self.sequence.has_started = self._has_told_start

    def _leave_queue(self) -> None:
        sequence = self.sequence
        if not sequence.has_started:
            sequence.has_started, sequence.started_at = True, time.monotonic()

    async def _ask(
        self,
        endpoint: Endpoint,
        path: str,
        body: object,
        on_data: OnData,
        refused: frozenset[int] = REFUSED,
    ) -> None:
        """Send a request and read its answer. What follows the end of the sequence is no fault;
        `on_data` and `refused` as in `Endpoint.stream`."""
        try:
            await endpoint.stream(path, body, on_data, self._on_open, refused)
        except EngineFault:
            if not self.is_finished:
                raise
        finally:
            self._connection = None

    def _on_open(self, connection: HttpConnection) -> None:
        self._connection = connection
        if self.sequence.paused:
            connection.set_paused(paused=True)

    def _start(self, cached_tokens: int) -> None:
        """Tell that the engine works on it, at its first sign of life."""
        sequence, served = self.sequence, self._served
        if self._has_told_start:
            return
        self._has_told_start = True
        queue_s = sequence.started_at - sequence.arrived_at
        cached = min(cached_tokens, len(sequence.request.prompt))
        served.counters.prompt += sequence.request.num_prompt_tokens
        served.counters.cached += cached
        divergence = served.sent.find_divergence(sequence.request, cached)
        served.sent.add(sequence)
        started = Started(sequence.request.sequence_id, self.slot, cached, queue_s=queue_s)
        served.emit(started._replace(divergence=divergence))

    def _touch(self) -> float:
        """Record that the engine wrote; return the time."""
        now = time.monotonic()
        if self._connection is not None:
            self._connection.touch()
        if self.sequence.first_token_at is None:
            self.sequence.first_token_at = now
        return now

    def _end(self) -> Timings:
        """Record that the sequence is finished; return its times until now."""
        sequence, now = self.sequence, time.monotonic()
        self.is_finished = True
        if self._connection is not None:
            self._connection.set_paused(paused=False)  # to read the rest, which nobody waits for
        first = sequence.first_token_at if sequence.first_token_at is not None else now
        return Timings(
            queue_s=sequence.started_at - sequence.arrived_at,
            prefill_s=first - sequence.started_at,
            decode_s=now - first,
        )
