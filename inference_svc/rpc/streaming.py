"""Converts engine events to the messages of a stream.

This is a hot path: it runs for every token, so a message is built once, in place. It knows nothing
of the call that carries the messages.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from corral.inference.v1.session_pb2 import SessionTurn
from google.protobuf.duration_pb2 import Duration

from inference_svc.chat.divergence_text import PromptText
from inference_svc.engine import events
from inference_svc.engine.media import MediaKind
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.output_stream import OutputStream, StreamEvent
from inference_svc.limits.limiter import LimitReservation
from inference_svc.rpc.generation_span import GenerationSpan, end_reason
from inference_svc.sessions import EndedRequest, SessionKey, SessionLog
from inference_svc.usage import Counts, RecordUsage, UsageKey
from svc_kit.logs import add_call_fields
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper
from svc_kit.tasks import retrieve_exception

_SOURCES: Final = EnumMapper[events.CacheSource](
    events.CacheSource, pb.CacheSource, zero=events.CacheSource.NONE
)
_FINISH: Final = EnumMapper[events.FinishReason](
    events.FinishReason, pb.FinishReason, only_message=["TOOL_CALLS"]
)
_DIVERGENCE: Final = MessageMapper(
    events.DivergenceText,
    pb.CacheDivergence,
    renamed={"num_lost": "lost_tokens", "cached": "cached_text", "prompt": "prompt_text"},
)
_MAX_DESCRIBING_S: Final = 1.0
"""How long the last event waits for the description of the first difference from the cache."""
_CLOCK_TICK_S = 1e-6  # tokens of the same step have the same time
ResponseT = TypeVar("ResponseT", service_pb.GenerateResponse, service_pb.ChatResponse)


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A submitted request: its choices, its stream, and the values of the first event.
    `prompt_token_ids`: send the tokens of the prompt. `interval_s`: send those of this time
    together. `text` describes where the prompt differs from what is cached; None: not reported.
    `label` is the caller's own id."""

    requests: Sequence[SequenceRequest]
    stream: OutputStream
    queue_position: int
    usage_key: UsageKey
    admission: LimitReservation
    session: SessionKey
    prompt_token_ids: bool = False
    interval_s: float = 0.0
    ignored_options: tuple[str, ...] = ()
    model_digest: str = ""
    input_digest: str = ""
    text: PromptText | None = None
    label: str = ""

    def accepted(self) -> pb.Accepted:
        """The first event."""
        first = self.requests[0]
        return pb.Accepted(
            request_id=self.stream.request_id,
            prompt_tokens=first.num_prompt_tokens,
            queue_position=self.queue_position,
            seed=first.seed,
            model=self.usage_key.model,
            max_tokens=first.max_tokens,
            rate_limits=self.admission.statuses(),
            prompt_token_ids=(first.source or first.prompt) if self.prompt_token_ids else (),
            ignored_options=self.ignored_options,
            model_digest=self.model_digest,
            input_digest=self.input_digest,
        )


class UsageCounts:
    """Sums over the choices, for the last event; timings are those of the first choice."""

    def __init__(self, requests: Sequence[SequenceRequest]) -> None:
        """`requests` are the choices."""
        first = requests[0]
        self.started = False
        self.divergence: events.Divergence | None = None
        self._usage = pb.Usage(
            prompt_tokens=first.num_prompt_tokens,
            image_tokens=_count(first, MediaKind.IMAGE),
            audio_tokens=_count(first, MediaKind.AUDIO),
        )
        self._resumed_tokens = [len(each.resumed) for each in requests]
        self._timed: events.Timings | None = None
        self._timed_tokens = 0
        self._reason: pb.FinishReason = pb.FINISH_REASON_UNSPECIFIED
        # Tokens generated so far, by choice. They count as used even if the request ends early.
        self._new_tokens: dict[int, int] = {}

    def start(self, event: events.Started) -> None:
        """Count the prompt tokens that the first choice reuses."""
        self.started = True
        self._usage.cached_tokens = event.cached_tokens
        self._usage.cache_source = _SOURCES.encode(event.source)
        self.divergence = event.divergence

    def add_divergence(self, found: events.DivergenceText) -> None:
        self._usage.divergence.CopyFrom(_DIVERGENCE.to_message(found))

    def add(self, choice: int, num_tokens: int) -> None:
        self._new_tokens[choice] = self._new_tokens.get(choice, 0) + num_tokens

    def finish(self, choice: int, event: events.Finished, reason: pb.FinishReason) -> None:
        new_tokens = event.num_output_tokens - self._resumed_tokens[choice]
        self._new_tokens[choice] = new_tokens
        self._usage.completion_tokens += event.num_output_tokens
        self._usage.reasoning_tokens += event.num_reasoning_tokens
        self._usage.draft_tokens += event.num_drafted
        self._usage.accepted_draft_tokens += event.num_accepted
        self._usage.draft_model_tokens += event.by_draft_model.drafted
        self._usage.accepted_draft_model_tokens += event.by_draft_model.accepted
        if event.usage is not None:
            self._usage.is_estimated |= event.usage.is_estimated
            if choice == 0:
                self._usage.prompt_tokens = event.usage.prompt_tokens
        if choice == 0:
            self._timed, self._timed_tokens = event.timings, new_tokens
            self._reason = reason

    def used(self) -> Counts:
        """Return the usage of the request, complete or not."""
        usage = self._usage
        num_tokens = sum(self._new_tokens.values())
        return Counts(1, usage.prompt_tokens, usage.cached_tokens, num_tokens)

    def log_fields(self) -> Mapping[str, float | str]:
        """The tokens so far, where the prompt differs from what is cached, and the durations of the
        first choice once it has finished."""
        used = self.used()
        fields: dict[str, float | str] = {
            "prompt_tokens": used.prompt_tokens,
            "cached_tokens": used.cached_tokens,
            "completion_tokens": used.completion_tokens,
        }
        if self._usage.HasField("divergence"):
            found = self._usage.divergence
            fields |= {"divergence_token": found.token_index, "divergence_field": found.field}
        if self._timed is not None:
            queue_s, prefill_s, decode_s = self._timed
            fields |= {
                "queue_ms": round(queue_s * 1000, 3),
                "first_token_ms": round((queue_s + prefill_s) * 1000, 3),
                "decode_ms": round(decode_s * 1000, 3),
            }
        return fields

    def done(self) -> pb.Done:
        """The last event."""
        return pb.Done(usage=self._usage, timings=self._timings())

    def turn(self) -> SessionTurn:
        """The request as a turn of its session, complete or not, without texts."""
        turn = SessionTurn(usage=self._usage, timings=self._timings(), finish_reason=self._reason)
        turn.usage.completion_tokens = self.used().completion_tokens
        if self.divergence is not None:
            found = turn.usage.divergence
            found.token_index, found.lost_tokens, _ = self.divergence
            found.ClearField("cached_text")
            found.ClearField("prompt_text")
        return turn

    def _timings(self) -> pb.Timings:
        if self._timed is None:
            return pb.Timings()
        queue_s, prefill_s, decode_s = self._timed
        timings = pb.Timings(
            queue=seconds(queue_s),
            prefill=seconds(prefill_s),
            decode=seconds(decode_s),
            first_token=seconds(queue_s + prefill_s),
            completion_tokens=self._timed_tokens,
        )
        if self._timed_tokens > 1:
            timings.between_tokens.CopyFrom(seconds(decode_s / (self._timed_tokens - 1)))
            timings.tokens_per_second = (self._timed_tokens - 1) / max(decode_s, _CLOCK_TICK_S)
        return timings


def _count(request: SequenceRequest, kind: MediaKind) -> int:
    return sum(span.num_tokens for span in request.media if span.kind is kind)


class Turn(ABC, Generic[ResponseT]):
    """Converts the output of one choice to responses: `TextTurn`, or `chat_turn.ChatTurn`."""

    response_type: type[ResponseT]

    def __init__(self, index: int, *, token_ids: bool) -> None:
        """`token_ids`: send the ids of the tokens."""
        self._index = index
        self._token_ids = token_ids

    @abstractmethod
    def delta(self, output: events.Delta) -> Sequence[ResponseT]:
        """Return new output: at least one response, of which the last has the tokens."""

    def finish(self, finished: events.Finished) -> Sequence[ResponseT]:
        """Return the output that was withheld, if any, once the choice has finished."""
        return ()

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        reason: pb.FinishReason = _FINISH.encode(finished.reason)
        return reason

    def _write_tokens(
        self, output: events.Delta, delta: service_pb.TextDelta | service_pb.ChatDelta
    ) -> None:
        delta.index = self._index
        delta.num_tokens = output.num_tokens
        if self._token_ids:
            delta.token_ids.extend(output.tokens)


class TextTurn(Turn[service_pb.GenerateResponse]):
    """Raw text, for `Generate`."""

    response_type = service_pb.GenerateResponse

    def delta(self, output: events.Delta) -> Sequence[service_pb.GenerateResponse]:
        response = service_pb.GenerateResponse()
        response.delta.text = output.text
        self._write_tokens(output, response.delta)
        if output.logprobs:
            response.delta.logprobs.extend(map(chosen_logprob, output.logprobs))
        return (response,)


class _Description:
    """Describes, beside the generation, where a prompt differs from what is cached, for the usage
    and the list of requests."""

    def __init__(self, accepted: AcceptedRequest, usage: UsageCounts) -> None:
        self._accepted = accepted
        self._usage = usage
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it once it is known that the prompt differs."""
        divergence, text = self._usage.divergence, self._accepted.text
        if self._task is None and divergence is not None and text is not None:
            self._task = asyncio.create_task(self._describe(divergence, text))

    async def _describe(self, divergence: events.Divergence, text: PromptText) -> None:
        found = await text.describe(divergence, self._accepted.requests[0].prompt)
        self._accepted.stream.divergence = found
        self._usage.add_divergence(found)

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=_MAX_DESCRIBING_S)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(retrieve_exception)
            self._task.cancel()


async def stream_responses(
    accepted: AcceptedRequest,
    turns: Sequence[Turn[ResponseT]],
    count: RecordUsage,
    sessions: SessionLog,
    span: GenerationSpan,
) -> AsyncIterator[ResponseT]:
    """Yield all messages of a stream, in order; `count` records its usage at the end, and
    `sessions` the whole request.

    Raises the stream's `DomainError`. Closing the iterator cancels running choices.
    """
    stream, first, response_type = accepted.stream, accepted.requests[0], turns[0].response_type
    choices = {sequence_id: choice for choice, sequence_id in enumerate(stream.sequence_ids)}
    span.accept(first, accepted.usage_key.model, len(turns))
    usage, output = UsageCounts(accepted.requests), span.output
    numbers = itertools.count(1)
    is_settled, error_reason = False, ""
    description = _Description(accepted, usage)

    def settle() -> None:
        nonlocal is_settled
        if usage.started and not is_settled:
            is_settled = True
            count(accepted.usage_key, usage.used())
            accepted.admission.settle(usage.used())

    try:
        yield response_type(accepted=accepted.accepted())
        while batch := await stream.read(accepted.interval_s):
            for event in batch:
                choice = choices[event.sequence_id]
                if isinstance(event, events.Delta):
                    accepted.admission.add_output(event.num_tokens)
                for response in _responses(choice, event, turns[choice], usage, span):
                    response.sequence_number = next(numbers)
                    if output is not None:
                        output.add(response)
                    yield response
            description.start()
        await description.wait()
        settle()  # before the caller is told, so that what it was told is always counted
        done = usage.done()
        span.count(done.usage)
        yield response_type(sequence_number=next(numbers), done=done)
    except BaseException as error:
        error_reason = "" if is_settled else end_reason(error)
        raise
    finally:
        description.cancel()
        stream.close()
        add_call_fields(model=accepted.usage_key.model, **usage.log_fields())
        settle()
        sessions.add(_ended(accepted, usage, error_reason))


def _ended(accepted: AcceptedRequest, usage: UsageCounts, error_reason: str) -> EndedRequest:
    turn = usage.turn()
    turn.request_id, turn.label = accepted.stream.request_id, accepted.label
    turn.error_reason = error_reason
    place = ""
    if usage.divergence is not None and accepted.text is not None:
        place = accepted.text.find_place(turn.usage.divergence.field)
    priority = accepted.requests[0].priority
    return EndedRequest(accepted.session, accepted.usage_key, priority, turn, place)


def _responses(
    choice: int,
    event: StreamEvent,
    turn: Turn[ResponseT],
    usage: UsageCounts,
    span: GenerationSpan,
) -> Iterator[ResponseT]:
    """Convert an event of a choice, and count its tokens."""
    if isinstance(event, events.Delta):
        usage.add(choice, event.num_tokens)
        yield from turn.delta(event)
    elif isinstance(event, events.PromptTokens):
        yield turn.response_type(
            prompt_tokens=pb.PromptTokens(tokens=map(_prompt_token, event.tokens))
        )
    elif isinstance(event, events.Finished):
        yield from turn.finish(event)
        reason = turn.reason(event)
        usage.finish(choice, event, reason)
        span.finish(choice, event.timings, reason)
        yield turn.response_type(finished=_finished(choice, event, reason))
    elif not usage.started:
        usage.start(event)
        span.start(event.queue_s)
        source = _SOURCES.encode(event.source)
        started = pb.Started(cached_tokens=event.cached_tokens, cache_source=source)
        yield turn.response_type(started=started)


def _finished(choice: int, event: events.Finished, reason: pb.FinishReason) -> pb.ChoiceFinished:
    finished = pb.ChoiceFinished(
        index=choice, reason=reason, completion_tokens=event.num_output_tokens
    )
    if event.stop_text is not None:
        finished.stop_text = event.stop_text
    elif event.stop_token is not None:
        finished.stop_token_id = event.stop_token
    return finished


def chosen_logprob(logprob: events.ChosenLogprob) -> pb.ChosenLogprob:
    """Convert the log probability of a token, with its alternatives."""
    return pb.ChosenLogprob(chosen=_logprob(logprob.chosen), top=map(_logprob, logprob.top))


def _prompt_token(token: events.PromptToken) -> pb.PromptToken:
    message = pb.PromptToken(token_id=token.token, token=token.piece)
    if token.logprob is not None:
        message.logprob = max(token.logprob.chosen.logprob, -9999.0)
        message.rank = token.logprob.rank
        message.top.extend(map(_logprob, token.logprob.top))
    return message


def _logprob(logprob: events.Logprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=logprob.token, token=logprob.piece, logprob=max(logprob.logprob, -9999.0)
    )


def seconds(value: float) -> Duration:
    """Convert seconds to a proto duration."""
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=max(value, 0.0)))
    return duration
