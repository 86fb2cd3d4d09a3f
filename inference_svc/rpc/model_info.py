"""Converts models, adapters and limits to protos, and limits of requests back."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import model_pb2 as model_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.engine_client.adapter_registry import Adapter, AdapterState
from inference_svc.engine_client.messages import LoadPhase, ModelReady
from inference_svc.model_pool.catalog import ModelEntry, ModelProcessor, ResolvedModel
from inference_svc.model_pool.eviction import ModelState
from inference_svc.models.device_memory import DeviceBytes
from inference_svc.models.memory_plan import Layout, RequestedLimits
from inference_svc.models.metadata import ModelClass
from inference_svc.models.placement import LoadPolicy
from inference_svc.rpc.sampling_params import from_sampling
from inference_svc.rpc.validation import check_range
from svc_kit.errors import InvalidField, UnsupportedField

_LIMITS: Mapping[Any, tuple[int, int]] = {
    "slots": (1, 256),
    "context_tokens": (256, 2**24),
    "batch_tokens": (32, 65536),
    "threads": (1, 1024),
}
LAYOUTS: Mapping[Layout, model_pb.KvLayout] = {
    Layout.AUTO: model_pb.KV_LAYOUT_UNSPECIFIED,
    Layout.STREAMS: model_pb.KV_LAYOUT_STREAMS,
    Layout.UNIFIED: model_pb.KV_LAYOUT_UNIFIED,
}


def to_limits(request: model_pb.ModelLimits, defaults: RequestedLimits) -> RequestedLimits:
    """Override `defaults` with the set limits of a request.

    Raises `OutOfRange`, `InvalidField`, or `UnsupportedField` for `kv_bytes`, which follows from
    the others.
    """
    if request.HasField("kv_bytes"):
        raise UnsupportedField(field="limits.kv_bytes")
    changes: dict[str, Any] = {}
    for name, (minimum, maximum) in _LIMITS.items():
        if request.HasField(name):
            value = getattr(request, name)
            check_range(f"limits.{name}", value, minimum, maximum)
            changes[name] = value
    if request.layout:
        changes["layout"] = _layout(request.layout)
    return replace(defaults, **changes)


def _layout(request: int) -> Layout:
    for layout, number in LAYOUTS.items():
        if request == number:
            return layout
    raise InvalidField(field="limits.layout", problem=f"unknown layout {request}")


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


def model(resolved: ResolvedModel) -> model_pb.Model:
    """Describe a model, or an adapter as a model of its own."""
    described = _model(resolved.model)
    if resolved.adapter is not None:
        for field in ("description", "load_time", "aliases"):  # may be empty for the adapter
            described.ClearField(field)
        described.MergeFrom(_adapted(resolved.adapter, resolved.model))
    return described


def _adapted(found: Adapter, base: ModelEntry) -> model_pb.Model:
    """The fields in which an adapter differs from its base model."""
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
    """Describe an adapter generation for operators."""
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


def _model(entry: ModelEntry) -> model_pb.Model:
    file, resident, engine = entry.file, entry.resident, entry.engine
    memory = engine.memory if engine is not None else DeviceBytes()
    described = model_pb.Model(
        name=entry.name,
        aliases=entry.aliases,
        state=_STATES[entry.state],
        problem=resident.problem,
        model_class=_CLASSES[file.model_class],
        architecture=file.architecture,
        digest=entry.digest,
        description=file.title,
        size_bytes=file.size_bytes,
        num_parameters=file.num_parameters,
        vocabulary_size=file.vocabulary_size,
        embedding_size=file.embedding_size,
        trained_context_tokens=file.trained_context_tokens,
        requested_limits=_requested(entry.requested),
        load_time=_timestamp(entry.ready_at if engine is not None else None),
        memory_bytes=memory.total,
        device_memory_bytes=memory.devices,
        num_uses=resident.num_uses,
        load_policy=_POLICIES[entry.policy],
        pinned=resident.is_pinned,
    )
    if entry.progress is not None:
        described.load_progress.CopyFrom(
            model_pb.LoadProgress(
                phase=_PHASES[entry.progress.phase], fraction=entry.progress.fraction
            )
        )
    if entry.processor is not None:
        _describe_processor(described, entry.processor)
    if engine is not None and engine.ready is not None:
        _describe_engine(described, entry, engine.ready)
    return described


def _requested(limits: RequestedLimits) -> model_pb.ModelLimits:
    return model_pb.ModelLimits(
        slots=limits.slots,
        context_tokens=limits.context_tokens,
        batch_tokens=limits.batch_tokens,
        threads=limits.threads,
        layout=LAYOUTS[limits.layout],
    )


def _describe_processor(described: model_pb.Model, processor: ModelProcessor) -> None:
    described.default_sampling.CopyFrom(from_sampling(processor.default_sampling))
    described.chat_template = processor.template.source
    described.chat_template_source = processor.template.origin
    described.end_token_ids.extend(sorted(processor.vocabulary.end_tokens))
    described.turn_format.CopyFrom(
        model_pb.TurnFormat(
            tool_calls=processor.turn_format.tool_calls,
            reasoning=processor.turn_format.reasoning,
            starts_in_reasoning=processor.turn_format.starts_in_reasoning,
        )
    )


def _describe_engine(described: model_pb.Model, entry: ModelEntry, ready: ModelReady) -> None:
    described.resolved_limits.CopyFrom(
        model_pb.ModelLimits(
            slots=ready.slots,
            context_tokens=ready.slot_tokens,
            batch_tokens=ready.batch_tokens,
            kv_bytes=ready.num_cells * entry.file.kv_bytes_per_token,
            threads=ready.warm_up.threads,
            layout=LAYOUTS[ready.layout],
        )
    )
    described.pooling = ready.pooling
