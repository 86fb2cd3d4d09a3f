import json
from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import AppliedAdapter
from inference_svc.engine.sampling_params import (
    LLAMA_CPP_ORDER,
    Adaptive,
    Dry,
    Mirostat,
    Sampling,
    Stage,
)
from inference_svc.engine_client.features import NEUTRAL, Features, effective_fields
from inference_svc.engine_client.form_schema import unenforced_part
from inference_svc.output_format import OutputFormat, OutputFormatKind
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


def _constraint(kind: OutputFormatKind | None, text: str = "{}") -> Constraint:
    form = None if kind is None else OutputFormat(kind, text, "constraint.x")
    return Constraint("{}", "constraint.x", form)


JSON = _constraint(OutputFormatKind.JSON_SCHEMA)
BOUNDED = _constraint(OutputFormatKind.JSON_SCHEMA, '{"type": "number", "maximum": 5}')
BUDGET = ReasoningSpec("<t>", ("</t>",), budget=3, closings=((1,),))
REFUSED = {
    "'constraint.x' (start it with --flag)": {"constraint": _constraint(None)},
    "'maximum' in 'constraint.x' (start it with --flag)": {"constraint": BOUNDED},
    "a limit of the reasoning with 'constraint.x'": {"constraint": JSON, "reasoning": BUDGET},
    "'logprobs' above 5": {"top_logprobs": 6},
    "'prompt_logprobs'": {"prompt_logprobs": 0},
    "'min_tokens'": {"min_tokens": 1},
    "'ignore_eos'": {"ignore_eos": True},
    "'deterministic'": {"deterministic": True},
    "'snapshot_id'": {"snapshot_id": "s"},
    "several 'adapters'": {"adapters": (AppliedAdapter("a", 1.0), AppliedAdapter("b", 1.0))},
    "a 'scale' of 'adapters' other than 1": {"adapters": (AppliedAdapter("a", 0.5),)},
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
    able = replace(VLLM, takes_grammars=True)
    for constraint in (_constraint(None), BOUNDED):
        able.check(make_request(constraint=constraint))


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "number", "maximum": 5}, "'maximum'"),
        ({"type": "object", "minProperties": 1}, "'minProperties'"),
        ({"type": "integer", "multipleOf": 5}, "'multipleOf'"),
        ({"properties": {"a": {"type": "string", "format": "email"}}}, "'format'"),
        ({"type": "array", "items": {"not": {}}}, "'not'"),
        ({"anyOf": [{"type": "null"}, {"pattern": "a"}]}, "'pattern'"),
        ({"anyOf": [{"type": "null"}], "type": "object"}, "'type'"),
        ({"oneOf": [{"type": "null"}]}, "'oneOf'"),
        ({"$defs": {"a": {"if": {}}}, "$ref": "#/$defs/a"}, "'if'"),
        ({"$defs": {"a": {}}, "$ref": "#/$defs/a", "required": ["b"]}, "'required'"),
        ({"$ref": "#/$defs/a"}, "'$ref'"),
        ({"$ref": "#"}, "'$ref'"),
        ({"enum": ["a", 1], "type": "string"}, "'type' beside 'enum'"),
        ({"const": True, "type": "integer"}, "'type' beside 'const'"),
        ({"const": 1, "enum": [2]}, "'enum'"),
        ({"const": 10**18}, f"the number {10**18}"),
        ({"required": ["a"]}, "'required' of what is not in 'properties'"),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            "'additionalProperties' beside 'properties'",
        ),
        ({"additionalProperties": {"minimum": 1}}, "'minimum'"),
        ({"items": True}, "the schema true"),
    ],
)
def test_what_an_engine_may_ignore_in_a_schema_is_named(schema: Any, part: str) -> None:
    assert unenforced_part(json.dumps(schema)) == part


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"const": {"maximum": 5}},
        {"type": ["string", "null"], "enum": ["a", None], "description": "one"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {
            "title": "Node",
            "$ref": "#/$defs/Node",
            "$defs": {
                "Node": {
                    "type": "object",
                    "properties": {
                        "maximum": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                        "next": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                    },
                    "required": ["maximum"],
                    "additionalProperties": False,
                }
            },
        },
    ],
)
def test_structures_references_and_fixed_values_are_enforced(schema: Any) -> None:
    assert unenforced_part(json.dumps(schema)) == ""
