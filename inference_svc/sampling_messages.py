"""Converts sampling parameters of requests, and those of models, whose limits are in the proto."""

from dataclasses import fields, replace
from typing import Any, Final

from corral.inference.v1 import sampling_pb2 as sampling_pb

from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from svc_kit.rpc.message_mapper import MessageMapper

_BY_HAND: Final = ["dry", "mirostat", "adaptive", "logit_bias"]
_SAMPLING: Final = MessageMapper(
    Sampling,
    sampling_pb.SamplingParams,
    renamed={"stages": "samplers"},
    only_domain=_BY_HAND,
    only_message=[*_BY_HAND, "seed"],
)
_DRY: Final = MessageMapper(Dry, sampling_pb.DryParams)
_MIROSTAT: Final = MessageMapper(Mirostat, sampling_pb.MirostatParams)
_ADAPTIVE: Final = MessageMapper(Adaptive, sampling_pb.AdaptiveParams)


def to_sampling(pb: sampling_pb.SamplingParams, defaults: Sampling) -> Sampling:
    """Override `defaults` with the set fields. Only enums are validated."""
    sampling = _SAMPLING.from_message(pb, **_values(defaults))
    changes: dict[str, Any] = {}
    if pb.HasField("dry"):
        changes["dry"] = _DRY.from_message(pb.dry, **_values(defaults.dry or Dry()))
    if pb.HasField("mirostat"):
        is_on = pb.mirostat.version != 0
        changes["mirostat"] = _MIROSTAT.from_message(pb.mirostat) if is_on else None
    if pb.HasField("adaptive"):
        is_on = pb.adaptive.HasField("target") and not pb.adaptive.target < 0
        changes["adaptive"] = _ADAPTIVE.from_message(pb.adaptive) if is_on else None
    if pb.logit_bias:
        changes["logit_bias"] = tuple((entry.token_id, entry.bias) for entry in pb.logit_bias)
    return replace(sampling, **changes)


def from_sampling(sampling: Sampling) -> sampling_pb.SamplingParams:
    """Convert the default sampling parameters of a model."""
    params = _SAMPLING.to_message(sampling)
    if sampling.mirostat is not None:
        params.mirostat.CopyFrom(_MIROSTAT.to_message(sampling.mirostat))
    return params


def _values(values: Sampling | Dry) -> dict[str, Any]:
    return {field.name: getattr(values, field.name) for field in fields(values)}
