"""Where the sampling settings of a request that gives none come from."""

from typing import Any

import pytest

from inference_svc.config import SamplingSettings
from inference_svc.engine.sampling_params import Mirostat, Sampling, Stage
from inference_svc.model_pool.default_sampling import default_sampling
from svc_kit.lifecycle import StartupError


def chosen(hints: dict[str, str | float] | None = None, **settings: Any) -> Sampling:
    """The defaults of a model with these recommendations and settings."""
    return default_sampling(
        hints or {}, SamplingSettings(**settings), vocabulary_size=100, context_tokens=512
    )


def test_llama_cpps_defaults_hold_where_nobody_says_anything() -> None:
    """They are those of `Sampling`."""
    assert chosen() == Sampling()


def test_a_models_file_recommends_and_the_operator_decides() -> None:
    """Each for the fields that it names."""
    sampling = chosen({"temp": 0.5, "top_k": 20, "penalty_repeat": 1.1}, temperature=0.25)

    assert (sampling.temperature, sampling.top_k) == (0.25, 20)
    assert (sampling.repetition_penalty, sampling.min_p) == (1.1, 0.05)


def test_a_file_may_ask_for_mirostat_and_an_order_of_samplers() -> None:
    """Names of samplers that are not known here are left out."""
    hints: dict[str, str | float] = {
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "sequence": "top_k;new_one;typ_p;temperature",
    }
    sampling = chosen(hints)

    assert sampling.mirostat == Mirostat(2, tau=4.0)
    assert sampling.stages == (Stage.TOP_K, Stage.TYPICAL_P, Stage.TEMPERATURE)


@pytest.mark.parametrize(
    ("hints", "settings", "said"),
    [
        ({"top_p": 1.5}, {}, "top_p"),
        ({"temp": "hot"}, {}, "general.sampling"),
        ({}, {"temperature": -1}, "temperature"),
        ({}, {"penalty_last_n": 513}, "penalty_last_n"),
    ],
)
def test_what_no_sampler_can_do_keeps_the_model_from_loading(
    hints: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    """With the field's name."""
    with pytest.raises(StartupError, match=said):
        chosen(hints, **settings)
