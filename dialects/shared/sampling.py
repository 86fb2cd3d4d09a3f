"""Sampling fields of OpenAI, llama.cpp and vLLM, converted to SamplingParams."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from corral.inference.v1 import sampling_pb2
from pydantic import Field, Tag

from dialects.shared.fields import (
    BY_KIND,
    INT32_MAX,
    MAX_TOKENS,
    TokenId,
    WireModel,
    message_of,
    resolve_alias,
)
from svc_kit.errors import InvalidField, InvalidType, OutOfRange, UnsupportedValue
from svc_kit.rpc.field_limits import limit

UINT64 = 2**64
_limit = partial(limit, sampling_pb2.SamplingParams)
Repetition = Annotated[float, _limit("repetition_penalty")]
Breaker = Annotated[str, _limit("dry.sequence_breakers[]")]
Bias = Annotated[float, _limit("logit_bias.bias")]
LogitBias = Annotated[
    Annotated[dict[str, Bias], _limit("logit_bias"), Tag("~object")]
    | Annotated[list[Any], _limit("logit_bias"), Tag("~array")],
    BY_KIND,
]


class SamplingFields(WireModel):
    temperature: Annotated[float, _limit("temperature")] | None = Field(
        None, description="0 always takes the most probable token. Default: 1."
    )
    top_p: Annotated[float, _limit("top_p")] | None = Field(
        None, description="Default: 1 (all tokens)."
    )
    frequency_penalty: Annotated[float, _limit("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, _limit("presence_penalty")] | None = None
    logit_bias: LogitBias | None = Field(
        None, description='{"token id": bias} or [[token id, bias or false], ...].'
    )
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = Field(
        None, description="Makes sampling repeatable; -1 chooses a random seed."
    )
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = Field(
        None, description="Default: 0 (all tokens), as is -1."
    )
    min_p: Annotated[float, _limit("min_p")] | None = Field(
        None, description="Default: 0 (all tokens)."
    )
    typical_p: Annotated[float, _limit("typical_p")] | None = None
    top_n_sigma: Annotated[float, _limit("top_n_sigma")] | None = None
    xtc_probability: Annotated[float, _limit("xtc_probability")] | None = None
    xtc_threshold: Annotated[float, _limit("xtc_threshold")] | None = None
    dynatemp_range: Annotated[float, _limit("dynatemp_range")] | None = None
    dynatemp_exponent: Annotated[float, _limit("dynatemp_exponent")] | None = None
    min_keep: Annotated[int, _limit("min_keep")] | None = None
    repeat_penalty: Repetition | None = Field(None, description="llama.cpp's name.")
    repetition_penalty: Repetition | None = Field(None, description="vLLM's name.")
    repeat_last_n: Annotated[int, _limit("penalty_last_n")] | None = Field(
        None, description="How many last tokens the penalties apply to; -1 is the whole context."
    )
    dry_multiplier: Annotated[float, _limit("dry.multiplier")] | None = None
    dry_base: Annotated[float, _limit("dry.base")] | None = None
    dry_allowed_length: Annotated[int, _limit("dry.allowed_length")] | None = None
    dry_penalty_last_n: Annotated[int, _limit("dry.penalty_last_n")] | None = None
    dry_sequence_breakers: Annotated[list[Breaker], _limit("dry.sequence_breakers")] | None = None
    mirostat: Annotated[int, _limit("mirostat.version")] | None = None
    mirostat_mode: Annotated[int, _limit("mirostat.version")] | None = Field(
        None, description="llama-cpp-python's name for mirostat."
    )
    mirostat_tau: Annotated[float, _limit("mirostat.tau")] | None = None
    mirostat_eta: Annotated[float, _limit("mirostat.eta")] | None = None
    adaptive_target: Annotated[float, _limit("adaptive.target")] | None = None
    adaptive_decay: Annotated[float, _limit("adaptive.decay")] | None = None
    samplers: Annotated[list[str], _limit("samplers")] | None = Field(
        None, description="The order of the filters, by llama.cpp's names."
    )
    allowed_token_ids: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)] | None = Field(
        None, description="Limits the choice to these tokens."
    )


def sampling_params(
    body: SamplingFields, *, openai_defaults: bool = True
) -> sampling_pb2.SamplingParams:
    """The sampling parameters of a body. Raises DomainErrors with OpenAI's field names.

    A filter that the body does not name is off with `openai_defaults`, otherwise it has the
    model's default, which is llama.cpp's unless the operator or the file set another.
    """
    temperature, top_p, min_p = body.temperature, body.top_p, body.min_p
    top_k = None if body.top_k is None else max(body.top_k, 0)
    if openai_defaults:
        temperature = 1.0 if temperature is None else temperature
        top_p = 1.0 if top_p is None else top_p
        top_k, min_p = top_k or 0, min_p or 0.0
    params = message_of(
        sampling_pb2.SamplingParams,
        body,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=resolve_alias(body, "repeat_penalty", "repetition_penalty"),
        penalty_last_n=body.repeat_last_n,
        logit_bias=_logit_bias(body.logit_bias),
        samplers=[
            _sampler_kind(index, name)
            for index, name in enumerate(body.samplers or ())
            if name != _FINAL_SAMPLER
        ],
        seed=_seed(body.seed),
        dry=None,
        mirostat=None,
        adaptive=None,
    )
    _set_dry(body, params)
    _set_mirostat(body, params)
    _copy_fields(body, params.adaptive, ("target", "decay"), prefix="adaptive_")
    return params


def _copy_fields(
    body: SamplingFields, message: Any, names: Iterable[str], prefix: str = ""
) -> None:
    for name in names:
        value = getattr(body, prefix + name)
        if value is not None:
            setattr(message, name, value)


_SAMPLERS = {
    "penalties": sampling_pb2.SAMPLER_KIND_PENALTIES,
    "dry": sampling_pb2.SAMPLER_KIND_DRY,
    "top_n_sigma": sampling_pb2.SAMPLER_KIND_TOP_N_SIGMA,
    "top_k": sampling_pb2.SAMPLER_KIND_TOP_K,
    "typ_p": sampling_pb2.SAMPLER_KIND_TYPICAL_P,
    "typical_p": sampling_pb2.SAMPLER_KIND_TYPICAL_P,
    "top_p": sampling_pb2.SAMPLER_KIND_TOP_P,
    "min_p": sampling_pb2.SAMPLER_KIND_MIN_P,
    "xtc": sampling_pb2.SAMPLER_KIND_XTC,
    "temperature": sampling_pb2.SAMPLER_KIND_TEMPERATURE,
    "infill": sampling_pb2.SAMPLER_KIND_INFILL,
}
_FINAL_SAMPLER = "adaptive_p"  # always last, so its position is ignored; see `adaptive_target`


def _sampler_kind(position: int, name: str) -> sampling_pb2.SamplerKind:
    kind = _SAMPLERS.get(name)
    if kind is None:
        raise UnsupportedValue(field=f"samplers[{position}]", value=name)
    return kind


def _seed(seed: int | None) -> int | None:
    """-1 is llama.cpp's random seed; other negative seeds, as OpenAI allows, keep their bits."""
    return None if seed is None or seed == -1 else seed % UINT64


def _set_dry(body: SamplingFields, params: sampling_pb2.SamplingParams) -> None:
    names = ("multiplier", "base", "allowed_length", "penalty_last_n")
    _copy_fields(body, params.dry, names, prefix="dry_")
    if body.dry_sequence_breakers:
        params.dry.sequence_breakers.extend(body.dry_sequence_breakers)


def _set_mirostat(body: SamplingFields, params: sampling_pb2.SamplingParams) -> None:
    version = resolve_alias(body, "mirostat", "mirostat_mode")
    if not version:
        return
    params.mirostat.version = version
    _copy_fields(body, params.mirostat, ("tau", "eta"), prefix="mirostat_")


def _logit_bias(biases: dict[str, float] | list[Any] | None) -> list[sampling_pb2.LogitBias]:
    if isinstance(biases, dict):
        return [
            sampling_pb2.LogitBias(token_id=_token_key(key), bias=bias)
            for key, bias in biases.items()
        ]
    return [_bias_pair(f"logit_bias[{index}]", pair) for index, pair in enumerate(biases or ())]


def _token_key(key: str) -> int:
    if not (key.isascii() and key.isdigit()):
        raise InvalidField(field="logit_bias", problem="its keys must be token ids")
    return _token_id("logit_bias", int(key[:20]))


def _token_id(field: str, token: int) -> int:
    if not 0 <= token <= INT32_MAX:
        raise OutOfRange(field=field, value=token, minimum=0, maximum=INT32_MAX)
    return token


def _bias_pair(field: str, pair: object) -> sampling_pb2.LogitBias:
    if not isinstance(pair, list) or len(pair) != 2:
        raise InvalidType(field=field, expected="an array of a token id and a bias")
    token, bias = pair
    if isinstance(token, str):
        raise InvalidType(field=f"{field}[0]", expected="a token id")
    if isinstance(token, bool) or not isinstance(token, int):
        raise InvalidType(field=f"{field}[0]", expected="an integer")
    if bias is False:
        bias = -100.0
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise InvalidType(field=f"{field}[1]", expected="a number or false")
    if not -100 <= bias <= 100:
        raise OutOfRange(field=f"{field}[1]", value=bias, minimum=-100, maximum=100)
    return sampling_pb2.LogitBias(token_id=_token_id(f"{field}[0]", token), bias=bias)
