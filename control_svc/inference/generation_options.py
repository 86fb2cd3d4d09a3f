"""Options of generations that clients set: stored with objects and passed on with each turn.

The fields are those of `corral.inference.v1.GenerationOptions`, which documents them, without the
ones that only this service sets. None and empty mean unset. The inference service validates them.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from corral.inference.v1 import generation_pb2 as pb
from google.protobuf.message import DecodeError
from pydantic_core import core_schema

from svc_kit.auth.principal import Priority
from svc_kit.errors import DomainError, UnsupportedField
from svc_kit.rpc.message_mapper import MessageMapper


class SamplerKind(StrEnum):
    """A filter of the sampler chain."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typical_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"
    INFILL = "infill"


@dataclass(frozen=True, kw_only=True)
class DryParams:
    """Settings of DRY."""

    multiplier: float | None = None
    base: float | None = None
    allowed_length: int | None = None
    penalty_last_n: int | None = None
    sequence_breakers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MirostatParams:
    """Settings of Mirostat."""

    version: int = 0
    tau: float | None = None
    eta: float | None = None


@dataclass(frozen=True, kw_only=True)
class AdaptiveParams:
    """Settings of adaptive-p."""

    target: float | None = None
    decay: float | None = None


@dataclass(frozen=True, kw_only=True)
class LogitBias:
    """A change of one token's logit."""

    token_id: int
    bias: float


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen."""

    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    min_keep: int | None = None
    penalty_last_n: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry: DryParams | None = None
    mirostat: MirostatParams | None = None
    adaptive: AdaptiveParams | None = None
    logit_bias: tuple[LogitBias, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    samplers: tuple[SamplerKind, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class StoppingParams:
    """When a generation ends."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    include_stop: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is returned beside the text."""

    top_logprobs: int | None = None
    special_tokens: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """The output format: one field is set."""

    json_schema: str | None = None
    json_object: bool | None = None
    regex: str | None = None
    lark: str | None = None
    gbnf: str | None = None
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Which computed prefixes are reused."""

    reuse: bool | None = None
    salt: str = ""
    affinity: str = ""
    keep: bool | None = None


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """Priority and queueing."""

    priority: Priority | None = None
    queue_timeout: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class AdapterScale:
    """An adapter to apply."""

    adapter: str
    scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Drafting."""

    enabled: bool | None = None
    max_draft_tokens: int | None = None
    prediction: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """All options. They are stored as the bytes of their proto, also in JSON and fingerprints."""

    sampling: SamplingParams | None = None
    stopping: StoppingParams | None = None
    output: OutputOptions | None = None
    constraint: Constraint | None = None
    cache: CacheOptions | None = None
    scheduling: SchedulingOptions | None = None
    adapters: tuple[AdapterScale, ...] = ()
    speculation: SpeculationOptions | None = None
    deterministic: bool | None = None
    unreadable: bytes = b""
    """Stored bytes that this release cannot read. They are kept as they are."""

    @classmethod
    def from_bytes(cls, stored: bytes) -> "GenerationOptions":
        """Read stored options."""
        try:
            return OPTIONS.from_message(pb.GenerationOptions.FromString(stored))
        except (DecodeError, DomainError):
            return cls(unreadable=stored)

    def __bytes__(self) -> bytes:
        return self.unreadable or OPTIONS.to_message(self).SerializeToString(deterministic=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        stored = core_schema.bytes_schema()
        return core_schema.no_info_after_validator_function(
            cls.from_bytes,
            stored,
            serialization=core_schema.plain_serializer_function_ser_schema(
                bytes, return_schema=stored
            ),
        )

    def merge(self, changes: "GenerationOptions") -> "GenerationOptions":
        """Override fields by those that are set in `changes`; lists are appended."""
        return self.from_bytes(bytes(self) + bytes(changes))  # protobuf merges what it reads twice


NO_OPTIONS: Final = GenerationOptions()
_INTERNAL: Final = {
    "": ("num_choices", "resume", "label"),
    "output.": ("token_ids", "prompt_logprobs", "prompt_token_ids"),
    "cache.": ("keep_for",),
}
"""Options that clients may not set, by path prefix."""


class _OptionsMapper(MessageMapper[GenerationOptions, pb.GenerationOptions]):
    """Refuses options of clients that only this service sets."""

    def to_message(self, value: GenerationOptions, **extra: Any) -> pb.GenerationOptions:
        message = super().to_message(value, **extra)
        message.MergeFromString(value.unreadable)
        return message

    def decode(self, message: pb.GenerationOptions, path: str) -> GenerationOptions:
        parts = (("", message), ("output.", message.output), ("cache.", message.cache))
        for prefix, part in parts:
            for field, _ in part.ListFields():
                if field.name in _INTERNAL[prefix]:
                    raise UnsupportedField(field=f"{path}.{prefix}{field.name}")
        return super().decode(message, path)


OPTIONS: Final = _OptionsMapper(
    GenerationOptions,
    pb.GenerationOptions,
    uses=[
        MessageMapper(OutputOptions, pb.OutputOptions, only_message=_INTERNAL["output."]),
        MessageMapper(CacheOptions, pb.CacheOptions, only_message=_INTERNAL["cache."]),
    ],
    only_domain=["unreadable"],
    only_message=_INTERNAL[""],
    omits_default=True,
)
