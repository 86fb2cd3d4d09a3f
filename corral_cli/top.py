"""`corral top`: the load of a running inference service, live."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click
import grpc.aio
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2, load_pb2, model_pb2
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.protobuf.duration_pb2 import Duration

from corral_cli.connection import (
    CALL_TIMEOUT_S,
    INFERENCE_TARGET,
    Connection,
    api_key_option,
    list_all,
    target_option,
)
from corral_cli.models import format_state
from corral_cli.tables import format_table

_MODELS: Final = ("MODEL", "STATE", "RUNNING", "WAITING", "KV", "OUT/S", "PROMPT/S", "REUSED")
_REQUESTS: Final = ("REQUEST", "PROJECT", "MODEL", "PRIORITY", "STATE", "AGE", "PROMPT", "OUT")
_SHOWN_REQUESTS: Final = 20
_CLEAR: Final = "\x1b[H\x1b[2J"


@dataclass(frozen=True)
class Sample:
    """What the service reported at `taken_s` on the monotonic clock."""

    taken_s: float
    load: load_pb2.Load
    models: Sequence[model_pb2.Model]
    requests: Sequence[load_pb2.LiveRequest]


@click.command("top")
@target_option(INFERENCE_TARGET)
@api_key_option()
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 60), default=1.0,
              show_default=True, help="Seconds between samples.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one sample, after an interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print an object in a line a sample.")
def top(target: str, api_key: str | None, interval_s: float, once: bool, as_json: bool) -> None:
    """Show slots, queues, KV cache and tokens per second of each model, and live requests.

    Needs a key with the scope admin, if the server requires one. Ctrl-C ends it.
    """
    clears = sys.stdout.isatty() and not (once or as_json)

    async def show(channel: grpc.aio.Channel) -> None:
        previous: Sample | None = None
        async for sample in samples(channel, interval_s):
            if previous is not None:
                found = report(previous, sample)
                text = json.dumps(found) if as_json else "\n".join(lines(found, target))
                click.echo(_CLEAR + text if clears else text)
                if once:
                    return
            previous = sample

    try:
        Connection(target, api_key).run(show)
    except KeyboardInterrupt:
        click.echo()


async def samples(channel: grpc.aio.Channel, interval_s: float) -> AsyncIterator[Sample]:
    """Yield a sample at each interval, the first at once."""
    engine, inference = EngineServiceStub(channel), InferenceServiceStub(channel)
    while True:
        started_s = time.monotonic()
        load = (await engine.GetLoad(engine_pb.GetLoadRequest(), timeout=CALL_TIMEOUT_S)).load
        list_models, list_requests = (
            inference_pb.ListModelsRequest(),
            engine_pb.ListRequestsRequest(),
        )
        yield Sample(
            started_s,
            load,
            [each async for each in list_all(inference.ListModels, list_models, "models")],
            [each async for each in list_all(engine.ListRequests, list_requests, "requests")],
        )
        await asyncio.sleep(max(0.0, started_s + interval_s - time.monotonic()))


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
