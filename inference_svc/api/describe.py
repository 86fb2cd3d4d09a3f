"""What models, loads and requests look like on the wire."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import cast

from corral.inference.v1 import adapter_pb2, generation_pb2
from corral.inference.v1 import load_pb2 as load_pb
from corral.inference.v1 import model_pb2 as model_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.api.limits import LAYOUTS
from inference_svc.api.sampling import from_sampling
from inference_svc.api.streams import seconds
from inference_svc.catalog import KnownModel, Named, ServedModel
from inference_svc.engine.events import ModelLoad, TierLoad
from inference_svc.engine.step_times import BOUNDS_S
from inference_svc.models.description import ModelClass
from inference_svc.models.residency import LoadPolicy, ModelState
from inference_svc.models.sizing import RequestedLimits
from inference_svc.pool.pool import ModelPool
from inference_svc.runtime.adapter import Adapter, AdapterState
from inference_svc.runtime.embedding_jobs import EmbeddingJobs
from inference_svc.runtime.load import archive_load, embedding_load, queues, total
from inference_svc.runtime.messages import LoadPhase, ModelReady
from inference_svc.runtime.sequence_jobs import Live
from inference_svc.runtime.worker import EngineWorker

_CLASSES = {
    ModelClass.DECODER: model_pb.MODEL_CLASS_DECODER,
    ModelClass.ENCODER: model_pb.MODEL_CLASS_ENCODER,
    ModelClass.ENCODER_DECODER: model_pb.MODEL_CLASS_ENCODER_DECODER,
    ModelClass.RERANKER: model_pb.MODEL_CLASS_RERANKER,
}


_STATES = {
    ModelState.AVAILABLE: model_pb.Model.STATE_AVAILABLE,
    ModelState.LOADING: model_pb.Model.STATE_LOADING,
    ModelState.READY: model_pb.Model.STATE_READY,
    ModelState.UNLOADING: model_pb.Model.STATE_UNLOADING,
    ModelState.FAILED: model_pb.Model.STATE_FAILED,
}
_ADAPTER_STATES = {
    AdapterState.LOADING: adapter_pb2.Adapter.STATE_LOADING,
    AdapterState.READY: adapter_pb2.Adapter.STATE_READY,
    AdapterState.DRAINING: adapter_pb2.Adapter.STATE_DRAINING,
    AdapterState.FAILED: adapter_pb2.Adapter.STATE_FAILED,
}
_ADAPTED_STATES = {
    AdapterState.LOADING: model_pb.Model.STATE_LOADING,
    AdapterState.READY: model_pb.Model.STATE_READY,
    AdapterState.FAILED: model_pb.Model.STATE_FAILED,
}
_POLICIES = {
    LoadPolicy.START: model_pb.LOAD_POLICY_START,
    LoadPolicy.ON_DEMAND: model_pb.LOAD_POLICY_ON_DEMAND,
    LoadPolicy.MANUAL: model_pb.LOAD_POLICY_MANUAL,
}
_PHASES = {
    LoadPhase.WAITING: model_pb.LoadProgress.PHASE_WAITING,
    LoadPhase.WEIGHTS: model_pb.LoadProgress.PHASE_WEIGHTS,
    LoadPhase.WARM_UP: model_pb.LoadProgress.PHASE_WARM_UP,
}


def model(named: Named) -> model_pb.Model:
    """A name as callers see it, an adapter's like a model's of its own."""
    described = _model(named.model)
    if named.adapter is not None:
        for field in ("description", "load_time", "aliases"):  # the adapter's may be empty
            described.ClearField(field)
        described.MergeFrom(_adapted(named.adapter, named.model))
    return described


def _adapted(found: Adapter, base: KnownModel) -> model_pb.Model:
    """What an adapter has of its own; the rest is its model's."""
    follows = base.state is not ModelState.READY and found.state is not AdapterState.FAILED
    return model_pb.Model(
        name=found.name,
        parent=found.model,
        state=_STATES[base.state] if follows else _ADAPTED_STATES[found.state],
        problem=found.problem,
        digest=found.digest,
        description=found.description.title,
        size_bytes=found.description.size_bytes,
        load_time=_timestamp(found.ready_at),
    )


def adapter(found: Adapter, *, num_running: int) -> adapter_pb2.Adapter:
    """An adapter as operators see it."""
    return adapter_pb2.Adapter(
        name=found.name,
        model=found.model,
        digest=found.digest,
        generation=found.generation,
        state=_ADAPTER_STATES[found.state],
        problem=found.problem,
        default_scale=found.default_scale,
        rank=found.description.rank,
        size_bytes=found.description.size_bytes,
        num_running=num_running,
        load_time=_timestamp(found.ready_at),
        project=found.project,
        standing_scale=found.standing_scale,
    )


def _timestamp(at: datetime | None) -> Timestamp | None:
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def _model(known: KnownModel) -> model_pb.Model:
    file, resident, worker = known.file, known.resident, known.worker
    described = model_pb.Model(
        name=known.name,
        aliases=known.aliases,
        state=_STATES[known.state],
        problem=resident.problem,
        model_class=_CLASSES[file.model_class],
        architecture=file.architecture,
        digest=known.digest,
        description=file.title,
        size_bytes=file.size_bytes,
        num_parameters=file.num_parameters,
        vocabulary_size=file.vocabulary_size,
        embedding_size=file.embedding_size,
        trained_context_tokens=file.trained_context_tokens,
        requested_limits=_requested(known.requested),
        load_time=_timestamp(known.ready_at if worker is not None else None),
        memory_bytes=worker.memory_bytes if worker is not None else 0,
        num_uses=resident.uses,
        load_policy=_POLICIES[known.policy],
        pinned=resident.is_pinned,
    )
    if known.progress is not None:
        described.load_progress.CopyFrom(
            model_pb.LoadProgress(
                phase=_PHASES[known.progress.phase], fraction=known.progress.fraction
            )
        )
    if known.front is not None:
        _describe_front(described, known.front)
    if worker is not None and worker.ready is not None:
        _describe_engine(described, known, worker.ready)
    return described


def _requested(limits: RequestedLimits) -> model_pb.ModelLimits:
    return model_pb.ModelLimits(
        slots=limits.slots,
        context_tokens=limits.context_tokens,
        batch_tokens=limits.batch_tokens,
        threads=limits.threads,
        layout=LAYOUTS[limits.layout],
    )


def _describe_front(described: model_pb.Model, front: ServedModel) -> None:
    described.default_sampling.CopyFrom(from_sampling(front.default_sampling))
    described.chat_template = front.template.source
    described.chat_template_source = front.template.origin
    described.end_token_ids.extend(sorted(front.vocabulary.end_tokens))
    described.turn_format.CopyFrom(
        model_pb.TurnFormat(
            tool_calls=front.turn_format.tool_calls,
            reasoning=front.turn_format.reasoning,
            starts_in_reasoning=front.turn_format.starts_in_reasoning,
        )
    )


def _describe_engine(described: model_pb.Model, known: KnownModel, ready: ModelReady) -> None:
    described.resolved_limits.CopyFrom(
        model_pb.ModelLimits(
            slots=ready.slots,
            context_tokens=ready.slot_tokens,
            batch_tokens=ready.batch_tokens,
            kv_bytes=ready.num_cells * known.file.kv_bytes_per_token,
            threads=ready.warm_up.threads,
            layout=LAYOUTS[ready.layout],
        )
    )
    described.pooling = ready.pooling


def load(pool: ModelPool) -> load_pb.Load:
    """How busy the engines are, summed over the models."""
    workers = pool.catalog.workers
    reports = [worker.report for worker in workers if worker.report is not None]
    models = [worker.ready for worker in workers if worker.ready is not None]
    live = [item for worker in workers for item in worker.sequences.live.values()]
    saved = total(report.saved for report in reports)
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
            for queue in queues(live)
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
        num_snapshot_files=max((worker.snapshots.use.num_files for worker in workers), default=0),
        snapshot_file_bytes=max((worker.snapshots.use.num_bytes for worker in workers), default=0),
        num_adapters=sum(worker.adapters.num_loaded for worker in workers),
        adapter_bytes=sum(worker.adapters.num_bytes for worker in workers),
        num_followers=sum(report.num_followers for report in reports),
        num_preempted=sum(report.num_preempted for report in reports),
        preemptions_total=sum(report.num_preemptions for report in reports),
        moves_total=sum(report.num_moves for report in reports),
        embedding=_embedding([worker.embeddings for worker in workers]),
        draft_tokens_total=sum(report.draft_tokens for report in reports),
        accepted_draft_tokens_total=sum(report.accepted_draft_tokens for report in reports),
        step_histograms=[steps for report in reports for steps in _step_histograms(report)],
        saved_prefixes=_tier(saved),
        archive=_tier(archive_load([each.archive for each in workers if each.archive is not None])),
    )


def _tier(tier: TierLoad) -> load_pb.PrefixTier:
    return load_pb.PrefixTier(
        num_entries=tier.num_entries,
        max_entries=tier.max_entries,
        num_bytes=tier.num_bytes,
        max_bytes=tier.max_bytes,
        hits_total=tier.num_hits,
        misses_total=tier.num_misses,
        written_total=tier.num_written,
        evicted_total=tier.num_evicted,
    )


def _embedding(every: Sequence[EmbeddingJobs]) -> load_pb.EmbeddingLoad:
    left = embedding_load(job for jobs in every for job in jobs.live.values())
    return load_pb.EmbeddingLoad(
        num_requests=left.requests,
        num_inputs=left.inputs,
        num_tokens=left.tokens,
        oldest=seconds(left.oldest_s),
        inputs_total=sum(jobs.num_inputs_done for jobs in every),
        tokens_total=sum(jobs.num_tokens_done for jobs in every),
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


def live_requests(
    workers: Iterable[EngineWorker], *, project: str | None
) -> list[load_pb.LiveRequest]:
    """What waits and runs, oldest first; of one project where one is given."""
    now = time.monotonic()
    requests = [request for worker in workers for request in _live_requests(worker, project, now)]
    return sorted(requests, key=lambda request: -request.age.ToTimedelta())


def _live_requests(
    worker: EngineWorker, project: str | None, now: float
) -> list[load_pb.LiveRequest]:
    requests: dict[str, load_pb.LiveRequest] = {}
    for item in worker.sequences.live.values():
        if project not in (None, item.project):
            continue
        request_id = item.generation.request_id
        request = requests.get(request_id)
        if request is None:
            request = requests[request_id] = load_pb.LiveRequest(
                request_id=request_id,
                label=item.label,
                project=item.project,
                model=item.request.model,
                priority=_priority(item.request.priority),
                age=seconds(now - item.arrived_at),
                prompt_tokens=len(item.request.prompt),
            )
        request.choices.append(_choice(item))
    return [*requests.values(), *_live_embeddings(worker, project, now)]


def _live_embeddings(
    worker: EngineWorker, project: str | None, now: float
) -> Iterator[load_pb.LiveRequest]:
    for job in worker.embeddings.live.values():
        if project in (None, job.request.project):
            yield load_pb.LiveRequest(
                request_id=job.request.request_id,
                project=job.request.project,
                model=job.request.model,
                priority=_priority(job.request.priority),
                age=seconds(now - job.arrived_at),
                prompt_tokens=job.request.num_tokens,
            )


def _priority(value: int) -> generation_pb2.Priority:
    return cast(generation_pb2.Priority, value)  # enums are plain numbers at run time


def _choice(item: Live) -> load_pb.LiveChoice:
    if item.is_waiting:
        state = load_pb.LiveRequest.STATE_QUEUED
    elif item.generation.is_paused:
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
