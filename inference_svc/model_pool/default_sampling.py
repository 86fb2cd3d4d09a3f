"""Default sampling of a model: llama.cpp's, overridden by the model's file (`general.sampling.*`),
overridden by settings.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inference_svc.config import SamplingSettings
from inference_svc.engine.sampling_params import Mirostat, Sampling, Stage
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError

# `general.sampling.*` keys, named as in llama.cpp, to fields of `Sampling`.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], int | float]]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_last_n": ("penalty_last_n", int),
    "penalty_repeat": ("repetition_penalty", float),
}
_STAGES = {stage.value: stage for stage in Stage} | {"typ_p": Stage.TYPICAL_P}


def default_sampling(
    hints: Mapping[str, str | float],
    settings: SamplingSettings,
    *,
    vocabulary_size: int,
    context_tokens: int,
) -> Sampling:
    """Return the sampling parameters for fields that a request leaves unset.

    Raises `StartupError`, with the name of the field, if a value is invalid.
    """
    overrides = {name: value for name, value in settings if value is not None}
    try:
        sampling = replace(_from_hints(hints), **overrides)
        sampling.validate(vocabulary_size=vocabulary_size, context_tokens=context_tokens)
    except DomainError as error:
        raise StartupError(f"default sampling: {error.message}") from error
    except (TypeError, ValueError) as error:
        raise StartupError(f"general.sampling in the model's file: {error}") from error
    return sampling


def _from_hints(hints: Mapping[str, str | float]) -> Sampling:
    numbers: dict[str, Any] = {
        field: convert(hints[name]) for name, (field, convert) in _FIELDS.items() if name in hints
    }
    return replace(Sampling(), **numbers, mirostat=_mirostat(hints), stages=_stages(hints))


def _mirostat(hints: Mapping[str, str | float]) -> Mirostat | None:
    version = int(hints.get("mirostat", 0))
    parameters = {
        name: float(hints[f"mirostat_{name}"])
        for name in ("tau", "eta")
        if f"mirostat_{name}" in hints
    }
    return Mirostat(version, **parameters) if version else None


def _stages(hints: Mapping[str, str | float]) -> tuple[Stage, ...]:
    """The sampler order. Unknown names are ignored, as in llama.cpp."""
    names = str(hints.get("sequence", "")).split(";")
    return tuple(_STAGES[name] for name in names if name in _STAGES) or Sampling().stages
