"""Timings of a call, under llama-server's names."""

from typing import Annotated, Literal

from corral.inference.v1 import generation_pb2
from google.protobuf.duration_pb2 import Duration
from typing_extensions import TypedDict

from dialects.shared.wire import From, writer

_CACHE_SOURCES = {
    generation_pb2.CACHE_SOURCE_SLOT: "slot",
    generation_pb2.CACHE_SOURCE_LIVE: "live",
    generation_pb2.CACHE_SOURCE_MEMORY: "memory",
    generation_pb2.CACHE_SOURCE_DISK: "disk",
}


def _milliseconds(path: str) -> From:
    return From(path, _to_milliseconds)


def _to_milliseconds(duration: Duration) -> float:
    return duration.seconds * 1e3 + duration.nanos / 1e6


def _num_computed(done: generation_pb2.Done) -> int:
    return done.usage.prompt_tokens - done.usage.cached_tokens


def _prompt_rate(done: generation_pb2.Done) -> float | None:
    prefill_ms = _to_milliseconds(done.timings.prefill)
    return _num_computed(done) / prefill_ms * 1e3 if prefill_ms else None


class Timings(TypedDict):
    """Timings of one call, of its first choice, in milliseconds. The names `*_n`, `*_ms` and
    `*_per_second` are llama-server's."""

    cache_n: Annotated[int, From("usage.cached_tokens")]
    cache_source: Annotated[
        Literal["slot", "live", "memory", "disk"] | None,
        From("usage.cache_source", _CACHE_SOURCES.get),
    ]
    prompt_n: Annotated[int, From(".", _num_computed)]
    prompt_ms: Annotated[float, _milliseconds("timings.prefill")]
    prompt_per_second: Annotated[float | None, From(".", _prompt_rate)]
    predicted_n: Annotated[int, From("timings.completion_tokens")]
    predicted_ms: Annotated[float, _milliseconds("timings.decode")]
    predicted_per_token_ms: Annotated[float, _milliseconds("timings.between_tokens")]
    predicted_per_second: Annotated[float, From("timings.tokens_per_second")]
    draft_n: Annotated[int, From("usage.draft_tokens")]
    draft_n_accepted: Annotated[int, From("usage.accepted_draft_tokens")]
    queue_ms: Annotated[float, _milliseconds("timings.queue")]
    first_token_ms: Annotated[float, _milliseconds("timings.first_token")]


timings_object = writer(generation_pb2.Done, Timings)
