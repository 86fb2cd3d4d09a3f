"""Converts load and live requests to protos."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from corral.inference.v1 import generation_pb2
from corral.inference.v1 import load_pb2 as load_pb

from inference_svc.engine.cost_model.step_clock import BOUNDS_S
from inference_svc.engine.events import ModelLoad, TierLoad
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.embedding_requests import EmbeddingTracker, PendingEmbedding
from inference_svc.engine_client.load import disk_cache_load, embedding_load, queue_loads, sum_tiers
from inference_svc.engine_client.messages import ModelReady
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.model_pool.pool import ModelPool
from inference_svc.rpc.streaming import seconds
from svc_kit.rpc.message_mapper import MessageMapper

_TIER: Final = MessageMapper(
    TierLoad,
    load_pb.PrefixTier,
    renamed={f"num_{name}": f"{name}_total" for name in ("hits", "misses", "written", "evicted")},
)


def load(pool: ModelPool) -> load_pb.Load:
    """Return the load of all engines together."""
    engines = pool.catalog.engines
    reports = [engine.report for engine in engines if engine.report is not None]
    models = [engine.ready for engine in engines if engine.ready is not None]
    live = [item for engine in engines for item in engine.sequences.live.values()]
    saved = sum_tiers(report.saved for report in reports)
    return load_pb.Load(
        num_slots=sum(ready.slots for ready in models),
        num_running=sum(not item.is_waiting for item in live),
        queues=[
            load_pb.QueueLoad(
                priority=_priority(queue.priority),
                num_requests=queue.requests,
                num_tokens=queue.tokens,
                oldest=seconds(queue.oldest_s),
            )
            for queue in queue_loads(live)
        ],
        num_cells=sum(ready.num_cells for ready in models),
        num_used_cells=sum(report.num_used_cells for report in reports),
        num_idle_cells=sum(report.num_idle_cells for report in reports),
        num_steps=sum(report.num_steps for report in reports),
        prompt_tokens_total=sum(report.prompt_tokens for report in reports),
        cached_tokens_total=sum(report.cached_tokens for report in reports),
        completion_tokens_total=sum(report.output_tokens for report in reports),
        step_times=[
            load_pb.StepTime(num_rows=rows, duration=seconds(time_s))
            for ready in models
            for rows, time_s in sorted(ready.warm_up.step_times.items())
        ],
        num_snapshots=saved.num_entries,
        snapshot_bytes=saved.num_bytes,
        draining=pool.is_draining,
        num_snapshot_files=max((engine.snapshots.use.num_files for engine in engines), default=0),
        snapshot_file_bytes=max((engine.snapshots.use.num_bytes for engine in engines), default=0),
        num_adapters=sum(engine.adapters.num_loaded for engine in engines),
        adapter_bytes=sum(engine.adapters.num_bytes for engine in engines),
        num_followers=sum(report.num_followers for report in reports),
        num_preempted=sum(report.num_preempted for report in reports),
        preemptions_total=sum(report.num_preemptions for report in reports),
        moves_total=sum(report.num_moves for report in reports),
        embedding=_embedding([engine.embeddings for engine in engines]),
        draft_tokens_total=sum(report.draft_tokens for report in reports),
        accepted_draft_tokens_total=sum(report.accepted_draft_tokens for report in reports),
        draft_model_tokens_total=sum(report.by_draft_model.drafted for report in reports),
        accepted_draft_model_tokens_total=sum(report.by_draft_model.accepted for report in reports),
        step_histograms=[steps for report in reports for steps in _step_histograms(report)],
        saved_prefixes=_TIER.to_message(saved),
        archive=_TIER.to_message(
            disk_cache_load([each.disk_cache for each in engines if each.disk_cache is not None])
        ),
        models=[
            _model_load(engine, engine.ready)
            for engine in sorted(engines, key=lambda each: each.ready.name if each.ready else "")
            if engine.ready is not None
        ],
    )


def utilization(pool: ModelPool) -> float:
    """The load of the fullest model: sequences by slots, waiting ones included, or the part of the
    KV cache that live sequences use; 0: idle, above 1: requests wait."""
    return max(map(_utilization, pool.catalog.engines), default=0.0)


def _utilization(engine: EngineClient) -> float:
    sequences = len(engine.sequences.live) / max(1, engine.sequences.slots)
    embeddings = float(bool(engine.embeddings.live))
    if engine.report is None or engine.ready is None:
        return max(sequences, embeddings)
    num_live = engine.report.num_used_cells - engine.report.num_idle_cells
    return max(sequences, embeddings, num_live / max(1, engine.ready.num_cells))


def _model_load(engine: EngineClient, ready: ModelReady) -> load_pb.ModelLoad:
    report = engine.report or ModelLoad(ready.name)
    live = engine.sequences.live.values()
    num_waiting = sum(item.is_waiting for item in live)
    return load_pb.ModelLoad(
        model=ready.name,
        num_slots=ready.slots,
        num_running=len(live) - num_waiting,
        num_waiting=num_waiting,
        num_cells=ready.num_cells,
        num_used_cells=report.num_used_cells,
        prompt_tokens_total=report.prompt_tokens,
        cached_tokens_total=report.cached_tokens,
        completion_tokens_total=report.output_tokens,
    )


def _embedding(trackers: Sequence[EmbeddingTracker]) -> load_pb.EmbeddingLoad:
    pending = embedding_load(item for tracker in trackers for item in tracker.live.values())
    return load_pb.EmbeddingLoad(
        num_requests=pending.requests,
        num_inputs=pending.inputs,
        num_tokens=pending.tokens,
        oldest=seconds(pending.oldest_s),
        inputs_total=sum(tracker.num_inputs_done for tracker in trackers),
        tokens_total=sum(tracker.num_tokens_done for tracker in trackers),
    )


def _step_histograms(report: ModelLoad) -> Iterator[load_pb.StepHistogram]:
    for steps in report.step_times:
        yield load_pb.StepHistogram(
            model=report.model,
            max_rows=steps.max_rows,
            has_prompt=steps.has_prompt,
            bounds=map(seconds, BOUNDS_S),
            counts=steps.counts,
            sum=seconds(steps.sum_s),
        )


LiveRequests = dict[tuple[float, str], load_pb.LiveRequest]
"""Requests by time of arrival (monotonic) and id."""


def live_requests(engines: Iterable[EngineClient], *, project: str | None) -> LiveRequests:
    """Return waiting and running requests, only those of `project` if given."""
    requests: LiveRequests = {}
    now = time.monotonic()
    for engine in engines:
        requests |= _live_sequences(engine, project, now) | _live_embeddings(engine, project, now)
    return requests


def _live_sequences(engine: EngineClient, project: str | None, now: float) -> LiveRequests:
    requests: LiveRequests = {}
    keys: dict[str, tuple[float, str]] = {}
    computed = dict(engine.report.prefills) if engine.report is not None else {}
    for item in engine.sequences.live.values():
        request = item.request
        if project not in (None, request.project):
            continue
        key = keys.setdefault(request.request_id, (item.arrived_at, request.request_id))
        if key not in requests:
            requests[key] = _live_request(item, request.num_prompt_tokens, now)
            requests[key].label = item.label
            _add_reuse(requests[key], item)
        choice = _choice(item)
        if choice.state == load_pb.LiveRequest.STATE_PREFILL and request.sequence_id in computed:
            choice.computed_tokens = computed[request.sequence_id]
        requests[key].choices.append(choice)
    return requests


def _live_embeddings(engine: EngineClient, project: str | None, now: float) -> LiveRequests:
    return {
        (item.arrived_at, item.request.request_id): _live_request(
            item, item.request.num_tokens, now
        )
        for item in engine.embeddings.live.values()
        if project in (None, item.request.project)
    }


def _add_reuse(live: load_pb.LiveRequest, item: ActiveSequence) -> None:
    if item.num_cached is not None:
        live.cached_tokens = item.num_cached
    if (found := item.stream.divergence) is not None:
        live.divergence.token_index = found.token_index
        live.divergence.lost_tokens = found.num_lost
        live.divergence.field = found.field


def _live_request(
    item: ActiveSequence | PendingEmbedding, prompt_tokens: int, now: float
) -> load_pb.LiveRequest:
    return load_pb.LiveRequest(
        request_id=item.request.request_id,
        project=item.request.project,
        model=item.request.model,
        priority=_priority(item.request.priority),
        age=seconds(now - item.arrived_at),
        prompt_tokens=prompt_tokens,
    )


def _priority(value: int) -> generation_pb2.Priority:
    return cast(generation_pb2.Priority, value)  # enums are plain integers at run time


def _choice(item: ActiveSequence) -> load_pb.LiveChoice:
    if item.is_waiting:
        state = load_pb.LiveRequest.STATE_QUEUED
    elif item.stream.is_paused:
        state = load_pb.LiveRequest.STATE_PAUSED
    elif item.num_output:
        state = load_pb.LiveRequest.STATE_DECODE
    else:
        state = load_pb.LiveRequest.STATE_PREFILL
    return load_pb.LiveChoice(
        index=item.request.choice,
        state=state,
        slot=item.slot,
        completion_tokens=item.num_output,
    )
