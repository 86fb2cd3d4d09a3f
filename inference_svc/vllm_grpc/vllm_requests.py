"""Converts requests of VllmEngine to those of InferenceService.

Each field is honoured or refused by name. Unset and zero mean what they mean in vLLM's servicer,
where filters are off; routers fill in the defaults of the model, which GetModelInfo tells.
"""

from collections.abc import Sequence
from typing import Any, Final

from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as inference
from corral.inference.v1 import sampling_pb2 as sampling
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from dialects.shared.errors import renamed, with_field
from svc_kit.errors import DomainError, MissingField, OutOfRange, UnsupportedField
from svc_kit.rpc.field_limits import check_limits

_INT32_MAX: Final = 2**31 - 1
_ALL_TOKENS: Final = -1
_REFUSED: Final = {
    **dict.fromkeys(
        ("kv_transfer_params", "kv_transfer_params_json"),
        "KV caches are not transferred between engines",
    ),
    **dict.fromkeys(("mm_inputs", "extra_mm_inputs", "media_refs"), "only text is taken here"),
}
_NAMES: Final = {
    "include_stop": "include_stop_str_in_output",
    "inputs": "tokenized",
    "label": "request_id",
    "prompt": "input",
    "top_logprobs": "logprobs",
}
_CONSTRAINT_NAMES: Final = {"choices": "choice", "gbnf": "grammar", "lark": "grammar"}


def rename(error: DomainError) -> DomainError:
    """The same error with the name that its field has in VllmEngine."""
    if error.field is None:
        return error
    head, dot, rest = error.field.partition(".")
    if head == "constraint" and rest:
        return with_field(error, _CONSTRAINT_NAMES.get(rest, rest))
    name, bracket, index = head.partition("[")
    return with_field(error, _NAMES.get(name, name) + bracket + index + dot + rest)


def to_generate_request(request: pb.GenerateRequest, model: str) -> inference.GenerateRequest:
    """Convert a request, for the model with this name. Raises the `DomainError` of the first field
    that is refused or beyond its limit."""
    for name, problem in _REFUSED.items():
        if _is_set(request, name):
            raise UnsupportedField(field=name, problem=problem)
    if request.data_parallel_rank:  # all engines here have one rank
        rank = request.data_parallel_rank
        raise OutOfRange(field="data_parallel_rank", value=rank, minimum=0, maximum=0)
    params = request.sampling_params
    converted = inference.GenerateRequest(model=model, options=_options(request))
    match request.WhichOneof("input"):
        case "tokenized":
            ids = _token_ids("tokenized.input_ids", request.tokenized.input_ids)
            converted.token_ids.ids.extend(ids)
        case "text":  # as transformers' tokenizers do: control tokens are parsed
            converted.text, converted.parse_special = request.text, True
        case _:
            raise MissingField(field="input")
    if params.HasField("truncate_prompt_tokens"):
        converted.truncate_prompt_tokens = params.truncate_prompt_tokens
    with renamed(rename):
        check_limits(converted)
    return converted


def to_embed_request(request: pb.EmbedRequest, model: str) -> inference.EmbedRequest:
    """Convert a request, for the model with this name. Raises a `DomainError` like
    `to_generate_request`."""
    if not request.HasField("tokenized"):
        raise MissingField(field="tokenized")
    ids = _token_ids("tokenized.input_ids", request.tokenized.input_ids)
    tokens = inference.TextOrTokens(token_ids=inference.TokenIds(ids=ids))
    return inference.EmbedRequest(model=model, inputs=[tokens])


def _is_set(message: Any, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return bool(getattr(message, name)) if field.is_repeated else message.HasField(name)


def _token_ids(field: str, ids: Sequence[int]) -> Sequence[int]:
    """The ids as they are. Raises `OutOfRange` for one that no vocabulary has."""
    highest = max(ids, default=0)
    if highest > _INT32_MAX:
        raise OutOfRange(field=field, value=highest, minimum=0, maximum=_INT32_MAX)
    return ids


def _options(request: pb.GenerateRequest) -> generation.GenerationOptions:
    params = request.sampling_params
    return generation.GenerationOptions(
        sampling=_sampling(params),
        stopping=generation.StoppingParams(
            max_tokens=_at_most_int32(params.max_tokens) if params.HasField("max_tokens") else None,
            min_tokens=_at_most_int32(params.min_tokens),
            stop=params.stop,
            stop_token_ids=_token_ids("stop_token_ids", params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            include_stop=params.include_stop_str_in_output,
        ),
        output=generation.OutputOptions(
            token_ids=True,
            top_logprobs=params.logprobs if params.HasField("logprobs") else None,
            prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
            # Stop texts are found in the text with or without control tokens.
            special_tokens=not params.skip_special_tokens,
        ),
        constraint=_constraint(params),
        num_choices=_at_most_int32(params.n or 1),
        label=request.request_id,
    )


def _sampling(params: pb.SamplingParams) -> sampling.SamplingParams:
    biases = params.logit_bias.items()
    return sampling.SamplingParams(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_p=params.top_p or 1.0,
        top_k=_at_most_int32(params.top_k),
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        penalty_last_n=_ALL_TOKENS,
        seed=params.seed % 2**64 if params.HasField("seed") else None,
        logit_bias=[sampling.LogitBias(token_id=token, bias=bias) for token, bias in biases],
    )


def _constraint(params: pb.SamplingParams) -> generation.Constraint | None:
    match params.WhichOneof("constraint"):
        case None:
            return None
        case "grammar":  # told apart as in vLLM, which takes both
            if "::=" in params.grammar:
                return generation.Constraint(gbnf=params.grammar)
            return generation.Constraint(lark=params.grammar)
        case "choice":
            choices = generation.TextChoices(values=params.choice.choices)
            return generation.Constraint(choices=choices)
        case "json_schema":
            return generation.Constraint(json_schema=params.json_schema)
        case "regex":
            return generation.Constraint(regex=params.regex)
        case "json_object":
            return generation.Constraint(json_object=params.json_object)
        case kind:  # structural_tag
            problem = "send json_schema, regex, grammar or choice"
            raise UnsupportedField(field=kind, problem=problem)


def _at_most_int32(value: int) -> int:
    """Larger numbers of tokens are beyond each limit, too."""
    return min(value, _INT32_MAX)
