from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint, OutputFormat, OutputFormatKind
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.sampling_params import (
    LLAMA_CPP_ORDER,
    Adaptive,
    Dry,
    Mirostat,
    Sampling,
    Stage,
)
from inference_svc.engine_client.features import NEUTRAL, Features, effective_fields
from svc_kit.errors import FeatureUnsupported
from tests.support.sequences import make_request

VLLM = Features(
    "vllm 1",
    frozenset({"top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty"}),
    constraints=frozenset({OutputFormatKind.JSON_SCHEMA}),
    grammar_flag="--flag",
    max_logprobs=5,
)
SAMPLED = Sampling(temperature=1.0)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, []),
        ({"repetition_penalty": 1.1}, []),
        ({"repetition_penalty": 1.1, "penalty_last_n": -1}, []),
        ({"repetition_penalty": 1.1, "penalty_last_n": 32}, ["penalty_last_n"]),
        ({"presence_penalty": 0.5}, ["presence_penalty"]),
        ({"presence_penalty": 0.5, "penalty_last_n": 0}, []),
        ({"typical_p": 0.5}, ["typical_p"]),
        ({"typical_p": 0.5, "temperature": 0.0}, []),
        ({"xtc_probability": 0.5}, ["xtc_probability"]),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.6}, []),
        ({"dynatemp_range": 0.5}, ["dynatemp_range"]),
        ({"dynatemp_exponent": 2.0}, []),
        ({"dry": Dry(0.8)}, ["dry.multiplier"]),
        ({"dry": Dry(0.0)}, []),
        ({"mirostat": Mirostat(2)}, ["mirostat.version"]),
        ({"adaptive": Adaptive(0.5)}, ["adaptive.target"]),
        ({"logit_bias": ((1, 2.0),)}, ["logit_bias"]),
        ({"allowed_token_ids": (1,)}, ["allowed_token_ids"]),
        ({"min_keep": 1}, []),
        ({"min_keep": 2}, ["min_keep"]),
        ({"stages": (Stage.TOP_K, Stage.TEMPERATURE)}, []),
        ({"stages": (Stage.TEMPERATURE, Stage.TOP_K)}, ["samplers"]),
        ({"stages": (Stage.TOP_K,), "typical_p": 0.5}, []),
    ],
)
def test_only_fields_that_act_must_be_honoured(changes: dict[str, Any], missing: list[str]) -> None:
    sampling = replace(SAMPLED, **changes)
    assert VLLM.missing_sampling(sampling) == missing


def test_a_stage_that_is_not_named_has_neutral_values() -> None:
    values = effective_fields(replace(SAMPLED, stages=(Stage.TOP_K,)))
    assert (values["top_k"], values["top_p"], values["min_p"]) == (40, 1.0, 0.0)
    assert values["stages"] == LLAMA_CPP_ORDER


def test_neutral_values_are_those_of_all_fields() -> None:
    assert {*NEUTRAL, "temperature"} == set(effective_fields(SAMPLED))


def _constraint(kind: OutputFormatKind | None) -> Constraint:
    form = None if kind is None else OutputFormat(kind, "", "constraint.x")
    return Constraint("{}", "constraint.x", form)


JSON = _constraint(OutputFormatKind.JSON_SCHEMA)
BUDGET = ReasoningSpec("<t>", ("</t>",), budget=3, closings=((1,),))
REFUSED = {
    "'constraint.x' (start it with --flag)": {"constraint": _constraint(None)},
    "a limit of the reasoning with 'constraint.x'": {"constraint": JSON, "reasoning": BUDGET},
    "'logprobs' above 5": {"top_logprobs": 6},
    "'prompt_logprobs'": {"prompt_logprobs": 0},
    "'min_tokens'": {"min_tokens": 1},
    "'ignore_eos'": {"ignore_eos": True},
    "'deterministic'": {"deterministic": True},
    "'snapshot_id'": {"snapshot_id": "s"},
}


@pytest.mark.parametrize(("feature", "changes"), REFUSED.items(), ids=REFUSED)
def test_what_the_engine_lacks_is_refused_by_name(feature: str, changes: dict[str, Any]) -> None:
    request = make_request(**changes)
    with pytest.raises(FeatureUnsupported) as caught:
        VLLM.check(request)
    assert caught.value == FeatureUnsupported(feature=f"{feature} with the engine vllm 1")


@pytest.mark.parametrize(
    "changes",
    [{"constraint": JSON}, {"reasoning": BUDGET}, {"top_logprobs": 5}, {"keep": True}, {}],
)
def test_what_the_engine_honours_passes(changes: dict[str, Any]) -> None:
    VLLM.check(make_request(**changes))


def test_an_engine_that_takes_grammars_takes_every_constraint() -> None:
    replace(VLLM, takes_grammars=True).check(make_request(constraint=_constraint(None)))
