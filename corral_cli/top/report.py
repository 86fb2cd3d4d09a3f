"""The reports of `corral top`: rates between two samples, as an object and as a screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from corral.inference.v1 import generation_pb2, load_pb2, model_pb2
from google.protobuf.duration_pb2 import Duration

from corral_cli.models import format_state
from corral_cli.output import format_table

_MODELS: Final = ("MODEL", "STATE", "RUNNING", "WAITING", "KV", "OUT/S", "PROMPT/S", "REUSED")
_REQUESTS: Final = ("REQUEST", "PROJECT", "MODEL", "PRIORITY", "STATE", "AGE", "PROMPT", "OUT")
_SHOWN_REQUESTS: Final = 20


@dataclass(frozen=True)
class Sample:
    """What the service reported at `taken_s` on the monotonic clock."""

    taken_s: float
    load: load_pb2.Load
    models: Sequence[model_pb2.Model]
    requests: Sequence[load_pb2.LiveRequest]


def report(previous: Sample, sample: Sample) -> dict[str, Any]:
    """The sample as a JSON object, with rates since the previous one."""
    load, elapsed_s = sample.load, sample.taken_s - previous.taken_s
    before = {each.model: each for each in previous.load.models}
    loads = {each.model: each for each in load.models}
    states = {each.name: format_state(each) for each in sample.models}
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "draining": load.draining,
        "slots": load.num_slots,
        "running": load.num_running,
        "waiting": sum(queue.num_requests for queue in load.queues),
        "oldest_wait_s": max((_seconds(queue.oldest) for queue in load.queues), default=0.0),
        "embedding_inputs": load.embedding.num_inputs,
        "models": [
            {"model": name, "state": states.get(name, "ready")}
            | (_model(loads[name], before.get(name), elapsed_s) if name in loads else {})
            for name in sorted(states.keys() | loads.keys())
        ],
        "requests": [_request(each) for each in sample.requests],
    }


def _model(
    load: load_pb2.ModelLoad, before: load_pb2.ModelLoad | None, elapsed_s: float
) -> dict[str, Any]:
    start = before or load

    def rate(field: str) -> float:
        # A model that was loaded again counts from 0.
        count: int = getattr(load, field) - getattr(start, field)
        return round(max(0, count) / elapsed_s, 1)

    computed, reused = rate("prompt_tokens_total"), rate("cached_tokens_total")
    return {
        "slots": load.num_slots,
        "running": load.num_running,
        "waiting": load.num_waiting,
        "kv_tokens": load.num_cells,
        "kv_used_tokens": load.num_used_cells,
        "output_tokens_per_s": rate("completion_tokens_total"),
        "prompt_tokens_per_s": computed,
        "reused_tokens_per_s": reused,
    }


def _request(request: load_pb2.LiveRequest) -> dict[str, Any]:
    states = {choice.state for choice in request.choices}
    latest = max(states, default=load_pb2.LiveRequest.STATE_QUEUED)
    return {
        "request_id": request.request_id,
        "project": request.project,
        "model": request.model,
        "priority": _lower(generation_pb2.Priority.Name(request.priority), "PRIORITY_"),
        "state": _lower(load_pb2.LiveRequest.State.Name(latest), "STATE_"),
        "age_s": round(_seconds(request.age), 1),
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": sum(choice.completion_tokens for choice in request.choices),
    }


def _lower(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def lines(found: dict[str, Any], target: str) -> list[str]:
    """Format a report as a screen."""
    head = (
        f"{target}  {found['time'][11:19]} UTC  running {found['running']}/{found['slots']}"
        f"  waiting {found['waiting']} (oldest {found['oldest_wait_s']:.1f} s)"
        f"  embeddings {found['embedding_inputs']}{'  DRAINING' if found['draining'] else ''}"
    )
    requests = found["requests"]
    rest = len(requests) - _SHOWN_REQUESTS
    return [
        head,
        "",
        *format_table(_MODELS, map(_model_row, found["models"]), num_text_columns=2),
        "",
        *format_table(_REQUESTS, map(_request_row, requests[:_SHOWN_REQUESTS]), num_text_columns=5),
        *([f"and {rest} more"] if rest > 0 else []),
    ]


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    if "slots" not in model:
        return (model["model"], model["state"], *[""] * (len(_MODELS) - 2))
    total, prompt = model["kv_tokens"], model["prompt_tokens_per_s"] + model["reused_tokens_per_s"]
    used = f"{model['kv_used_tokens'] / total:.0%} of {total:,}" if total else ""
    return (
        model["model"],
        model["state"],
        f"{model['running']}/{model['slots']}",
        str(model["waiting"]),
        used,
        f"{model['output_tokens_per_s']:,.1f}",
        f"{model['prompt_tokens_per_s']:,.1f}",
        f"{model['reused_tokens_per_s'] / prompt:.0%}" if prompt else "",
    )


def _request_row(request: dict[str, Any]) -> tuple[str, ...]:
    return (
        request["request_id"],
        request["project"],
        request["model"],
        request["priority"],
        request["state"],
        f"{request['age_s']:.1f} s",
        f"{request['prompt_tokens']:,}",
        f"{request['output_tokens']:,}",
    )
