from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SamplerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLER_KIND_UNSPECIFIED: _ClassVar[SamplerKind]
    SAMPLER_KIND_PENALTIES: _ClassVar[SamplerKind]
    SAMPLER_KIND_DRY: _ClassVar[SamplerKind]
    SAMPLER_KIND_TOP_N_SIGMA: _ClassVar[SamplerKind]
    SAMPLER_KIND_TOP_K: _ClassVar[SamplerKind]
    SAMPLER_KIND_TYPICAL_P: _ClassVar[SamplerKind]
    SAMPLER_KIND_TOP_P: _ClassVar[SamplerKind]
    SAMPLER_KIND_MIN_P: _ClassVar[SamplerKind]
    SAMPLER_KIND_XTC: _ClassVar[SamplerKind]
    SAMPLER_KIND_TEMPERATURE: _ClassVar[SamplerKind]
    SAMPLER_KIND_INFILL: _ClassVar[SamplerKind]
SAMPLER_KIND_UNSPECIFIED: SamplerKind
SAMPLER_KIND_PENALTIES: SamplerKind
SAMPLER_KIND_DRY: SamplerKind
SAMPLER_KIND_TOP_N_SIGMA: SamplerKind
SAMPLER_KIND_TOP_K: SamplerKind
SAMPLER_KIND_TYPICAL_P: SamplerKind
SAMPLER_KIND_TOP_P: SamplerKind
SAMPLER_KIND_MIN_P: SamplerKind
SAMPLER_KIND_XTC: SamplerKind
SAMPLER_KIND_TEMPERATURE: SamplerKind
SAMPLER_KIND_INFILL: SamplerKind

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "penalty_last_n", "repetition_penalty", "frequency_penalty", "presence_penalty", "dry", "mirostat", "adaptive", "logit_bias", "allowed_token_ids", "samplers", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_RANGE_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MIN_KEEP_FIELD_NUMBER: _ClassVar[int]
    PENALTY_LAST_N_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    DRY_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_FIELD_NUMBER: _ClassVar[int]
    ADAPTIVE_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    penalty_last_n: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    dry: DryParams
    mirostat: MirostatParams
    adaptive: AdaptiveParams
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    samplers: _containers.RepeatedScalarFieldContainer[SamplerKind]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., dynatemp_range: _Optional[float] = ..., dynatemp_exponent: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., top_n_sigma: _Optional[float] = ..., xtc_probability: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., min_keep: _Optional[int] = ..., penalty_last_n: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., dry: _Optional[_Union[DryParams, _Mapping]] = ..., mirostat: _Optional[_Union[MirostatParams, _Mapping]] = ..., adaptive: _Optional[_Union[AdaptiveParams, _Mapping]] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., samplers: _Optional[_Iterable[_Union[SamplerKind, str]]] = ..., seed: _Optional[int] = ...) -> None: ...

class DryParams(_message.Message):
    __slots__ = ("multiplier", "base", "allowed_length", "penalty_last_n", "sequence_breakers")
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PENALTY_LAST_N_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    multiplier: float
    base: float
    allowed_length: int
    penalty_last_n: int
    sequence_breakers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, multiplier: _Optional[float] = ..., base: _Optional[float] = ..., allowed_length: _Optional[int] = ..., penalty_last_n: _Optional[int] = ..., sequence_breakers: _Optional[_Iterable[str]] = ...) -> None: ...

class MirostatParams(_message.Message):
    __slots__ = ("version", "tau", "eta")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    version: int
    tau: float
    eta: float
    def __init__(self, version: _Optional[int] = ..., tau: _Optional[float] = ..., eta: _Optional[float] = ...) -> None: ...

class AdaptiveParams(_message.Message):
    __slots__ = ("target", "decay")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    target: float
    decay: float
    def __init__(self, target: _Optional[float] = ..., decay: _Optional[float] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...
