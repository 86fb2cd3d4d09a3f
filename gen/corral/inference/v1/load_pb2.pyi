import datetime

from corral.inference.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Load(_message.Message):
    __slots__ = ("num_slots", "num_running", "queues", "num_cells", "num_used_cells", "num_idle_cells", "num_steps", "prompt_tokens_total", "cached_tokens_total", "completion_tokens_total", "step_times", "num_snapshots", "snapshot_bytes", "draining", "num_snapshot_files", "snapshot_file_bytes", "num_adapters", "adapter_bytes", "num_followers", "num_preempted", "preemptions_total", "embedding", "draft_tokens_total", "accepted_draft_tokens_total", "step_histograms", "moves_total", "saved_prefixes", "archive", "models", "draft_model_tokens_total", "accepted_draft_model_tokens_total")
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NUM_CELLS_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_CELLS_FIELD_NUMBER: _ClassVar[int]
    NUM_IDLE_CELLS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    NUM_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEP_HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    MOVES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SAVED_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_MODEL_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    num_slots: int
    num_running: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueLoad]
    num_cells: int
    num_used_cells: int
    num_idle_cells: int
    num_steps: int
    prompt_tokens_total: int
    cached_tokens_total: int
    completion_tokens_total: int
    step_times: _containers.RepeatedCompositeFieldContainer[StepTime]
    num_snapshots: int
    snapshot_bytes: int
    draining: bool
    num_snapshot_files: int
    snapshot_file_bytes: int
    num_adapters: int
    adapter_bytes: int
    num_followers: int
    num_preempted: int
    preemptions_total: int
    embedding: EmbeddingLoad
    draft_tokens_total: int
    accepted_draft_tokens_total: int
    step_histograms: _containers.RepeatedCompositeFieldContainer[StepHistogram]
    moves_total: int
    saved_prefixes: PrefixTier
    archive: PrefixTier
    models: _containers.RepeatedCompositeFieldContainer[ModelLoad]
    draft_model_tokens_total: int
    accepted_draft_model_tokens_total: int
    def __init__(self, num_slots: _Optional[int] = ..., num_running: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueLoad, _Mapping]]] = ..., num_cells: _Optional[int] = ..., num_used_cells: _Optional[int] = ..., num_idle_cells: _Optional[int] = ..., num_steps: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., cached_tokens_total: _Optional[int] = ..., completion_tokens_total: _Optional[int] = ..., step_times: _Optional[_Iterable[_Union[StepTime, _Mapping]]] = ..., num_snapshots: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., draining: _Optional[bool] = ..., num_snapshot_files: _Optional[int] = ..., snapshot_file_bytes: _Optional[int] = ..., num_adapters: _Optional[int] = ..., adapter_bytes: _Optional[int] = ..., num_followers: _Optional[int] = ..., num_preempted: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., embedding: _Optional[_Union[EmbeddingLoad, _Mapping]] = ..., draft_tokens_total: _Optional[int] = ..., accepted_draft_tokens_total: _Optional[int] = ..., step_histograms: _Optional[_Iterable[_Union[StepHistogram, _Mapping]]] = ..., moves_total: _Optional[int] = ..., saved_prefixes: _Optional[_Union[PrefixTier, _Mapping]] = ..., archive: _Optional[_Union[PrefixTier, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelLoad, _Mapping]]] = ..., draft_model_tokens_total: _Optional[int] = ..., accepted_draft_model_tokens_total: _Optional[int] = ...) -> None: ...

class ModelLoad(_message.Message):
    __slots__ = ("model", "num_slots", "num_running", "num_waiting", "num_cells", "num_used_cells", "prompt_tokens_total", "cached_tokens_total", "completion_tokens_total")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_CELLS_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_CELLS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_slots: int
    num_running: int
    num_waiting: int
    num_cells: int
    num_used_cells: int
    prompt_tokens_total: int
    cached_tokens_total: int
    completion_tokens_total: int
    def __init__(self, model: _Optional[str] = ..., num_slots: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_cells: _Optional[int] = ..., num_used_cells: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., cached_tokens_total: _Optional[int] = ..., completion_tokens_total: _Optional[int] = ...) -> None: ...

class PrefixTier(_message.Message):
    __slots__ = ("num_entries", "max_entries", "num_bytes", "max_bytes", "hits_total", "misses_total", "written_total", "evicted_total")
    NUM_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    num_entries: int
    max_entries: int
    num_bytes: int
    max_bytes: int
    hits_total: int
    misses_total: int
    written_total: int
    evicted_total: int
    def __init__(self, num_entries: _Optional[int] = ..., max_entries: _Optional[int] = ..., num_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., hits_total: _Optional[int] = ..., misses_total: _Optional[int] = ..., written_total: _Optional[int] = ..., evicted_total: _Optional[int] = ...) -> None: ...

class EmbeddingLoad(_message.Message):
    __slots__ = ("num_requests", "num_inputs", "num_tokens", "oldest", "inputs_total", "tokens_total")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_INPUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    INPUTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_inputs: int
    num_tokens: int
    oldest: _duration_pb2.Duration
    inputs_total: int
    tokens_total: int
    def __init__(self, num_requests: _Optional[int] = ..., num_inputs: _Optional[int] = ..., num_tokens: _Optional[int] = ..., oldest: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inputs_total: _Optional[int] = ..., tokens_total: _Optional[int] = ...) -> None: ...

class QueueLoad(_message.Message):
    __slots__ = ("priority", "num_requests", "num_tokens", "oldest")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    priority: _generation_pb2.Priority
    num_requests: int
    num_tokens: int
    oldest: _duration_pb2.Duration
    def __init__(self, priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., num_requests: _Optional[int] = ..., num_tokens: _Optional[int] = ..., oldest: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StepTime(_message.Message):
    __slots__ = ("num_rows", "duration")
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    duration: _duration_pb2.Duration
    def __init__(self, num_rows: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StepHistogram(_message.Message):
    __slots__ = ("model", "max_rows", "has_prompt", "bounds", "counts", "sum")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    HAS_PROMPT_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_rows: int
    has_prompt: bool
    bounds: _containers.RepeatedCompositeFieldContainer[_duration_pb2.Duration]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., max_rows: _Optional[int] = ..., has_prompt: _Optional[bool] = ..., bounds: _Optional[_Iterable[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "label", "project", "model", "priority", "choices", "age", "prompt_tokens", "replica", "cached_tokens", "divergence")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LiveRequest.State]
        STATE_QUEUED: _ClassVar[LiveRequest.State]
        STATE_PREFILL: _ClassVar[LiveRequest.State]
        STATE_DECODE: _ClassVar[LiveRequest.State]
        STATE_PAUSED: _ClassVar[LiveRequest.State]
    STATE_UNSPECIFIED: LiveRequest.State
    STATE_QUEUED: LiveRequest.State
    STATE_PREFILL: LiveRequest.State
    STATE_DECODE: LiveRequest.State
    STATE_PAUSED: LiveRequest.State
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    label: str
    project: str
    model: str
    priority: _generation_pb2.Priority
    choices: _containers.RepeatedCompositeFieldContainer[LiveChoice]
    age: _duration_pb2.Duration
    prompt_tokens: int
    replica: str
    cached_tokens: int
    divergence: _generation_pb2.CacheDivergence
    def __init__(self, request_id: _Optional[str] = ..., label: _Optional[str] = ..., project: _Optional[str] = ..., model: _Optional[str] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., choices: _Optional[_Iterable[_Union[LiveChoice, _Mapping]]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., replica: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., divergence: _Optional[_Union[_generation_pb2.CacheDivergence, _Mapping]] = ...) -> None: ...

class ReplicaLoad(_message.Message):
    __slots__ = ("replica", "load", "problem")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    replica: str
    load: Load
    problem: str
    def __init__(self, replica: _Optional[str] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class LiveChoice(_message.Message):
    __slots__ = ("index", "state", "slot", "completion_tokens", "computed_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    state: LiveRequest.State
    slot: int
    completion_tokens: int
    computed_tokens: int
    def __init__(self, index: _Optional[int] = ..., state: _Optional[_Union[LiveRequest.State, str]] = ..., slot: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ...) -> None: ...
