"""Converts engine events to the messages of a stream.

Pending events of a choice are sent as one delta: a fast reader gets a message per token, a slow one
fewer, larger messages. This is a hot path: it runs for every token.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from corral.inference.v1 import chat_pb2 as chat_pb
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from google.protobuf.duration_pb2 import Duration

from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.parsers.turn import TurnDelta
from inference_svc.engine import events
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.output_stream import ChoiceEvent, OutputStream
from inference_svc.usage import Counts, RecordUsage

_SOURCES = {
    events.CacheSource.NONE: pb.CACHE_SOURCE_UNSPECIFIED,
    events.CacheSource.SLOT: pb.CACHE_SOURCE_SLOT,
    events.CacheSource.LIVE: pb.CACHE_SOURCE_LIVE,
    events.CacheSource.MEMORY: pb.CACHE_SOURCE_MEMORY,
    events.CacheSource.DISK: pb.CACHE_SOURCE_DISK,
}
_FINISH = {
    events.FinishReason.STOP: pb.FINISH_REASON_STOP,
    events.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_CLOCK_TICK_S = 1e-6  # tokens of the same step have the same time


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A submitted request: its choices, its stream, and the values of the first event."""

    requests: Sequence[SequenceRequest]
    stream: OutputStream
    queue_position: int
    model: str
    project: str

    def accepted(self) -> pb.Accepted:
        """The first event."""
        first = self.requests[0]
        return pb.Accepted(
            request_id=self.stream.request_id,
            prompt_tokens=len(first.prompt),
            queue_position=self.queue_position,
            seed=first.seed,
            model=self.model,
            max_tokens=first.max_tokens,
        )


@dataclass(slots=True)
class UsageCounts:
    """Sums over the choices, for the last event; `resumed_tokens` and timings are those of the
    first choice."""

    prompt_tokens: int
    resumed_tokens: int
    cached_tokens: int = 0
    cache_source: events.CacheSource = events.CacheSource.NONE
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    started: bool = False
    timings: events.Timings | None = None
    timed_tokens: int = 0
    new_tokens: dict[int, int] = field(default_factory=dict)
    """Tokens generated so far, by choice. They count as used even if the request ends early."""

    def used(self) -> Counts:
        """Return the usage of the request, complete or not."""
        return Counts(1, self.prompt_tokens, self.cached_tokens, sum(self.new_tokens.values()))

    def done(self) -> pb.Done:
        """The last event."""
        usage = pb.Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
            cache_source=_SOURCES[self.cache_source],
            draft_tokens=self.drafted_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
        )
        return pb.Done(usage=usage, timings=self._timings())

    def _timings(self) -> pb.Timings:
        if self.timings is None:
            return pb.Timings()
        queue_s, prefill_s, decode_s = self.timings
        timings = pb.Timings(
            queue=seconds(queue_s),
            prefill=seconds(prefill_s),
            decode=seconds(decode_s),
            first_token=seconds(queue_s + prefill_s),
            completion_tokens=self.timed_tokens,
        )
        if self.timed_tokens > 1:
            timings.between_tokens.CopyFrom(seconds(decode_s / (self.timed_tokens - 1)))
            timings.tokens_per_second = (self.timed_tokens - 1) / max(decode_s, _CLOCK_TICK_S)
        return timings


@dataclass(slots=True)
class Pending:
    """Output of one choice since the last message: `text` and number of tokens (`counts`) by delta,
    `num_tokens` in total."""

    text: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[events.ChosenLogprob] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, delta: events.Delta) -> None:
        """Append a delta."""
        self.text.append(delta.text)
        self.counts.append(len(delta.tokens))
        self.tokens.extend(delta.tokens)
        self.logprobs.extend(delta.logprobs)
        self.num_tokens += len(delta.tokens)


Event = (
    pb.Accepted
    | pb.Started
    | service_pb.TextDelta
    | service_pb.ChatDelta
    | pb.ChoiceFinished
    | pb.Done
)


class Turn(Protocol):
    """Converts the pending output of one choice to deltas."""

    def delta(self, pending: Pending) -> "service_pb.TextDelta | service_pb.ChatDelta | None":
        """Return the delta to send, or None."""

    def finish(self) -> "service_pb.TextDelta | service_pb.ChatDelta | None":
        """Return the output that was withheld, once the choice has finished."""

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        """Return the finish reason."""

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens."""


class TextTurn:
    """Raw text, for `Generate`."""

    reasoning_tokens = 0

    def __init__(self, index: int, *, token_ids: bool) -> None:
        self._index = index
        self._token_ids = token_ids

    def delta(self, pending: Pending) -> service_pb.TextDelta:
        """Return all pending output."""
        delta = service_pb.TextDelta(
            index=self._index, text="".join(pending.text), num_tokens=pending.num_tokens
        )
        if self._token_ids:
            delta.token_ids.extend(pending.tokens)
        if pending.logprobs:
            delta.logprobs.extend(map(_chosen, pending.logprobs))
        return delta

    def finish(self) -> None:
        """Return None: nothing is withheld."""

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        """Return the engine's reason."""
        return _FINISH[finished.reason]


class ChatTurn:
    """Content, reasoning and tool calls, for `Chat`; calls beyond `max_calls` are dropped."""

    def __init__(
        self, index: int, parser: TurnParser, *, token_ids: bool, max_calls: int | None = None
    ) -> None:
        self._index = index
        self._parser = parser
        self._token_ids = token_ids
        self._max_calls = max_calls
        self.reasoning_tokens = 0

    def delta(self, pending: Pending) -> service_pb.ChatDelta:
        """Return the parsed output, and all pending tokens."""
        parsed = TurnDelta()
        for text, num_tokens in zip(pending.text, pending.counts, strict=True):
            parsed = parsed.then(self._feed(text, num_tokens))
        delta = self._message(parsed)
        delta.num_tokens = pending.num_tokens
        if self._token_ids:
            delta.token_ids.extend(pending.tokens)
        if pending.logprobs:
            delta.logprobs.extend(map(_chosen, pending.logprobs))
        return delta

    def replay(self, text: str) -> None:
        """Parse the text of a resumed token without sending it again."""
        self._feed(text, 1)

    def finish(self) -> service_pb.ChatDelta | None:
        """Return the output that the parser withheld."""
        parsed = self._parser.finish()
        if not (parsed.content or parsed.reasoning or parsed.tool_calls):
            return None
        return self._message(parsed)

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        """Return TOOL_CALLS if the turn stopped with calls, else the engine's reason."""
        if finished.reason is events.FinishReason.STOP and self._parser.has_tool_calls:
            return pb.FINISH_REASON_TOOL_CALLS
        return _FINISH[finished.reason]

    def _feed(self, text: str, num_tokens: int) -> TurnDelta:
        parsed = self._parser.feed(text)
        if parsed.reasoning and not parsed.content:
            self.reasoning_tokens += num_tokens
        return parsed

    def _message(self, parsed: TurnDelta) -> service_pb.ChatDelta:
        delta = service_pb.ChatDelta(
            index=self._index, content=parsed.content, reasoning=parsed.reasoning
        )
        for call in parsed.tool_calls:
            if self._max_calls is not None and call.index >= self._max_calls:
                continue
            delta.tool_calls.append(
                chat_pb.ToolCallDelta(
                    index=call.index, id=call.id, name=call.name, arguments_json=call.arguments
                )
            )
        return delta


async def stream_events(
    accepted: AcceptedRequest, turns: Sequence[Turn], count: RecordUsage
) -> AsyncIterator[Event]:
    """Yield all events of a stream, in order; `count` records its usage at the end.

    Raises the stream's `DomainError`. Closing the iterator cancels running choices.
    """
    first = accepted.requests[0]
    usage = UsageCounts(len(first.prompt), len(first.resumed))
    try:
        yield accepted.accepted()
        async for batch in accepted.stream.batches():
            for event in _merge(batch, turns, usage):
                yield event
        yield usage.done()
    finally:
        accepted.stream.close()
        if usage.started:
            count(accepted.project, accepted.model, usage.used())


def _merge(
    batch: Sequence[ChoiceEvent], turns: Sequence[Turn], usage: UsageCounts
) -> Iterator[Event]:
    """Convert a batch of events; the deltas of a choice are joined into one message."""
    pending: dict[int, Pending] = {}
    for choice, event in batch:
        if isinstance(event, events.Delta):
            pending.setdefault(choice, Pending()).add(event)
        elif isinstance(event, events.Started):
            if not usage.started:
                usage.started = True
                usage.cached_tokens = event.cached_tokens
                usage.cache_source = event.source
                yield pb.Started(
                    cached_tokens=event.cached_tokens,
                    cache_source=_SOURCES[event.source],
                )
        else:
            yield from _end(choice, event, pending.pop(choice, None), turns[choice], usage)
    for choice, output in pending.items():
        usage.new_tokens[choice] = usage.new_tokens.get(choice, 0) + output.num_tokens
        delta = turns[choice].delta(output)
        if delta is not None:
            yield delta


def _end(
    choice: int, event: events.Finished, pending: Pending | None, turn: Turn, usage: UsageCounts
) -> Iterator[Event]:
    if pending is not None and (delta := turn.delta(pending)) is not None:
        yield delta
    if (rest := turn.finish()) is not None:
        yield rest
    usage.completion_tokens += event.num_output_tokens
    usage.new_tokens[choice] = event.num_output_tokens - usage.resumed_tokens
    usage.reasoning_tokens += turn.reasoning_tokens
    usage.drafted_tokens += event.num_drafted
    usage.accepted_draft_tokens += event.num_accepted
    if choice == 0:
        usage.timings = event.timings
        usage.timed_tokens = event.num_output_tokens - usage.resumed_tokens
    finished = pb.ChoiceFinished(
        index=choice, reason=turn.reason(event), completion_tokens=event.num_output_tokens
    )
    if event.stop_text is not None:
        finished.stop_text = event.stop_text
    elif event.stop_token is not None:
        finished.stop_token_id = event.stop_token
    yield finished


def _chosen(logprob: events.ChosenLogprob) -> pb.ChosenLogprob:
    return pb.ChosenLogprob(chosen=_logprob(logprob.chosen), top=map(_logprob, logprob.top))


def _logprob(logprob: events.Logprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=logprob.token, token=logprob.piece, logprob=max(logprob.logprob, -9999.0)
    )


def seconds(value: float) -> Duration:
    """Convert seconds to a proto duration."""
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=max(value, 0.0)))
    return duration
