"""Protos to the engine's types: the only place where defaults and limits meet the wire.

Every check is made before anything is queued. Field names in errors are those of the protos' leaves
("temperature", "stop"), which are OpenAI's too.
"""

import hashlib
import secrets
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import model_pb2 as model_pb
from corral.inference.v1 import sampling_pb2 as sampling_pb

from inference_svc.engine.adapter_stack import BASE, AdapterStack
from inference_svc.engine.request import MAX_DRAFT, SequenceRequest
from inference_svc.engine.sampling import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.models.sizing import RequestedLimits
from svc_kit.auth import Principal
from svc_kit.errors import (
    ContextLengthExceeded,
    FeatureUnsupported,
    InvalidField,
    MissingField,
    OutOfRange,
    TokenOutOfVocabulary,
    TooLong,
    UnsupportedField,
)

MAX_CHOICES = 128
MAX_STOP_TEXTS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 20
MAX_LABEL_BYTES = 256
MAX_ASKED_DRAFT = 32

_SCALARS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "min_keep",
    "penalty_last_n",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_LIMITS: Mapping[Any, tuple[int, int]] = {
    "slots": (1, 256),
    "context_tokens": (256, 2**24),
    "batch_tokens": (32, 65536),
    "threads": (1, 1024),
}
_STAGES: Mapping[int, Stage] = {
    sampling_pb.SAMPLER_KIND_PENALTIES: Stage.PENALTIES,
    sampling_pb.SAMPLER_KIND_DRY: Stage.DRY,
    sampling_pb.SAMPLER_KIND_TOP_N_SIGMA: Stage.TOP_N_SIGMA,
    sampling_pb.SAMPLER_KIND_TOP_K: Stage.TOP_K,
    sampling_pb.SAMPLER_KIND_TYPICAL_P: Stage.TYPICAL_P,
    sampling_pb.SAMPLER_KIND_TOP_P: Stage.TOP_P,
    sampling_pb.SAMPLER_KIND_MIN_P: Stage.MIN_P,
    sampling_pb.SAMPLER_KIND_XTC: Stage.XTC,
    sampling_pb.SAMPLER_KIND_TEMPERATURE: Stage.TEMPERATURE,
    sampling_pb.SAMPLER_KIND_INFILL: Stage.INFILL,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The model a request is for, with its sizes and the adapters on it; `slot_tokens` is the
    context of one sequence."""

    model: str
    vocabulary_size: int
    slot_tokens: int
    default_sampling: Sampling
    adapters: AdapterStack = BASE


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the request field they came from (for errors)."""

    tokens: Sequence[int]
    field: str


class _Resumed(NamedTuple):
    """What a choice resumes from, as fields of `SequenceRequest`."""

    resumed: "array[int]" = array("i")
    snapshot_id: str = ""


def to_requests(
    options: generation.GenerationOptions,
    prompt: Prompt,
    target: Target,
    principal: Principal,
    deadline: float | None,
) -> list[SequenceRequest]:
    """One `SequenceRequest` a choice (ids are given at admission); `deadline` is monotonic time.

    Raises the `DomainError` of the first bad field.
    """
    _refuse_what_is_not_there_yet(options)
    _check_keep(options)
    _check_label(options.label)
    _check_prompt(prompt, target)
    num_choices = options.num_choices if options.HasField("num_choices") else 1
    _check_range("n", num_choices, 1, MAX_CHOICES)
    sampling = to_sampling(options.sampling, target.default_sampling)
    sampling.validate(vocabulary_size=target.vocabulary_size, context_tokens=target.slot_tokens)
    now = time.monotonic()
    template = SequenceRequest(
        sequence_id=-1,
        model=target.model,
        prompt=array("i", prompt.tokens),
        sampling=sampling,
        seed=_seed(options),
        choice=0,
        max_tokens=_max_tokens(options.stopping, len(prompt.tokens), target.slot_tokens),
        cache_key=_cache_key(options.cache, principal, target.adapters),
        resumed=array("i"),
        priority=_priority(options.scheduling, principal),
        project=principal.project,
        deadline=deadline,
        queue_deadline=_queue_deadline(options.scheduling, now),
        reuse=_may_reuse(options),
        keep=options.cache.keep,
        deterministic=options.deterministic,
        max_draft=_max_draft(options),
        top_logprobs=_top_logprobs(options.output),
        special_tokens=options.output.special_tokens,
        adapters=target.adapters,
        **_stopping(options.stopping, target),
    )
    resumed = _resumed(options, num_choices, sampling, target, len(prompt.tokens))
    return [
        replace(template, choice=choice, **resumed.get(choice, _Resumed())._asdict())
        for choice in range(num_choices)
    ]


def to_sampling(pb: sampling_pb.SamplingParams, defaults: Sampling) -> Sampling:
    """Set fields over `defaults`; nothing is checked but what has no meaning at all."""
    changes: dict[str, Any] = {name: getattr(pb, name) for name in _SCALARS if pb.HasField(name)}
    if pb.HasField("dry"):
        changes["dry"] = _dry(pb.dry, defaults.dry or Dry())
    if pb.HasField("mirostat"):
        changes["mirostat"] = _mirostat(pb.mirostat)
    if pb.HasField("adaptive"):
        changes["adaptive"] = _adaptive(pb.adaptive)
    if pb.logit_bias:
        changes["logit_bias"] = tuple((entry.token_id, entry.bias) for entry in pb.logit_bias)
    if pb.allowed_token_ids:
        changes["allowed_token_ids"] = tuple(pb.allowed_token_ids)
    if pb.samplers:
        changes["stages"] = tuple(_stage(kind) for kind in pb.samplers)
    return replace(defaults, **changes)


def from_sampling(sampling: Sampling) -> sampling_pb.SamplingParams:
    """The wire form of a model's defaults."""
    pb = sampling_pb.SamplingParams(**{name: getattr(sampling, name) for name in _SCALARS})
    kinds: dict[Stage, Any] = {stage: kind for kind, stage in _STAGES.items()}
    pb.samplers.extend(kinds[stage] for stage in sampling.stages)
    return pb


def _stage(kind: int) -> Stage:
    stage = _STAGES.get(kind)
    if stage is None:
        raise InvalidField(field="samplers", problem=f"unknown sampler {kind}")
    return stage


def _dry(pb: sampling_pb.DryParams, defaults: Dry) -> Dry:
    fields = ("multiplier", "base", "allowed_length", "penalty_last_n")
    changes: dict[str, Any] = {name: getattr(pb, name) for name in fields if pb.HasField(name)}
    if pb.sequence_breakers:
        changes["sequence_breakers"] = tuple(pb.sequence_breakers)
    return replace(defaults, **changes)


def _mirostat(pb: sampling_pb.MirostatParams) -> Mirostat | None:
    if pb.version == 0:
        return None
    fields = ("tau", "eta")
    return Mirostat(pb.version, **{name: getattr(pb, name) for name in fields if pb.HasField(name)})


def _adaptive(pb: sampling_pb.AdaptiveParams) -> Adaptive | None:
    if not pb.HasField("target") or pb.target < 0:
        return None
    return Adaptive(pb.target, *([pb.decay] if pb.HasField("decay") else []))


# --- checks ---------------------------------------------------------------------------------------


def _refuse_what_is_not_there_yet(options: generation.GenerationOptions) -> None:
    wanted = {
        "prompt_logprobs": options.output.HasField("prompt_logprobs"),
    }
    for feature, asked in wanted.items():
        if asked:
            raise FeatureUnsupported(feature=feature)


def _check_keep(options: generation.GenerationOptions) -> None:
    if options.cache.keep and not _may_reuse(options):
        raise InvalidField(field="cache.keep", problem="a state that none may reuse is not kept")


def _check_range(field: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise OutOfRange(field=field, value=value, minimum=minimum, maximum=maximum)


def _check_label(label: str) -> None:
    size = len(label.encode())
    if size > MAX_LABEL_BYTES:
        raise TooLong(field="label", length=size, limit=MAX_LABEL_BYTES, unit="bytes")


def _check_prompt(prompt: Prompt, target: Target) -> None:
    count = len(prompt.tokens)
    if count == 0:
        raise MissingField(field=prompt.field)
    if count >= target.slot_tokens:
        raise ContextLengthExceeded(
            field=prompt.field, prompt_tokens=count, context_tokens=target.slot_tokens
        )
    _check_tokens(prompt.field, prompt.tokens, target.vocabulary_size)


def _check_tokens(field: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary_size):
        bad = next(token for token in tokens if not 0 <= token < vocabulary_size)
        raise TokenOutOfVocabulary(field=field, token=bad, vocabulary_size=vocabulary_size)


def _seed(options: generation.GenerationOptions) -> int:
    if options.sampling.HasField("seed"):
        return options.sampling.seed
    return secrets.randbits(32)


def _max_tokens(stopping: generation.StoppingParams, prompt_tokens: int, slot_tokens: int) -> int:
    """What is asked for, at most what the context has left: a full window ends with LENGTH."""
    left = slot_tokens - prompt_tokens
    if not stopping.HasField("max_tokens"):
        return left
    if stopping.max_tokens < 0:
        raise OutOfRange(field="max_tokens", value=stopping.max_tokens, minimum=0)
    return min(stopping.max_tokens, left)


def _stopping(stopping: generation.StoppingParams, target: Target) -> dict[str, Any]:
    if len(stopping.stop) > MAX_STOP_TEXTS:
        raise TooLong(field="stop", length=len(stopping.stop), limit=MAX_STOP_TEXTS)
    for text in stopping.stop:
        if not text:
            raise InvalidField(field="stop", problem="a stop text is empty")
        if len(text.encode()) > MAX_STOP_BYTES:
            raise TooLong(
                field="stop", length=len(text.encode()), limit=MAX_STOP_BYTES, unit="bytes"
            )
    if len(stopping.stop_token_ids) > MAX_STOP_TOKENS:
        raise TooLong(
            field="stop_token_ids", length=len(stopping.stop_token_ids), limit=MAX_STOP_TOKENS
        )
    _check_tokens("stop_token_ids", stopping.stop_token_ids, target.vocabulary_size)
    _check_range("min_tokens", stopping.min_tokens, 0, target.slot_tokens)
    return {
        "stop": tuple(stopping.stop),
        "stop_tokens": frozenset(stopping.stop_token_ids),
        "min_tokens": stopping.min_tokens,
        "ignore_eos": stopping.ignore_eos,
        "include_stop": stopping.include_stop,
    }


def _max_draft(options: generation.GenerationOptions) -> int:
    """Drafts are the server's choice where the request says nothing: they change no token. What is
    deterministic is computed token by token."""
    speculation, asked = options.speculation, MAX_DRAFT
    if speculation.HasField("max_draft_tokens"):
        asked = speculation.max_draft_tokens
        _check_range("speculation.max_draft_tokens", asked, 1, MAX_ASKED_DRAFT)
    is_off = speculation.HasField("enabled") and not speculation.enabled
    if is_off or options.deterministic:
        return 0
    return min(asked, MAX_DRAFT)


def _top_logprobs(output: generation.OutputOptions) -> int | None:
    if not output.HasField("top_logprobs"):
        return None
    _check_range("top_logprobs", output.top_logprobs, 0, MAX_LOGPROBS)
    return output.top_logprobs


def _cache_key(
    cache: generation.CacheOptions, principal: Principal, adapters: AdapterStack
) -> bytes:
    """Whose computed prefixes these are: cells hold what the adapters made of the tokens."""
    if len(cache.salt.encode()) > MAX_LABEL_BYTES:
        raise TooLong(
            field="cache.salt", length=len(cache.salt.encode()), limit=MAX_LABEL_BYTES, unit="bytes"
        )
    stack = ",".join(f"{adapter.digest}*{adapter.scale!r}" for adapter in adapters)
    owner = f"{len(stack)}:{stack}{len(principal.project)}:{principal.project}{cache.salt}"
    return hashlib.blake2b(owner.encode(), digest_size=16).digest()


def _may_reuse(options: generation.GenerationOptions) -> bool:
    """Cells that were computed beside others would not be the same twice."""
    asked = options.cache.reuse if options.cache.HasField("reuse") else True
    return asked and not options.deterministic


def _priority(scheduling: generation.SchedulingOptions, principal: Principal) -> int:
    asked = int(scheduling.priority)
    if asked == generation.PRIORITY_UNSPECIFIED:
        return int(principal.priority)
    _check_range("priority", asked, 1, int(principal.priority))
    return asked


def _queue_deadline(scheduling: generation.SchedulingOptions, now: float) -> float | None:
    if not scheduling.HasField("queue_timeout"):
        return None
    seconds = scheduling.queue_timeout.ToTimedelta().total_seconds()
    if seconds < 0:
        raise OutOfRange(field="queue_timeout", value=seconds, minimum=0)
    return now + seconds


def _resumed(
    options: generation.GenerationOptions,
    num_choices: int,
    sampling: Sampling,
    target: Target,
    prompt_tokens: int,
) -> dict[int, _Resumed]:
    if not options.resume:
        return {}
    if not options.sampling.HasField("seed"):
        raise MissingField(field="seed")
    resumed: dict[int, _Resumed] = {}
    for choice in options.resume:
        _check_range("resume.index", choice.index, 0, num_choices - 1)
        if choice.index in resumed:
            raise InvalidField(
                field="resume.index", problem=f"choice {choice.index} is named twice"
            )
        if sampling.has_hidden_state and not choice.snapshot_id:
            feature = "resume with mirostat or adaptive-p without a snapshot"
            raise FeatureUnsupported(feature=feature)
        _check_tokens("resume.output_token_ids", choice.output_token_ids, target.vocabulary_size)
        if prompt_tokens + len(choice.output_token_ids) > target.slot_tokens:
            raise ContextLengthExceeded(
                field="resume.output_token_ids",
                prompt_tokens=prompt_tokens + len(choice.output_token_ids),
                context_tokens=target.slot_tokens,
            )
        resumed[choice.index] = _Resumed(array("i", choice.output_token_ids), choice.snapshot_id)
    return resumed


def to_limits(asked: model_pb.ModelLimits, otherwise: RequestedLimits) -> RequestedLimits:
    """The sizes to load a model with; what is not asked for stays.

    Raises `OutOfRange`, or `UnsupportedField` for a size that follows from the others.
    """
    if asked.HasField("kv_bytes"):
        raise UnsupportedField(field="limits.kv_bytes")
    given = {}
    for name, (minimum, maximum) in _LIMITS.items():
        if asked.HasField(name):
            value = getattr(asked, name)
            if not minimum <= value <= maximum:
                raise OutOfRange(
                    field=f"limits.{name}", value=value, minimum=minimum, maximum=maximum
                )
            given[name] = value
    return replace(otherwise, **given)
