"""Converts models, adapters and limits to protos, and limits of requests back."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Final

from corral.inference.v1 import adapter_pb2, upstream_pb2
from corral.inference.v1 import model_pb2 as model_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.reasoning_support import ThinkingSupport
from inference_svc.engine_client.adapter_registry import Adapter, AdapterState
from inference_svc.engine_client.messages import LoadProgress, ModelReady
from inference_svc.model_pool.catalog import (
    ModelEntry,
    ModelProcessor,
    PendingModel,
    ResolvedModel,
)
from inference_svc.model_pool.downloads import DownloadProgress
from inference_svc.model_pool.eviction import ModelState
from inference_svc.models.memory_plan import Layout, RequestedLimits
from inference_svc.models.metadata import ModelClass, ModelFile
from inference_svc.models.placement import LoadPolicy
from inference_svc.rpc.streaming import seconds
from inference_svc.sampling_messages import from_sampling
from inference_svc.upstream.endpoint import EndpointState
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import UnsupportedField
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, encode_timestamp

_LAYOUTS: Final = EnumMapper[Layout](Layout, model_pb.KvLayout, zero=Layout.AUTO)
_REQUESTED: Final = MessageMapper(
    RequestedLimits, model_pb.ModelLimits, uses=[_LAYOUTS], only_message=["kv_bytes"]
)


def to_limits(request: model_pb.ModelLimits, defaults: RequestedLimits) -> RequestedLimits:
    """Override `defaults` with the set limits of a request.

    Raises `InvalidField`, or `UnsupportedField` for `kv_bytes`, which follows from
    the others.
    """
    if request.HasField("kv_bytes"):
        raise UnsupportedField(field="limits.kv_bytes")
    return _REQUESTED.from_message(request, "limits", **asdict(defaults))


_CLASSES: Final = EnumMapper[ModelClass](ModelClass, model_pb.ModelClass)
_STATES: Final = EnumMapper[ModelState](
    ModelState, model_pb.Model.State, only_message=["DOWNLOADING", "VERIFYING"]
)
_ADAPTER_STATES: Final = EnumMapper[AdapterState](AdapterState, adapter_pb2.Adapter.State)
_ADAPTED_STATES: Final = EnumMapper[AdapterState](
    AdapterState,
    model_pb.Model.State,
    only_domain=[AdapterState.DRAINING],
    only_message=["AVAILABLE", "UNLOADING", "DOWNLOADING", "VERIFYING"],
)
_POLICIES: Final = EnumMapper[LoadPolicy](LoadPolicy, model_pb.LoadPolicy)
_DOWNLOAD: Final = MessageMapper(
    DownloadProgress, model_pb.DownloadProgress, only_domain=["is_verified"]
)
_PROGRESS: Final = MessageMapper(LoadProgress, model_pb.LoadProgress)
_THINKING: Final = MessageMapper(ThinkingSupport, model_pb.ThinkingSupport)
_TURN_FORMAT: Final = MessageMapper(TurnFormat, model_pb.TurnFormat, only_domain=["answer"])


def model(resolved: ResolvedModel) -> model_pb.Model:
    """Describe a model, or an adapter as a model of its own."""
    described = _model(resolved.model)
    if resolved.adapter is not None:
        # May be empty for the adapter.
        for field in ("description", "load_time", "aliases", "size_bytes"):
            described.ClearField(field)
        described.MergeFrom(_adapted(resolved.adapter, resolved.model))
    return described


def watched_model(watched: ModelEntry | PendingModel) -> model_pb.Model:
    """Describe a model for operators, also one that is pending."""
    if isinstance(watched, ModelEntry):
        return _model(watched)
    state = model_pb.Model.STATE_DOWNLOADING
    if watched.problem:
        state = model_pb.Model.STATE_FAILED
    elif watched.download.is_verified:
        state = model_pb.Model.STATE_VERIFYING
    return model_pb.Model(
        name=watched.name,
        aliases=watched.aliases,
        source=watched.source,
        state=state,
        problem=watched.problem,
        download=_DOWNLOAD.to_message(watched.download),
    )


def _adapted(found: Adapter, base: ModelEntry) -> model_pb.Model:
    """The fields in which an adapter differs from its base model."""
    follows = base.state is not ModelState.READY and found.state is not AdapterState.FAILED
    return model_pb.Model(
        name=found.name,
        parent=found.model,
        state=_STATES.encode(base.state) if follows else _ADAPTED_STATES.encode(found.state),
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
        state=_ADAPTER_STATES.encode(found.state),
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
    return None if at is None else encode_timestamp(at)


def _model(entry: ModelEntry) -> model_pb.Model:
    file, resident, engine = entry.file, entry.resident, entry.engine
    memory = entry.memory
    to_operator = entry.upstream is None or current_principal().has(Scope.ADMIN_READ)
    described = model_pb.Model(
        name=entry.name,
        aliases=entry.aliases,
        state=_STATES.encode(entry.state),
        problem=entry.shown_problem(to_operator=to_operator),
        model_class=_CLASSES.encode(file.model_class),
        architecture=file.architecture,
        digest=entry.digest,
        description=file.title,
        size_bytes=file.size_bytes,
        num_parameters=file.num_parameters,
        vocabulary_size=file.vocabulary_size,
        embedding_size=file.embedding_size,
        trained_context_tokens=file.trained_context_tokens,
        requested_limits=_REQUESTED.to_message(entry.requested),
        load_time=_timestamp(entry.ready_at if engine is not None else None),
        memory_bytes=memory.total,
        device_memory_bytes=memory.devices,
        num_uses=resident.num_uses,
        load_policy=_POLICIES.encode(entry.policy),
        pinned=resident.is_pinned,
        input_modalities=_modalities(file),
        quantization=file.quantization,
        source=entry.source,
        draft_model="" if file.draft is None else file.draft.name,
        idle_ttl=None if resident.idle_ttl_s is None else seconds(resident.idle_ttl_s),
    )
    if entry.progress is not None:
        described.load_progress.CopyFrom(_PROGRESS.to_message(entry.progress))
    if entry.processor is not None:
        described.default_sampling.CopyFrom(from_sampling(entry.processor.default_sampling))
    if isinstance(entry.processor, ModelProcessor):
        _describe_processor(described, entry.processor)
    if engine is not None and engine.ready is not None:
        _describe_engine(described, entry, engine.ready)
    if entry.upstream is not None:
        described.upstream.CopyFrom(_upstream(entry, entry.upstream, to_operator=to_operator))
    return described


def _upstream(
    entry: ModelEntry, settings: UpstreamSettings, *, to_operator: bool
) -> upstream_pb2.Upstream:
    """Only operators get the URLs, paths here, and problems, which have texts of engines."""
    engine = entry.engine
    described = upstream_pb2.Upstream(model=settings.model, text_mode=settings.is_text_mode)
    ready = engine.ready if engine is not None else None
    if ready is not None and (features := ready.features) is not None:
        described.engine = features.engine
        described.sampling.extend(sorted(features.sampling))
        described.constraints.extend(sorted(features.constraints))
        described.takes_grammars = features.takes_grammars
        if features.max_logprobs is not None:
            described.max_logprobs = features.max_logprobs
        if features.vector_size is not None:
            described.vector_size = features.vector_size
    if to_operator:
        described.problem = engine.problem if engine is not None else ""
        described.endpoints.extend(_endpoints(entry, settings))
        described.tokenizer = entry.tokenizer
    return described


def _endpoints(
    entry: ModelEntry, settings: UpstreamSettings
) -> Iterator[upstream_pb2.UpstreamEndpoint]:
    """The URLs with their states, which are known while the model is loaded or loads."""
    if entry.connection is None:
        yield from (upstream_pb2.UpstreamEndpoint(url=url) for url in settings.urls)
        return
    for each in entry.connection.status.endpoints:
        yield upstream_pb2.UpstreamEndpoint(
            url=each.url,
            is_up=each.state is EndpointState.UP,
            problem=each.problem,
            num_running=each.num_running,
        )


def _modalities(file: ModelFile) -> list[model_pb.Modality]:
    projector, modalities = file.projector, [model_pb.MODALITY_TEXT]
    if projector is not None and projector.reads_images:
        modalities.append(model_pb.MODALITY_IMAGE)
    if projector is not None and projector.reads_audio:
        modalities.append(model_pb.MODALITY_AUDIO)
    return modalities


def _describe_processor(described: model_pb.Model, processor: ModelProcessor) -> None:
    described.chat_template = processor.template.source
    described.chat_template_source = processor.template.origin
    described.end_token_ids.extend(sorted(processor.vocabulary.end_tokens))
    described.turn_format.CopyFrom(_TURN_FORMAT.to_message(processor.turn_format))
    vocabulary = processor.vocabulary
    described.infills = vocabulary.infill_tokens is not None
    described.begin_token = vocabulary.token_text(vocabulary.bos)
    described.end_token = vocabulary.token_text(vocabulary.eos)
    described.thinking.CopyFrom(_THINKING.to_message(processor.thinking))


def _describe_engine(described: model_pb.Model, entry: ModelEntry, ready: ModelReady) -> None:
    # The context of an engine in text mode may be unknown.
    limits = model_pb.ModelLimits(slots=ready.slots, context_tokens=ready.slot_tokens or None)
    if ready.features is None:
        limits.batch_tokens = ready.batch_tokens
        limits.kv_bytes = ready.num_cells * entry.file.kv_bytes_per_token
        limits.threads = ready.warm_up.threads
        limits.layout = _LAYOUTS.encode(ready.layout)
    described.resolved_limits.CopyFrom(limits)
    described.pooling = ready.pooling
