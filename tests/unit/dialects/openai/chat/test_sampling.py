"""Sampling fields to SamplingParams."""

from typing import Any

import pytest
from corral.inference.v1 import sampling_pb2

from dialects.shared.fields import validate
from dialects.shared.sampling import SamplingFields, sampling_params


def make_params(**fields: Any) -> sampling_pb2.SamplingParams:
    return sampling_params(validate(SamplingFields, fields))


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("temperature", 0.0, "temperature"),
        ("top_p", 0.5, "top_p"),
        ("top_k", 7, "top_k"),
        ("min_p", 0.25, "min_p"),
        ("presence_penalty", -0.5, "presence_penalty"),
        ("repeat_penalty", 1.5, "repetition_penalty"),
        ("repeat_last_n", -1, "penalty_last_n"),
        ("dry_multiplier", 0.5, "dry.multiplier"),
        ("dry_base", 2.0, "dry.base"),
        ("dry_allowed_length", 4, "dry.allowed_length"),
        ("dry_penalty_last_n", 9, "dry.penalty_last_n"),
        ("dry_sequence_breakers", ["\n"], "dry.sequence_breakers"),
        ("mirostat", 2, "mirostat.version"),
        ("mirostat_mode", 1, "mirostat.version"),
        ("adaptive_target", 0.5, "adaptive.target"),
        ("adaptive_decay", 0.5, "adaptive.decay"),
        ("seed", 42, "seed"),
    ],
)
def test_every_field_is_converted(field: str, value: Any, path: str) -> None:
    """To the corresponding field of the proto."""
    converted: Any = make_params(**{field: value})
    for step in path.split("."):
        converted = getattr(converted, step)

    assert converted == value


@pytest.mark.parametrize(
    ("seed", "sent"), [(-1, None), (0, 0), (-2, 2**64 - 2), (2**63, 2**63), (None, None)]
)
def test_negative_seeds_keep_their_bits(seed: int | None, sent: int | None) -> None:
    """-1 means a random seed."""
    params = make_params(seed=seed)

    assert (params.seed if params.HasField("seed") else None) == sent


@pytest.mark.parametrize("biases", [{"5": -2, "9": -100}, [[5, -2], [9, False]]])
def test_biases_have_two_forms(biases: Any) -> None:
    """OpenAI's map and llama-server's pairs."""
    sent = make_params(logit_bias=biases).logit_bias

    assert [(bias.token_id, bias.bias) for bias in sent] == [(5, -2.0), (9, -100.0)]


def test_top_k_minus_one_means_no_limit() -> None:
    """As in vLLM."""
    assert make_params(top_k=-1).top_k == 0


def test_mirostat_settings_require_mirostat() -> None:
    """They are ignored if it is off."""
    on = make_params(mirostat=2, mirostat_tau=4.0, mirostat_eta=0.25).mirostat

    assert (on.version, on.tau, on.eta) == (2, 4.0, 0.25)
    assert not make_params(mirostat=0, mirostat_tau=4.0).HasField("mirostat")


def test_samplers_keep_their_order() -> None:
    """The caller's order is passed on."""
    assert list(make_params(samplers=["min_p", "typ_p", "infill", "temperature"]).samplers) == [
        sampling_pb2.SAMPLER_KIND_MIN_P,
        sampling_pb2.SAMPLER_KIND_TYPICAL_P,
        sampling_pb2.SAMPLER_KIND_INFILL,
        sampling_pb2.SAMPLER_KIND_TEMPERATURE,
    ]


def test_adaptive_p_is_ignored_in_samplers() -> None:
    """It is always last and enabled by adaptive_target."""
    params = make_params(samplers=["adaptive_p", "min_p"], adaptive_target=0.5)

    assert list(params.samplers) == [sampling_pb2.SAMPLER_KIND_MIN_P]
    assert params.adaptive.target == 0.5
