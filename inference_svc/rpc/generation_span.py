"""The span of a generation, and those of its queue, prefill and decode, in the names of
OpenTelemetry's GenAI conventions.

The last three are made when the call ends, from the times that the engine reports; a token costs
nothing. Prompts and answers are recorded only where the settings say so.
"""

import time
from types import TracebackType
from typing import Any, Final, Self

from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.engine.events import Timings
from inference_svc.engine.request import SequenceRequest
from inference_svc.rpc.span_content import OutputMessages, input_messages
from svc_kit.tracing.span import Attributes, Span, current_span, error_type

_CANCELLED: Final = ("GeneratorExit", "CancelledError")
Request = service_pb.ChatRequest | service_pb.GenerateRequest


class GenerationSpan:
    """A block in which one request is prepared, queued and generated."""

    def __init__(self, operation: str, request: Request) -> None:
        """`operation` is "chat" or "text_completion"."""
        self._span = current_span().child(operation)
        # At the start, since a request that is refused or fails has a span too.
        self._span.set(operation_attributes(operation, request.model))
        self._operation = operation
        self._request = request
        self._started_s = time.monotonic()
        self._accepted_s: float | None = None
        self._queue_s: float | None = None
        self._timings: dict[int, Timings] = {}
        self._reasons: dict[int, str] = {}
        self.output = OutputMessages() if self._span.records_content else None
        """None where content is not recorded."""

    def accept(self, first: SequenceRequest, model: str, num_choices: int) -> None:
        """Record that the choices of the request have been queued; `first` is one of them."""
        self._accepted_s = time.monotonic()
        if self._span.is_recording:
            self._span.set(_request_attributes(self._request, first, model, num_choices))

    def start(self, queue_s: float) -> None:
        """Record that the first choice has left the queue."""
        self._queue_s = queue_s

    def finish(self, choice: int, timings: Timings, reason: "pb.FinishReason") -> None:
        """Record the end of a choice."""
        self._timings[choice] = timings
        name = pb.FinishReason.Name(reason)
        self._reasons[choice] = name.removeprefix("FINISH_REASON_").lower()

    def count(self, usage: pb.Usage) -> None:
        """Record the tokens of the choices that have ended."""
        if self._span.is_recording:
            self._span.set(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                    "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                }
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._span.is_recording:
            return
        self._add_phases()
        attributes: dict[str, Any] = {
            "gen_ai.response.finish_reasons": list(self._reasons.values())
        }
        if self.output is not None:
            attributes["gen_ai.input.messages"] = input_messages(self._request)
            attributes["gen_ai.output.messages"] = self.output.text(self._reasons)
        self._span.set(attributes)
        self._span.end(
            name=f"{self._operation} {self._request.model}".rstrip(),
            error=None if error is None else end_reason(error),
        )

    def _add_phases(self) -> None:
        """Add the spans below this one, of all choices."""
        accepted_s = self._accepted_s
        if accepted_s is None:
            return
        _add(self._span, "prepare", self._started_s, accepted_s)
        if not self._timings and self._queue_s is not None:
            _add(self._span, "queue", accepted_s, accepted_s + self._queue_s)
        for choice, (queue_s, prefill_s, decode_s) in sorted(self._timings.items()):
            begin_s = accepted_s
            for name, duration_s in (
                ("queue", queue_s),
                ("prefill", prefill_s),
                ("decode", decode_s),
            ):
                _add(self._span, name, begin_s, begin_s + duration_s, choice)
                begin_s += duration_s
        if 0 in self._timings:
            queue_s, prefill_s, _ = self._timings[0]
            first_s = accepted_s + queue_s + prefill_s - self._started_s
            self._span.set({"gen_ai.response.time_to_first_chunk": first_s})


def end_reason(error: BaseException) -> str:
    """The reason of what ended a generation early."""
    reason = error_type(error)
    return "CALLER_CANCELLED" if reason in _CANCELLED else reason


def _add(span: Span, name: str, start_s: float, end_s: float, choice: int = 0) -> None:
    child = span.child(name, start_s=start_s)
    if choice:
        child.set({"corral.choice": choice})
    child.end(end_s=end_s)


def operation_attributes(operation: str, model: str) -> Attributes:
    """What the conventions require of every span; `model` is what the caller named, or empty."""
    named = {"gen_ai.request.model": model} if model else {}
    return {"gen_ai.provider.name": "corral", "gen_ai.operation.name": operation, **named}


def _request_attributes(
    request: Request, first: SequenceRequest, model: str, num_choices: int
) -> dict[str, Any]:
    """The parameters in effect; what is not set is left out."""
    sampling = first.sampling
    attributes: dict[str, Any] = {
        "gen_ai.request.model": request.model or model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": first.request_id,
        "gen_ai.request.max_tokens": first.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": first.seed,
        "gen_ai.output.type": "json" if _is_json(request) else "text",
        "corral.priority": first.priority,
    }
    if first.stop:
        attributes["gen_ai.request.stop_sequences"] = list(first.stop)
    if num_choices > 1:
        attributes["gen_ai.request.choice.count"] = num_choices
    return attributes


def _is_json(request: Request) -> bool:
    kind = request.options.constraint.WhichOneof("form") or ""
    return kind.startswith("json")
