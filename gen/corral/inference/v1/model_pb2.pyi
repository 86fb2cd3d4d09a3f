import datetime

from corral.inference.v1 import chat_pb2 as _chat_pb2
from corral.inference.v1 import sampling_pb2 as _sampling_pb2
from corral.inference.v1 import upstream_pb2 as _upstream_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_CLASS_UNSPECIFIED: _ClassVar[ModelClass]
    MODEL_CLASS_DECODER: _ClassVar[ModelClass]
    MODEL_CLASS_ENCODER: _ClassVar[ModelClass]
    MODEL_CLASS_ENCODER_DECODER: _ClassVar[ModelClass]
    MODEL_CLASS_RERANKER: _ClassVar[ModelClass]

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_TEXT: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
    MODALITY_AUDIO: _ClassVar[Modality]

class LoadPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOAD_POLICY_UNSPECIFIED: _ClassVar[LoadPolicy]
    LOAD_POLICY_START: _ClassVar[LoadPolicy]
    LOAD_POLICY_ON_DEMAND: _ClassVar[LoadPolicy]
    LOAD_POLICY_MANUAL: _ClassVar[LoadPolicy]

class KvLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_LAYOUT_UNSPECIFIED: _ClassVar[KvLayout]
    KV_LAYOUT_STREAMS: _ClassVar[KvLayout]
    KV_LAYOUT_UNIFIED: _ClassVar[KvLayout]
MODEL_CLASS_UNSPECIFIED: ModelClass
MODEL_CLASS_DECODER: ModelClass
MODEL_CLASS_ENCODER: ModelClass
MODEL_CLASS_ENCODER_DECODER: ModelClass
MODEL_CLASS_RERANKER: ModelClass
MODALITY_UNSPECIFIED: Modality
MODALITY_TEXT: Modality
MODALITY_IMAGE: Modality
MODALITY_AUDIO: Modality
LOAD_POLICY_UNSPECIFIED: LoadPolicy
LOAD_POLICY_START: LoadPolicy
LOAD_POLICY_ON_DEMAND: LoadPolicy
LOAD_POLICY_MANUAL: LoadPolicy
KV_LAYOUT_UNSPECIFIED: KvLayout
KV_LAYOUT_STREAMS: KvLayout
KV_LAYOUT_UNIFIED: KvLayout

class Model(_message.Message):
    __slots__ = ("name", "aliases", "state", "problem", "model_class", "architecture", "digest", "description", "size_bytes", "num_parameters", "vocabulary_size", "embedding_size", "trained_context_tokens", "requested_limits", "resolved_limits", "default_sampling", "chat_template", "chat_template_source", "end_token_ids", "load_time", "parent", "pooling", "turn_format", "memory_bytes", "num_uses", "load_policy", "pinned", "load_progress", "device_memory_bytes", "input_modalities", "quantization", "infills", "begin_token", "end_token", "thinking", "source", "idle_ttl", "download", "upstream", "replicas", "draft_model")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Model.State]
        STATE_AVAILABLE: _ClassVar[Model.State]
        STATE_LOADING: _ClassVar[Model.State]
        STATE_READY: _ClassVar[Model.State]
        STATE_FAILED: _ClassVar[Model.State]
        STATE_UNLOADING: _ClassVar[Model.State]
        STATE_DOWNLOADING: _ClassVar[Model.State]
        STATE_VERIFYING: _ClassVar[Model.State]
    STATE_UNSPECIFIED: Model.State
    STATE_AVAILABLE: Model.State
    STATE_LOADING: Model.State
    STATE_READY: Model.State
    STATE_FAILED: Model.State
    STATE_UNLOADING: Model.State
    STATE_DOWNLOADING: Model.State
    STATE_VERIFYING: Model.State
    class DeviceMemoryBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MODEL_CLASS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_LIMITS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    TURN_FORMAT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_USES_FIELD_NUMBER: _ClassVar[int]
    LOAD_POLICY_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_MODALITIES_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    INFILLS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IDLE_TTL_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    state: Model.State
    problem: str
    model_class: ModelClass
    architecture: str
    digest: str
    description: str
    size_bytes: int
    num_parameters: int
    vocabulary_size: int
    embedding_size: int
    trained_context_tokens: int
    requested_limits: ModelLimits
    resolved_limits: ModelLimits
    default_sampling: _sampling_pb2.SamplingParams
    chat_template: str
    chat_template_source: str
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    load_time: _timestamp_pb2.Timestamp
    parent: str
    pooling: str
    turn_format: TurnFormat
    memory_bytes: int
    num_uses: int
    load_policy: LoadPolicy
    pinned: bool
    load_progress: LoadProgress
    device_memory_bytes: _containers.ScalarMap[str, int]
    input_modalities: _containers.RepeatedScalarFieldContainer[Modality]
    quantization: str
    infills: bool
    begin_token: str
    end_token: str
    thinking: ThinkingSupport
    source: str
    idle_ttl: _duration_pb2.Duration
    download: DownloadProgress
    upstream: _upstream_pb2.Upstream
    replicas: ModelReplicas
    draft_model: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[Model.State, str]] = ..., problem: _Optional[str] = ..., model_class: _Optional[_Union[ModelClass, str]] = ..., architecture: _Optional[str] = ..., digest: _Optional[str] = ..., description: _Optional[str] = ..., size_bytes: _Optional[int] = ..., num_parameters: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., embedding_size: _Optional[int] = ..., trained_context_tokens: _Optional[int] = ..., requested_limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., resolved_limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., default_sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., chat_template: _Optional[str] = ..., chat_template_source: _Optional[str] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., load_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parent: _Optional[str] = ..., pooling: _Optional[str] = ..., turn_format: _Optional[_Union[TurnFormat, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., num_uses: _Optional[int] = ..., load_policy: _Optional[_Union[LoadPolicy, str]] = ..., pinned: _Optional[bool] = ..., load_progress: _Optional[_Union[LoadProgress, _Mapping]] = ..., device_memory_bytes: _Optional[_Mapping[str, int]] = ..., input_modalities: _Optional[_Iterable[_Union[Modality, str]]] = ..., quantization: _Optional[str] = ..., infills: _Optional[bool] = ..., begin_token: _Optional[str] = ..., end_token: _Optional[str] = ..., thinking: _Optional[_Union[ThinkingSupport, _Mapping]] = ..., source: _Optional[str] = ..., idle_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., download: _Optional[_Union[DownloadProgress, _Mapping]] = ..., upstream: _Optional[_Union[_upstream_pb2.Upstream, _Mapping]] = ..., replicas: _Optional[_Union[ModelReplicas, _Mapping]] = ..., draft_model: _Optional[str] = ...) -> None: ...

class ModelReplicas(_message.Message):
    __slots__ = ("num_having", "num_asked", "other_digests")
    NUM_HAVING_FIELD_NUMBER: _ClassVar[int]
    NUM_ASKED_FIELD_NUMBER: _ClassVar[int]
    OTHER_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    num_having: int
    num_asked: int
    other_digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, num_having: _Optional[int] = ..., num_asked: _Optional[int] = ..., other_digests: _Optional[_Iterable[str]] = ...) -> None: ...

class DownloadProgress(_message.Message):
    __slots__ = ("file", "sha256", "completed_bytes", "total_bytes")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    file: str
    sha256: str
    completed_bytes: int
    total_bytes: int
    def __init__(self, file: _Optional[str] = ..., sha256: _Optional[str] = ..., completed_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ThinkingSupport(_message.Message):
    __slots__ = ("mode", "efforts", "keeps_budget")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[ThinkingSupport.Mode]
        MODE_NONE: _ClassVar[ThinkingSupport.Mode]
        MODE_SWITCHABLE: _ClassVar[ThinkingSupport.Mode]
        MODE_ALWAYS: _ClassVar[ThinkingSupport.Mode]
    MODE_UNSPECIFIED: ThinkingSupport.Mode
    MODE_NONE: ThinkingSupport.Mode
    MODE_SWITCHABLE: ThinkingSupport.Mode
    MODE_ALWAYS: ThinkingSupport.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    EFFORTS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_BUDGET_FIELD_NUMBER: _ClassVar[int]
    mode: ThinkingSupport.Mode
    efforts: _containers.RepeatedScalarFieldContainer[_chat_pb2.ReasoningEffort]
    keeps_budget: bool
    def __init__(self, mode: _Optional[_Union[ThinkingSupport.Mode, str]] = ..., efforts: _Optional[_Iterable[_Union[_chat_pb2.ReasoningEffort, str]]] = ..., keeps_budget: _Optional[bool] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("phase", "fraction")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[LoadProgress.Phase]
        PHASE_WAITING: _ClassVar[LoadProgress.Phase]
        PHASE_WEIGHTS: _ClassVar[LoadProgress.Phase]
        PHASE_WARM_UP: _ClassVar[LoadProgress.Phase]
    PHASE_UNSPECIFIED: LoadProgress.Phase
    PHASE_WAITING: LoadProgress.Phase
    PHASE_WEIGHTS: LoadProgress.Phase
    PHASE_WARM_UP: LoadProgress.Phase
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    phase: LoadProgress.Phase
    fraction: float
    def __init__(self, phase: _Optional[_Union[LoadProgress.Phase, str]] = ..., fraction: _Optional[float] = ...) -> None: ...

class TurnFormat(_message.Message):
    __slots__ = ("tool_calls", "reasoning", "starts_in_reasoning")
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    STARTS_IN_REASONING_FIELD_NUMBER: _ClassVar[int]
    tool_calls: str
    reasoning: str
    starts_in_reasoning: bool
    def __init__(self, tool_calls: _Optional[str] = ..., reasoning: _Optional[str] = ..., starts_in_reasoning: _Optional[bool] = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("slots", "context_tokens", "batch_tokens", "kv_bytes", "threads", "layout")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    slots: int
    context_tokens: int
    batch_tokens: int
    kv_bytes: int
    threads: int
    layout: KvLayout
    def __init__(self, slots: _Optional[int] = ..., context_tokens: _Optional[int] = ..., batch_tokens: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., threads: _Optional[int] = ..., layout: _Optional[_Union[KvLayout, str]] = ...) -> None: ...
