"""Ollama's `options`, converted to GenerationOptions.

Defaults are Ollama's, not the model's: a client that moves from Ollama gets the same distribution.
That of `top_k` is the model's, mostly 40 as Ollama's, since not every engine has this filter.
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Final

from corral.inference.v1 import generation_pb2, sampling_pb2
from pydantic import Field

from dialects.ollama.model_body import OTHERS, TRUNCATED, LenientModel
from dialects.shared.fields import INT32_MAX, INT64_MIN, UINT64_MAX
from dialects.shared.generation_fields import StopTexts
from dialects.shared.json_body import json_text
from dialects.shared.parameters import Ignored, Policy
from svc_kit.errors import InvalidField
from svc_kit.rpc.field_limits import limit

OPTION_PARAMS: Final = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "penalty_last_n": "options.repeat_last_n",
    **{
        name: f"options.{name}"
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "typical_p",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "stop",
            "mirostat",
        )
    },
}
"""The caller's names of fields of GenerationOptions."""
_limit = partial(limit, sampling_pb2.SamplingParams)


_OPERATOR = Ignored("the operator decides about memory and hardware")
_REMOVED = Ignored("Ollama ignores it too")


class ModelOptions(LenientModel):
    """The options that have an effect."""

    policy: ClassVar[Policy] = {
        **OTHERS,
        "num_ctx": Ignored("the context is that of the model"),
        "num_keep": Ignored("the context is never shifted"),
        "draft_num_predict": Ignored("the server decides about drafts"),
        **dict.fromkeys(
            (
                "f16_kv",
                "low_vram",
                "main_gpu",
                "num_batch",
                "num_gpu",
                "num_thread",
                "numa",
                "use_mlock",
                "use_mmap",
            ),
            _OPERATOR,
        ),
        **dict.fromkeys(
            ("embedding_only", "logits_all", "penalize_newline", "tfs_z", "vocab_only"), _REMOVED
        ),
    }

    temperature: Annotated[float, _limit("temperature")] | None = None
    top_k: Annotated[int, Field(le=INT32_MAX), TRUNCATED] | None = None
    top_p: Annotated[float, _limit("top_p")] | None = None
    min_p: Annotated[float, _limit("min_p")] | None = None
    typical_p: Annotated[float, _limit("typical_p")] | None = None
    repeat_penalty: Annotated[float, _limit("repetition_penalty")] | None = None
    repeat_last_n: Annotated[int, _limit("penalty_last_n"), TRUNCATED] | None = None
    presence_penalty: Annotated[float, _limit("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _limit("frequency_penalty")] | None = None
    mirostat: Annotated[int, _limit("mirostat.version"), TRUNCATED] | None = None
    mirostat_tau: Annotated[float, _limit("mirostat.tau")] | None = None
    mirostat_eta: Annotated[float, _limit("mirostat.eta")] | None = None
    seed: Annotated[int, Field(ge=INT64_MIN, le=UINT64_MAX), TRUNCATED] | None = Field(
        None, description="-1 chooses a random seed."
    )
    num_predict: Annotated[int, Field(le=INT32_MAX), TRUNCATED] | None = Field(
        None, description="The maximum number of tokens; 0 and less mean no limit."
    )
    stop: StopTexts | None = None


def generation_options(
    options: ModelOptions | None,
    output_format: str | dict[str, Any] | None,
    *,
    logprobs: bool | None,
    top_logprobs: int | None,
) -> generation_pb2.GenerationOptions:
    """Convert the options and the output format of a body. Raises DomainErrors."""
    options = options or ModelOptions()
    converted = generation_pb2.GenerationOptions(
        sampling=_sampling(options),
        stopping=generation_pb2.StoppingParams(
            max_tokens=options.num_predict if (options.num_predict or 0) > 0 else None,
            stop=[text for text in options.stop or () if text],
        ),
        constraint=_constraint(output_format),
    )
    if logprobs:
        converted.output.top_logprobs = top_logprobs or 0
    return converted


def _sampling(options: ModelOptions) -> sampling_pb2.SamplingParams:
    params = sampling_pb2.SamplingParams(
        temperature=_or(options.temperature, 0.8),
        top_k=None if options.top_k is None else max(options.top_k, 0),
        top_p=_or(options.top_p, 0.9),
        min_p=_or(options.min_p, 0.0),
        typical_p=_or(options.typical_p, 1.0),
        repetition_penalty=_or(options.repeat_penalty, 1.0),
        penalty_last_n=_or(options.repeat_last_n, 64),
        presence_penalty=_or(options.presence_penalty, 0.0),
        frequency_penalty=_or(options.frequency_penalty, 0.0),
    )
    if options.seed not in (None, -1):
        params.seed = options.seed % (UINT64_MAX + 1)
    if options.mirostat:
        params.mirostat.version = options.mirostat
        params.mirostat.tau = _or(options.mirostat_tau, 5.0)
        params.mirostat.eta = _or(options.mirostat_eta, 0.1)
    return params


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _constraint(output_format: str | dict[str, Any] | None) -> generation_pb2.Constraint | None:
    if not output_format and not isinstance(output_format, dict):
        return None
    if isinstance(output_format, dict):
        return generation_pb2.Constraint(json_schema=json_text(output_format))
    if output_format != "json":
        raise InvalidField(field="format", problem='it must be "json" or a JSON Schema')
    return generation_pb2.Constraint(json_object=True)
