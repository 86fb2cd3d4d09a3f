"""One sequence at upstream engines, over as many attempts as it takes.

An attempt sends the prompt and the output so far, so that it goes on where the last one ended:
after the loss of an engine, and after tokens that end a reasoning, which no engine can be told to
write. Text, stop texts, reasoning and counts are ours and do not see the seam.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Final

from inference_svc.engine.events import (
    ChosenLogprob,
    Delta,
    Event,
    FinishReason,
    Logprob,
    Started,
    Timings,
)
from inference_svc.engine.sequence import Sequence
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.engine_api import (
    UNKNOWN,
    AnswerReader,
    Chunk,
    EngineApi,
    Generation,
    TokenLogprob,
)
from inference_svc.upstream.faults import AnswerInvalid, EngineFault, EngineLost
from inference_svc.upstream.http_connection import HttpConnection
from inference_svc.upstream.pieces import VocabularyPieces

_UNTOLD_LOGPROB: Final = -9999.0
"""OpenAI's value for a token whose probability is not told."""


@dataclass(slots=True)
class Counters:
    """Tokens since the connection was made."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model at all URLs of an upstream, and how its engines are asked.

    `on_token` is told the project of each output token.
    """

    api: EngineApi
    model: str
    context_tokens: int
    takes_grammars: bool
    pieces: VocabularyPieces
    emit: Callable[[Event], None]
    on_token: Callable[[str], None]
    counters: Counters = field(default_factory=Counters)


class Turn:
    """A sequence in the queue or at an engine. `slot` is its number among those in flight.

    `num_lost` are the engines that it lost, `num_failed` the errors with which engines answered it,
    the last one at `failed_at`; `refused_at` is when engines began to refuse it as overloaded.
    `is_charged`: its prompt was charged to the project.
    """

    def __init__(self, sequence: Sequence, served: ServedModel) -> None:
        self.sequence = sequence
        self.is_finished = False
        self.is_charged = False
        self.num_lost = self.num_failed = 0
        self.failed_at: Endpoint | None = None
        self.refused_at: float | None = None
        self.slot = 0
        self._served = served
        self._connection: HttpConnection | None = None
        self._reader: AnswerReader | None = None
        self._num_left = 0
        self._must_force = self._has_replayed = self._has_told_start = False

    @property
    def can_go_on(self) -> bool:
        """Whether it may be repeated: an engine begins a constraint at the first new token, so that
        a constrained output that was shown in part cannot go on."""
        request = self.sequence.request
        return request.constraint is None or self.sequence.num_output == len(request.resumed)

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

    async def run(self, endpoint: Endpoint) -> None:
        """Go on at an engine until the sequence is finished. Raises `EngineFault`."""
        self._begin()
        while not self.is_finished:
            if self._force():
                return
            await self._attempt(endpoint)

    def _begin(self) -> None:
        """Leave the queue, and replay the resumed tokens, once."""
        sequence = self.sequence
        if not sequence.has_started:
            sequence.has_started, sequence.started_at = True, time.monotonic()
        if self._has_replayed:
            return
        self._has_replayed = True
        for token in sequence.request.resumed:
            if sequence.output.add(token, self._served.pieces).is_end:
                self._start(0)
                self._finish(FinishReason.STOP)
                return
        if sequence.num_output and self._num_allowed <= 0:
            self._start(0)
            self._finish(FinishReason.LENGTH)

    @property
    def _num_allowed(self) -> int:
        """The output tokens that may still come."""
        sequence = self.sequence
        room = self._served.context_tokens - len(sequence.tokens)
        return min(sequence.request.max_tokens - sequence.num_output, room)

    async def _attempt(self, endpoint: Endpoint) -> None:
        served, sequence = self._served, self.sequence
        self._num_left = self._num_allowed
        generation = Generation(
            sequence.request,
            served.model,
            sequence.tokens,
            self._num_left,
            max(sequence.request.min_tokens - sequence.num_output, 0),
            served.takes_grammars,
        )
        self._reader = served.api.reader(generation)
        path, body = served.api.body(generation)
        try:
            await endpoint.stream(path, body, self._read, self._on_open)
        except EngineFault:
            if not self.is_finished:
                raise
        finally:
            self._connection = None
        if not self.is_finished and not self._must_force:
            raise EngineLost("its stream ended before the answer did")

    def _on_open(self, connection: HttpConnection) -> None:
        self._connection = connection
        if self.sequence.paused:
            connection.set_paused(paused=True)

    def _read(self, data: bytes) -> bool:
        """Read an event; returns whether no more of the answer is wanted."""
        if self._reader is None:
            return False
        chunk = self._reader.read(data)
        if self.is_finished:
            return bool(chunk.tokens)  # the rest of an answer that has ended has none
        self._check(chunk)
        self._start(chunk.cached_tokens)
        if chunk.tokens:
            if self._connection is not None:
                self._connection.touch()
            self._append(chunk.tokens, chunk.logprobs)
            if self.is_finished or self._must_force:
                return not (chunk.is_end or self._is_last(chunk.tokens[-1]))
        if chunk.is_end:
            self._finish(FinishReason.LENGTH if chunk.at_limit else FinishReason.STOP)
        return False

    def _is_last(self, token: int) -> bool:
        """Whether the engine ends after this token by itself."""
        return self._num_allowed <= 0 or self._served.pieces.is_eog(token)

    def _check(self, chunk: Chunk) -> None:
        size = self._served.pieces.size
        for token in chunk.tokens:
            if not 0 <= token < size:
                raise AnswerInvalid(f"its token {token} is not in the vocabulary of {size} tokens")

    def _start(self, cached_tokens: int) -> None:
        """Tell that the engine works on it, at its first sign of life."""
        sequence, served = self.sequence, self._served
        if self._has_told_start:
            return
        self._has_told_start = True
        queue_s = sequence.started_at - sequence.arrived_at
        cached = min(cached_tokens, len(sequence.request.prompt))
        served.counters.prompt += len(sequence.request.prompt)
        served.counters.cached += cached
        served.emit(Started(sequence.request.sequence_id, self.slot, cached, queue_s=queue_s))

    def _append(self, tokens: SequenceOf[int], logprobs: SequenceOf[TokenLogprob]) -> None:
        """Append output tokens up to the one that ends the sequence, is the last one allowed, or
        after which the reasoning must end."""
        sequence, served = self.sequence, self._served
        request, now = sequence.request, time.monotonic()
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        texts, added_logprobs, reason, count = [], [], None, 0
        for index, token in enumerate(tokens):
            count += 1
            sequence.tokens.append(token)
            served.on_token(request.project)
            added = sequence.output.add(token, served.pieces)
            texts.append(added.text)
            if request.top_logprobs is not None:
                told = logprobs[index] if index < len(logprobs) else UNKNOWN
                added_logprobs.append(self._logprob(token, told, added.piece))
            if added.is_end:
                reason = FinishReason.STOP
            elif self._num_allowed <= 0:
                reason = FinishReason.LENGTH
            elif sequence.output.reasoning.forced is not None:
                self._must_force = True
            if reason is not None or self._must_force:
                break
        served.counters.output += count
        sequence_id = request.sequence_id
        served.emit(
            Delta(sequence_id, tuple(texts), tuple(tokens[:count]), tuple(added_logprobs), now)
        )
        if reason is not None:
            self._finish(reason)

    def _force(self) -> bool:
        """Append the tokens that end the reasoning; returns whether the sequence is finished."""
        self._must_force = False
        while (token := self.sequence.output.reasoning.forced) is not None:
            self._start(0)
            self._append((token,), ())
            self._must_force = False
            if self.is_finished:
                return True
        return self.is_finished

    def _logprob(self, token: int, told: TokenLogprob, text: bytes) -> ChosenLogprob:
        piece = self._served.pieces.piece
        size = self._served.pieces.size
        value = _UNTOLD_LOGPROB if told is UNKNOWN else told.logprob
        top = tuple(
            Logprob(each, piece(each, special=True), logprob)
            for each, logprob in told.top
            if 0 <= each < size
        )
        count = self.sequence.request.top_logprobs
        chosen = Logprob(token, piece(token, special=True), value)
        return ChosenLogprob(chosen, top[:count], text=text)

    def _finish(self, reason: FinishReason) -> None:
        sequence, served = self.sequence, self._served
        self.is_finished, now = True, time.monotonic()
        if self._connection is not None:
            self._connection.set_paused(paused=False)  # to read the rest, which nobody waits for
        first = sequence.first_token_at if sequence.first_token_at is not None else now
        timings = Timings(
            queue_s=sequence.started_at - sequence.arrived_at,
            prefill_s=first - sequence.started_at,
            decode_s=now - first,
        )
        text, finished = sequence.output.finish(reason, sequence.num_output, timings)
        if text:
            served.emit(Delta(finished.sequence_id, (text,), (), (), now))
        served.emit(finished)
