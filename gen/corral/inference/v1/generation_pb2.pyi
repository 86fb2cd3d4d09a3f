import datetime

from corral.inference.v1 import adapter_pb2 as _adapter_pb2
from corral.inference.v1 import sampling_pb2 as _sampling_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]

class CacheSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_SOURCE_UNSPECIFIED: _ClassVar[CacheSource]
    CACHE_SOURCE_SLOT: _ClassVar[CacheSource]
    CACHE_SOURCE_LIVE: _ClassVar[CacheSource]
    CACHE_SOURCE_MEMORY: _ClassVar[CacheSource]
    CACHE_SOURCE_DISK: _ClassVar[CacheSource]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_BATCH: Priority
PRIORITY_NORMAL: Priority
PRIORITY_INTERACTIVE: Priority
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
CACHE_SOURCE_UNSPECIFIED: CacheSource
CACHE_SOURCE_SLOT: CacheSource
CACHE_SOURCE_LIVE: CacheSource
CACHE_SOURCE_MEMORY: CacheSource
CACHE_SOURCE_DISK: CacheSource

class GenerationOptions(_message.Message):
    __slots__ = ("sampling", "stopping", "output", "constraint", "cache", "scheduling", "adapters", "num_choices", "resume", "speculation", "deterministic", "label", "thinking_budget_tokens")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    THINKING_BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sampling: _sampling_pb2.SamplingParams
    stopping: StoppingParams
    output: OutputOptions
    constraint: Constraint
    cache: CacheOptions
    scheduling: SchedulingOptions
    adapters: _containers.RepeatedCompositeFieldContainer[_adapter_pb2.AdapterScale]
    num_choices: int
    resume: _containers.RepeatedCompositeFieldContainer[ResumedChoice]
    speculation: SpeculationOptions
    deterministic: bool
    label: str
    thinking_budget_tokens: int
    def __init__(self, sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingParams, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., cache: _Optional[_Union[CacheOptions, _Mapping]] = ..., scheduling: _Optional[_Union[SchedulingOptions, _Mapping]] = ..., adapters: _Optional[_Iterable[_Union[_adapter_pb2.AdapterScale, _Mapping]]] = ..., num_choices: _Optional[int] = ..., resume: _Optional[_Iterable[_Union[ResumedChoice, _Mapping]]] = ..., speculation: _Optional[_Union[SpeculationOptions, _Mapping]] = ..., deterministic: _Optional[bool] = ..., label: _Optional[str] = ..., thinking_budget_tokens: _Optional[int] = ...) -> None: ...

class StoppingParams(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    include_stop: bool
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., include_stop: _Optional[bool] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("token_ids", "top_logprobs", "prompt_logprobs", "special_tokens", "prompt_token_ids", "interval_ms")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bool
    top_logprobs: int
    prompt_logprobs: int
    special_tokens: bool
    prompt_token_ids: bool
    interval_ms: int
    def __init__(self, token_ids: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., special_tokens: _Optional[bool] = ..., prompt_token_ids: _Optional[bool] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "lark", "gbnf", "choices")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    GBNF_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: bool
    regex: str
    lark: str
    gbnf: str
    choices: TextChoices
    def __init__(self, json_schema: _Optional[str] = ..., json_object: _Optional[bool] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ..., gbnf: _Optional[str] = ..., choices: _Optional[_Union[TextChoices, _Mapping]] = ...) -> None: ...

class TextChoices(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class CacheOptions(_message.Message):
    __slots__ = ("reuse", "salt", "affinity", "keep", "keep_for")
    REUSE_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    KEEP_FOR_FIELD_NUMBER: _ClassVar[int]
    reuse: bool
    salt: str
    affinity: str
    keep: bool
    keep_for: str
    def __init__(self, reuse: _Optional[bool] = ..., salt: _Optional[str] = ..., affinity: _Optional[str] = ..., keep: _Optional[bool] = ..., keep_for: _Optional[str] = ...) -> None: ...

class SchedulingOptions(_message.Message):
    __slots__ = ("priority", "queue_timeout")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    priority: Priority
    queue_timeout: _duration_pb2.Duration
    def __init__(self, priority: _Optional[_Union[Priority, str]] = ..., queue_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("enabled", "max_draft_tokens", "prediction")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    max_draft_tokens: int
    prediction: str
    def __init__(self, enabled: _Optional[bool] = ..., max_draft_tokens: _Optional[int] = ..., prediction: _Optional[str] = ...) -> None: ...

class ResumedChoice(_message.Message):
    __slots__ = ("index", "output_token_ids", "snapshot_id", "held_logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    snapshot_id: str
    held_logprobs: _containers.RepeatedCompositeFieldContainer[ChosenLogprob]
    def __init__(self, index: _Optional[int] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., snapshot_id: _Optional[str] = ..., held_logprobs: _Optional[_Iterable[_Union[ChosenLogprob, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "queue_position", "seed", "model", "max_tokens", "rate_limits", "prompt_token_ids", "ignored_options", "model_digest", "input_digest")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INPUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    queue_position: int
    seed: int
    model: str
    max_tokens: int
    rate_limits: _containers.RepeatedCompositeFieldContainer[RateLimitStatus]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignored_options: _containers.RepeatedScalarFieldContainer[str]
    model_digest: str
    input_digest: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., queue_position: _Optional[int] = ..., seed: _Optional[int] = ..., model: _Optional[str] = ..., max_tokens: _Optional[int] = ..., rate_limits: _Optional[_Iterable[_Union[RateLimitStatus, _Mapping]]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., ignored_options: _Optional[_Iterable[str]] = ..., model_digest: _Optional[str] = ..., input_digest: _Optional[str] = ...) -> None: ...

class RateLimitStatus(_message.Message):
    __slots__ = ("name", "unit", "amount", "remaining", "reset", "window")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIT_UNSPECIFIED: _ClassVar[RateLimitStatus.Unit]
        UNIT_REQUESTS: _ClassVar[RateLimitStatus.Unit]
        UNIT_TOKENS: _ClassVar[RateLimitStatus.Unit]
        UNIT_CONCURRENT_REQUESTS: _ClassVar[RateLimitStatus.Unit]
    UNIT_UNSPECIFIED: RateLimitStatus.Unit
    UNIT_REQUESTS: RateLimitStatus.Unit
    UNIT_TOKENS: RateLimitStatus.Unit
    UNIT_CONCURRENT_REQUESTS: RateLimitStatus.Unit
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: RateLimitStatus.Unit
    amount: int
    remaining: int
    reset: _duration_pb2.Duration
    window: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[_Union[RateLimitStatus.Unit, str]] = ..., amount: _Optional[int] = ..., remaining: _Optional[int] = ..., reset: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("cached_tokens", "cache_source")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    cache_source: CacheSource
    def __init__(self, cached_tokens: _Optional[int] = ..., cache_source: _Optional[_Union[CacheSource, str]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "token", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: bytes
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class ChosenLogprob(_message.Message):
    __slots__ = ("chosen", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: TokenLogprob
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, chosen: _Optional[_Union[TokenLogprob, _Mapping]] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class PromptTokens(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[PromptToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[PromptToken, _Mapping]]] = ...) -> None: ...

class PromptToken(_message.Message):
    __slots__ = ("token_id", "token", "logprob", "rank", "top")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: bytes
    logprob: float
    rank: int
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[bytes] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("index", "reason", "stop_text", "stop_token_id", "completion_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: FinishReason
    stop_text: str
    stop_token_id: int
    completion_tokens: int
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cache_source", "draft_tokens", "accepted_draft_tokens", "image_tokens", "audio_tokens", "is_estimated", "divergence", "draft_model_tokens", "accepted_draft_model_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_MODEL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_source: CacheSource
    draft_tokens: int
    accepted_draft_tokens: int
    image_tokens: int
    audio_tokens: int
    is_estimated: bool
    divergence: CacheDivergence
    draft_model_tokens: int
    accepted_draft_model_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cache_source: _Optional[_Union[CacheSource, str]] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., image_tokens: _Optional[int] = ..., audio_tokens: _Optional[int] = ..., is_estimated: _Optional[bool] = ..., divergence: _Optional[_Union[CacheDivergence, _Mapping]] = ..., draft_model_tokens: _Optional[int] = ..., accepted_draft_model_tokens: _Optional[int] = ...) -> None: ...

class CacheDivergence(_message.Message):
    __slots__ = ("token_index", "lost_tokens", "field", "cached_text", "prompt_text")
    TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    CACHED_TEXT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    token_index: int
    lost_tokens: int
    field: str
    cached_text: str
    prompt_text: str
    def __init__(self, token_index: _Optional[int] = ..., lost_tokens: _Optional[int] = ..., field: _Optional[str] = ..., cached_text: _Optional[str] = ..., prompt_text: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "prefill", "decode", "first_token", "between_tokens", "tokens_per_second", "completion_tokens")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    first_token: _duration_pb2.Duration
    between_tokens: _duration_pb2.Duration
    tokens_per_second: float
    completion_tokens: int
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., between_tokens: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tokens_per_second: _Optional[float] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("usage", "timings")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    timings: Timings
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...
