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
_REQUESTS: Final = (
    *("REQUEST", "PROJECT", "MODEL", "PRIORITY", "STATE", "DIVERGES IN"),
    *("AGE", "PROMPT", "REUSED", "OUT"),
)
_REPLICAS: Final = ("REPLICA", "RUNNING", "WAITING", "KV")
_SHOWN_REQUESTS: Final = 20


@dataclass(frozen=True)
class Sample:
    """What the service reported at `taken_s` on the monotonic clock."""

    taken_s: float
    load: load_pb2.Load
    models: Sequence[model_pb2.Model]
    requests: Sequence[load_pb2.LiveRequest]
    replicas: Sequence[load_pb2.ReplicaLoad] = ()
    """Of several services that were asked; empty: one was."""


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
        "replicas": [_replica(each) for each in sample.replicas],
        "requests": [_request(each) for each in sample.requests],
    }


def _replica(replica: load_pb2.ReplicaLoad) -> dict[str, Any]:
    load = replica.load
    return {
        "replica": replica.replica,
        "slots": load.num_slots,
        "running": load.num_running,
        "waiting": sum(queue.num_requests for queue in load.queues),
        "kv_tokens": load.num_cells,
        "kv_used_tokens": load.num_used_cells,
        "draining": load.draining,
        "problem": replica.problem,
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
    computed = [
        each.computed_tokens for each in request.choices if each.HasField("computed_tokens")
    ]
    return {
        "request_id": request.request_id,
        "project": request.project,
        "model": request.model,
        "priority": _lower(generation_pb2.Priority.Name(request.priority), "PRIORITY_"),
        "state": _lower(load_pb2.LiveRequest.State.Name(latest), "STATE_"),
        "computed_tokens": max(computed) if computed else None,
        "age_s": round(_seconds(request.age), 1),
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens if request.HasField("cached_tokens") else None,
        "divergence": _divergence(request.divergence) if request.HasField("divergence") else None,
        "replica": request.replica,
        "output_tokens": sum(choice.completion_tokens for choice in request.choices),
    }


def _divergence(divergence: generation_pb2.CacheDivergence) -> dict[str, Any]:
    return {
        "token_index": divergence.token_index,
        "lost_tokens": divergence.lost_tokens,
        "field": divergence.field,
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
        *_replica_lines(found["replicas"]),
        *format_table(_REQUESTS, map(_request_row, requests[:_SHOWN_REQUESTS]), num_text_columns=6),
        *([f"and {rest} more"] if rest > 0 else []),
    ]


def _replica_lines(replicas: Sequence[dict[str, Any]]) -> list[str]:
    if not replicas:
        return []
    return [*format_table(_REPLICAS, map(_replica_row, replicas), num_text_columns=1), ""]


def _replica_row(replica: dict[str, Any]) -> tuple[str, ...]:
    state = replica["problem"] or ("draining" if replica["draining"] else "")
    return (
        f"{replica['replica']}  {state}".rstrip(),
        f"{replica['running']}/{replica['slots']}",
        str(replica["waiting"]),
        _format_kv(replica),
    )


def _format_kv(load: dict[str, Any]) -> str:
    total = load["kv_tokens"]
    return f"{load['kv_used_tokens'] / total:.0%} of {total:,}" if total else ""


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    if "slots" not in model:
        return (model["model"], model["state"], *[""] * (len(_MODELS) - 2))
    prompt = model["prompt_tokens_per_s"] + model["reused_tokens_per_s"]
    return (
        model["model"],
        model["state"],
        f"{model['running']}/{model['slots']}",
        str(model["waiting"]),
        _format_kv(model),
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
        _format_state(request),
        _format_divergence(request["divergence"]),
        f"{request['age_s']:.1f} s",
        f"{request['prompt_tokens']:,}",
        "" if request["cached_tokens"] is None else f"{request['cached_tokens']:,}",
        f"{request['output_tokens']:,}",
    )


def _format_state(request: dict[str, Any]) -> str:
    computed, prompt = request["computed_tokens"], request["prompt_tokens"]
    if request["state"] != "prefill" or computed is None or not prompt:
        return str(request["state"])
    return f"prefill {min(1.0, computed / prompt):.0%}"


def _format_divergence(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return found["field"] or f"token {found['token_index']:,}"
