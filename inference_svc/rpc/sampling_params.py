"""Converts sampling parameters between protos and the engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from corral.inference.v1 import sampling_pb2 as sampling_pb

from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from svc_kit.errors import InvalidField

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


def to_sampling(pb: sampling_pb.SamplingParams, defaults: Sampling) -> Sampling:
    """Override `defaults` with the set fields. Only enums are validated here."""
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
    """Convert the default sampling parameters of a model."""
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
