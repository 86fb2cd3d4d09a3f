"""What each field of VllmEngine's requests becomes."""

import math
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as inference
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inference_svc.vllm_grpc.vllm_requests import rename, to_embed_request, to_generate_request
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    InvalidField,
    MissingField,
    OutOfRange,
    TooLong,
    UnsupportedField,
)

IDS = pb.TokenizedInput(input_ids=[1, 2])
TENSOR = pb.TensorData(inline=b"1")
PICTURE = pb.MultimodalInputs(pixel_values=TENSOR)
TEXT_ONLY = {"spaces_between_special_tokens", "grammar_from_first_token", "original_text", "stream"}
"""What says how routers detokenize or read, or what is always so here: the ids are the same."""
REFUSED: dict[str, Any] = {
    "kv_transfer_params": pb.KvTransferParams(remote_host="h", remote_port=1),
    "kv_transfer_params_json": "{}",
    "mm_inputs": PICTURE,
    "extra_mm_inputs": [PICTURE],
    "media_refs": pb.MediaRefs(items=[pb.MediaRef(url="https://example.org/a.png")]),
    "data_parallel_rank": 1,
}
REQUEST_FIELDS: dict[str, Any] = {
    "request_id": ("r", {"options.label": "r"}),
    "tokenized": (pb.TokenizedInput(input_ids=[7]), {"token_ids.ids": [7]}),
    "text": ("hi", {"text": "hi", "parse_special": True}),
    "sampling_params": (pb.SamplingParams(min_p=0.5), {"options.sampling.min_p": 0.5}),
    "stream": (True, {}),
}
FIELDS: dict[str, Any] = {
    "temperature": (0.0, {"sampling.temperature": 0.0}),
    "top_p": (0.5, {"sampling.top_p": 0.5}),
    "top_k": (2**32 - 1, {"sampling.top_k": 2**31 - 1}),
    "min_p": (0.25, {"sampling.min_p": 0.25}),
    "frequency_penalty": (0.5, {"sampling.frequency_penalty": 0.5}),
    "presence_penalty": (0.5, {"sampling.presence_penalty": 0.5}),
    "repetition_penalty": (1.5, {"sampling.repetition_penalty": 1.5}),
    "max_tokens": (0, {"stopping.max_tokens": 0}),
    "min_tokens": (3, {"stopping.min_tokens": 3}),
    "stop": (["a"], {"stopping.stop": ["a"]}),
    "stop_token_ids": ([5], {"stopping.stop_token_ids": [5]}),
    "skip_special_tokens": (True, {"output.special_tokens": False}),
    "spaces_between_special_tokens": (True, {}),
    "ignore_eos": (True, {"stopping.ignore_eos": True}),
    "n": (3, {"num_choices": 3}),
    "logprobs": (0, {"output.top_logprobs": 0}),
    "prompt_logprobs": (2, {"output.prompt_logprobs": 2}),
    "seed": (-1, {"sampling.seed": 2**64 - 1}),
    "include_stop_str_in_output": (True, {"stopping.include_stop": True}),
    "logit_bias": ({4: -1.5}, {"sampling.logit_bias.0.token_id": 4}),
    "truncate_prompt_tokens": (-1, {"truncate_prompt_tokens": -1}),
    "grammar_from_first_token": (True, {}),
    "json_schema": ('{"type": "object"}', {"constraint.json_schema": '{"type": "object"}'}),
    "regex": ("a+", {"constraint.regex": "a+"}),
    "grammar": ('start: "a"', {"constraint.lark": 'start: "a"'}),
    "structural_tag": ("{}", UnsupportedField),
    "json_object": (True, {"constraint.json_object": True}),
    "choice": (pb.ChoiceConstraint(choices=["a"]), {"constraint.choices.values": ["a"]}),
}


def sampled(**values: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(tokenized=IDS, sampling_params=pb.SamplingParams(**values))


def convert(request: pb.GenerateRequest) -> inference.GenerateRequest:
    return to_generate_request(request, "demo")


def find(message: Any, path: str) -> Any:
    for step in path.split("."):
        message = message[int(step)] if step.isdigit() else getattr(message, step)
    return message


def names_of(*messages: type[Any]) -> set[str]:
    return {field.name for message in messages for field in message.DESCRIPTOR.fields}


def test_no_field_of_the_contract_is_forgotten() -> None:
    """A release of the protos with another field fails here, until it is honoured or refused."""
    assert names_of(pb.SamplingParams) == {*FIELDS}
    assert names_of(pb.GenerateRequest) == {*REQUEST_FIELDS, *REFUSED}
    assert names_of(pb.TokenizedInput) == {"input_ids", "original_text"}
    assert names_of(pb.ChoiceConstraint) == {"choices"}
    assert names_of(pb.EmbedRequest) == {"request_id", "tokenized"}
    assert names_of(pb.AbortRequest) == {"request_ids"}
    assert names_of(pb.GetLoadsRequest) == {"dp_rank", "include"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_sampling_parameter_is_honoured_or_refused(name: str) -> None:
    value, expected = FIELDS[name]
    request = sampled(**{name: value})

    if expected is UnsupportedField:
        with pytest.raises(UnsupportedField) as error:
            convert(request)
        assert error.value.field == name
        return
    converted, unset = convert(request), convert(sampled())
    if name in TEXT_ONLY:
        assert converted == unset
        return
    assert converted != unset
    for path, wanted in expected.items():
        root: Any = converted if name == "truncate_prompt_tokens" else converted.options
        assert find(root, path) == wanted


@pytest.mark.parametrize("name", REQUEST_FIELDS)
def test_a_field_of_the_request_is_converted(name: str) -> None:
    value, expected = REQUEST_FIELDS[name]
    request = pb.GenerateRequest(tokenized=IDS)
    request.MergeFrom(pb.GenerateRequest(**{name: value}))
    if name == "tokenized":
        request = pb.GenerateRequest(tokenized=value)

    converted = convert(request)

    for path, wanted in expected.items():
        assert find(converted, path) == wanted


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises((UnsupportedField, OutOfRange)) as error:
        convert(pb.GenerateRequest(tokenized=IDS, **{name: REFUSED[name]}))
    assert error.value.field == name


def test_unset_parameters_have_the_defaults_of_vllm() -> None:
    """In which all filters are off; zero is unset where it could have no other meaning."""
    converted = convert(pb.GenerateRequest(tokenized=IDS))

    sampling, stopping = converted.options.sampling, converted.options.stopping
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1, 1, 1)
    assert (sampling.HasField("top_k"), sampling.top_k) == (True, 0)
    assert (sampling.HasField("min_p"), sampling.min_p) == (True, 0)
    assert sampling.penalty_last_n == -1
    assert not sampling.HasField("seed")
    assert not stopping.HasField("max_tokens")
    assert converted.options.num_choices == 1
    assert converted.options.output.token_ids
    assert not converted.options.output.HasField("top_logprobs")
    assert not converted.options.HasField("constraint")
    assert converted.model == "demo"


def test_a_grammar_with_rules_of_gbnf_is_one() -> None:
    converted = convert(sampled(grammar='root ::= "a"'))

    assert converted.options.constraint.gbnf == 'root ::= "a"'


@pytest.mark.parametrize(
    ("values", "error", "field"),
    [
        ({"temperature": -1.0}, OutOfRange, "temperature"),
        ({"temperature": math.nan}, OutOfRange, "temperature"),
        ({"top_p": 1.5}, OutOfRange, "top_p"),
        ({"n": 2**32 - 1}, OutOfRange, "n"),
        ({"logprobs": -1}, OutOfRange, "logprobs"),
        ({"logprobs": 21}, OutOfRange, "logprobs"),
        ({"prompt_logprobs": -1}, OutOfRange, "prompt_logprobs"),
        ({"truncate_prompt_tokens": -2}, OutOfRange, "truncate_prompt_tokens"),
        ({"stop": ["x" * 257]}, TooLong, "stop[0]"),
        ({"stop_token_ids": [2**31]}, OutOfRange, "stop_token_ids"),
        ({"logit_bias": {1: 101.0}}, OutOfRange, "logit_bias[0].bias"),
        ({"choice": pb.ChoiceConstraint()}, MissingField, "choice"),
    ],
)
def test_limits_are_named_in_the_words_of_the_contract(
    values: dict[str, Any], error: type[DomainError], field: str
) -> None:
    with pytest.raises(error) as raised:
        convert(sampled(**values))
    assert raised.value.field == field


def test_an_input_is_required_and_its_ids_are_those_of_a_vocabulary() -> None:
    with pytest.raises(MissingField) as missing:
        convert(pb.GenerateRequest())
    with pytest.raises(OutOfRange) as beyond:
        convert(pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[2**32 - 1])))
    with pytest.raises(TooLong) as long:
        convert(pb.GenerateRequest(tokenized=IDS, request_id="x" * 257))

    fields = [each.value.field for each in (missing, beyond, long)]
    assert fields == ["input", "tokenized.input_ids", "request_id"]


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (ContextLengthExceeded(field="prompt", prompt_tokens=9, context_tokens=8), "input"),
        (InvalidField(field="constraint.lark", problem="no"), "grammar"),
        (InvalidField(field="constraint.json_schema", problem="no"), "json_schema"),
        (InvalidField(field="inputs[0]", problem="no"), "tokenized[0]"),
        (InvalidField(field="min_tokens", problem="no"), "min_tokens"),
    ],
)
def test_errors_of_the_service_get_the_names_of_the_contract(
    error: DomainError, field: str
) -> None:
    assert rename(error).field == field


def test_an_embedding_is_that_of_its_tokens() -> None:
    converted = to_embed_request(pb.EmbedRequest(tokenized=IDS), "demo")

    assert converted.model == "demo"
    assert [list(each.token_ids.ids) for each in converted.inputs] == [[1, 2]]
    with pytest.raises(MissingField):
        to_embed_request(pb.EmbedRequest(), "demo")
