"""Tests of a model's default sampling parameters."""

from typing import Any

import pytest

from inference_svc.engine.sampling_params import Mirostat, Sampling, Stage
from inference_svc.model_pool.loader import default_sampling
from inference_svc.model_settings import SamplingSettings
from svc_kit.lifecycle import StartupError


def defaults(hints: dict[str, str | float] | None = None, **settings: Any) -> Sampling:
    return default_sampling(
        hints or {}, SamplingSettings(**settings), vocabulary_size=100, context_tokens=512
    )


def test_unset_parameters_have_llama_cpps_defaults() -> None:
    assert defaults() == Sampling()


def test_settings_override_the_hints_of_the_file() -> None:
    sampling = defaults({"temp": 0.5, "top_k": 20, "penalty_repeat": 1.1}, temperature=0.25)

    assert (sampling.temperature, sampling.top_k) == (0.25, 20)
    assert (sampling.repetition_penalty, sampling.min_p) == (1.1, 0.05)


def test_a_file_may_set_mirostat_and_the_sampler_order() -> None:
    """Unknown sampler names are ignored."""
    hints: dict[str, str | float] = {
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "sequence": "top_k;new_one;typ_p;temperature",
    }
    sampling = defaults(hints)

    assert sampling.mirostat == Mirostat(2, tau=4.0)
    assert sampling.stages == (Stage.TOP_K, Stage.TYPICAL_P, Stage.TEMPERATURE)


@pytest.mark.parametrize(
    ("hints", "settings", "message"),
    [
        ({"top_p": 1.5}, {}, "top_p"),
        ({"temp": "hot"}, {}, "general.sampling"),
        ({}, {"temperature": -1}, "temperature"),
        ({}, {"penalty_last_n": 513}, "penalty_last_n"),
    ],
)
def test_invalid_sampling_parameters_fail_the_load(
    hints: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """The message has the name of the field."""
    with pytest.raises(StartupError, match=message):
        defaults(hints, **settings)
