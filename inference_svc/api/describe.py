"""What models, loads and requests look like on the wire."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import cast

from corral.inference.v1 import adapter_pb2, generation_pb2
from corral.inference.v1 import load_pb2 as load_pb
from corral.inference.v1 import model_pb2 as model_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.api.convert import from_sampling
from inference_svc.api.streams import seconds
from inference_svc.catalog import Named, ServedModel
from inference_svc.engine.events import ModelLoad
from inference_svc.engine.step_times import BOUNDS_S
from inference_svc.models.description import ModelClass
from inference_svc.runtime.adapters import Adapter, AdapterState
from inference_svc.runtime.embedding_jobs import EmbeddingJobs
from inference_svc.runtime.load import embedding_load, queues
from inference_svc.runtime.worker import EngineWorker, Live

_CLASSES = {
    ModelClass.DECODER: model_pb.MODEL_CLASS_DECODER,
    ModelClass.ENCODER: model_pb.MODEL_CLASS_ENCODER,
    ModelClass.ENCODER_DECODER: model_pb.MODEL_CLASS_ENCODER_DECODER,
    ModelClass.RERANKER: model_pb.MODEL_CLASS_RERANKER,
}
_ADAPTER_STATES = {
    AdapterState.LOADING: adapter_pb2.Adapter.STATE_LOADING,
    AdapterState.READY: adapter_pb2.Adapter.STATE_READY,
    AdapterState.DRAINING: adapter_pb2.Adapter.STATE_DRAINING,
    AdapterState.FAILED: adapter_pb2.Adapter.STATE_FAILED,
}
_MODEL_STATES = {
    AdapterState.LOADING: model_pb.Model.STATE_LOADING,
    AdapterState.READY: model_pb.Model.STATE_READY,
    AdapterState.FAILED: model_pb.Model.STATE_FAILED,
}


def model(named: Named, *, is_up: bool) -> model_pb.Model:
    """A name as callers see it, an adapter's like a model's of its own; `is_up` says whether the
    engine answers now."""
    described = _model(named.model, is_up=is_up)
    if named.adapter is not None:
        for field in ("description", "load_time"):  # the adapter's may be empty
            described.ClearField(field)
        described.MergeFrom(_adapted(named.adapter, is_up=is_up))
    return described


def _adapted(found: Adapter, *, is_up: bool) -> model_pb.Model:
    """What an adapter has of its own; the rest is its model's."""
    return model_pb.Model(
        name=found.name,
        parent=found.model,
        state=_MODEL_STATES[found.state] if is_up else model_pb.Model.STATE_LOADING,
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
    )


def _timestamp(at: datetime | None) -> Timestamp | None:
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def _model(served: ServedModel, *, is_up: bool) -> model_pb.Model:
    file, ready = served.file, served.ready
    return model_pb.Model(
        name=served.name,
        state=model_pb.Model.STATE_READY if is_up else model_pb.Model.STATE_LOADING,
        model_class=_CLASSES[file.model_class],
        architecture=file.architecture,
        digest=served.digest,
        description=file.title,
        size_bytes=file.size_bytes,
        num_parameters=file.num_parameters,
        vocabulary_size=file.vocabulary_size,
        embedding_size=file.embedding_size,
        trained_context_tokens=file.trained_context_tokens,
        requested_limits=model_pb.ModelLimits(
            slots=served.requested.slots,
            context_tokens=served.requested.context_tokens,
            threads=served.requested_threads,
        ),
        resolved_limits=model_pb.ModelLimits(
            slots=ready.slots,
            context_tokens=ready.slot_tokens,
            batch_tokens=ready.batch_tokens,
            kv_bytes=ready.slots * ready.slot_tokens * file.kv_bytes_per_token,
            threads=ready.warm_up.threads,
        ),
        default_sampling=from_sampling(served.default_sampling),
        chat_template=served.template.source,
        chat_template_source=served.template.origin,
        end_token_ids=sorted(served.vocabulary.end_tokens),
        load_time=_timestamp(served.ready_at),
        pooling=ready.pooling,
        turn_format=model_pb.TurnFormat(
            tool_calls=served.turn_format.tool_calls,
            reasoning=served.turn_format.reasoning,
            starts_in_reasoning=served.turn_format.starts_in_reasoning,
        ),
    )


def load(worker: EngineWorker) -> load_pb.Load:
    """How busy the engine is, summed over its models."""
    reports = worker.loads.values()
    live = list(worker.live.values())
    return load_pb.Load(
        num_slots=sum(ready.slots for ready in worker.models.values()),
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
        num_cells=sum(ready.slots * ready.slot_tokens for ready in worker.models.values()),
        num_used_cells=sum(report.num_used_cells for report in reports),
        num_idle_cells=sum(report.num_idle_cells for report in reports),
        num_steps=sum(report.num_steps for report in reports),
        prompt_tokens_total=sum(report.prompt_tokens for report in reports),
        cached_tokens_total=sum(report.cached_tokens for report in reports),
        completion_tokens_total=sum(report.output_tokens for report in reports),
        step_times=[
            load_pb.StepTime(num_rows=rows, duration=seconds(time_s))
            for ready in worker.models.values()
            for rows, time_s in sorted(ready.warm_up.step_times.items())
        ],
        num_snapshots=sum(report.num_snapshots for report in reports),
        snapshot_bytes=sum(report.snapshot_bytes for report in reports),
        draining=worker.is_draining,
        num_snapshot_files=worker.snapshots.use.num_files,
        snapshot_file_bytes=worker.snapshots.use.num_bytes,
        num_adapters=worker.adapters.num_loaded,
        adapter_bytes=worker.adapters.num_bytes,
        num_followers=sum(report.num_followers for report in reports),
        num_preempted=sum(report.num_preempted for report in reports),
        preemptions_total=sum(report.num_preemptions for report in reports),
        embedding=_embedding(worker.embeddings),
        draft_tokens_total=sum(report.draft_tokens for report in reports),
        accepted_draft_tokens_total=sum(report.accepted_draft_tokens for report in reports),
        step_histograms=[steps for report in reports for steps in _step_histograms(report)],
    )


def _embedding(jobs: EmbeddingJobs) -> load_pb.EmbeddingLoad:
    left = embedding_load(jobs.live.values())
    return load_pb.EmbeddingLoad(
        num_requests=left.requests,
        num_inputs=left.inputs,
        num_tokens=left.tokens,
        oldest=seconds(left.oldest_s),
        inputs_total=jobs.num_inputs_done,
        tokens_total=jobs.num_tokens_done,
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


def live_requests(worker: EngineWorker, *, project: str | None) -> list[load_pb.LiveRequest]:
    """What waits and runs, oldest first; of one project where one is given."""
    requests: dict[str, load_pb.LiveRequest] = {}
    now = time.monotonic()
    for item in worker.live.values():
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
