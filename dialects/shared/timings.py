"""Timings of a call, under llama-server's names."""

from corral.inference.v1 import generation_pb2
from google.protobuf.duration_pb2 import Duration

_CACHE_SOURCES = {
    generation_pb2.CACHE_SOURCE_SLOT: "slot",
    generation_pb2.CACHE_SOURCE_LIVE: "live",
    generation_pb2.CACHE_SOURCE_MEMORY: "memory",
    generation_pb2.CACHE_SOURCE_DISK: "disk",
}


def timings_object(done: generation_pb2.Done) -> dict[str, object]:
    """Timings of one call, of its first choice, in milliseconds. The names `*_n`, `*_ms` and
    `*_per_second` are llama-server's."""
    timings, usage = done.timings, done.usage
    computed = usage.prompt_tokens - usage.cached_tokens
    prefill_ms = _milliseconds(timings.prefill)
    return {
        "cache_n": usage.cached_tokens,
        "cache_source": _CACHE_SOURCES.get(usage.cache_source),
        "prompt_n": computed,
        "prompt_ms": prefill_ms,
        "prompt_per_second": computed / prefill_ms * 1e3 if prefill_ms else None,
        "predicted_n": timings.completion_tokens,
        "predicted_ms": _milliseconds(timings.decode),
        "predicted_per_token_ms": _milliseconds(timings.between_tokens),
        "predicted_per_second": timings.tokens_per_second,
        "draft_n": usage.draft_tokens,
        "draft_n_accepted": usage.accepted_draft_tokens,
        "queue_ms": _milliseconds(timings.queue),
        "first_token_ms": _milliseconds(timings.first_token),
    }


def _milliseconds(duration: Duration) -> float:
    return duration.seconds * 1e3 + duration.nanos / 1e6
