"""Fields that chat and text completions share, converted to GenerationOptions.

An absent field has OpenAI's default, or the model's if OpenAI has none.
"""

from functools import partial
from typing import Annotated, Any, ClassVar

from corral.inference.v1 import generation_pb2
from corral.inference.v1.adapter_pb2 import AdapterScale
from pydantic import AliasChoices, BeforeValidator, Field, Tag

from dialects.openai.chat.output_format import (
    GuidedFields,
    ResponseFormat,
    StructuredOutputs,
    resolve_constraint,
)
from dialects.openai.chat.policy import GENERATION
from dialects.shared.fields import (
    BY_KIND,
    INT32_MAX,
    Gbnf,
    TokenId,
    WireModel,
    resolve_alias,
)
from dialects.shared.generation_fields import StopText, StopTexts, TopLogprobs, shorten
from dialects.shared.parameters import Ignored, Policy, ignore_parameter
from dialects.shared.sampling import SamplingFields, sampling_params
from svc_kit.rpc.field_limits import limit

_limit = partial(limit, generation_pb2.GenerationOptions)
OutputLimit = Annotated[int, Field(ge=-1, le=INT32_MAX)]
OpenAiStop = Annotated[
    Annotated[StopText, Tag("~string")] | Annotated[StopTexts, Tag("~array")],
    BY_KIND,
]


class StreamOptions(WireModel):
    include_usage: bool | None = Field(
        None, description="Send a last chunk with the token counts before [DONE]."
    )
    continuous_usage_stats: bool | None = Field(
        None, description="Send the token counts so far with every chunk."
    )
    policy: ClassVar[Policy] = {
        "include_obfuscation": Ignored("streams are not padded", (False,)),
    }


class AdapterChoice(WireModel):
    """One LoRA adapter to apply, named by `id` or `name`."""

    id: str = Field(
        min_length=1,
        validation_alias=AliasChoices("id", "name"),
        description="The adapter's id or name. The field may also be called `name`.",
    )
    scale: Annotated[float, limit(AdapterScale, "scale")] | None = Field(
        None, description="Multiplies the adapter's effect. Default: the adapter's default scale."
    )


def _wrap_name(value: object) -> object:
    return [{"id": value}] if isinstance(value, str) else value


class Speculation(WireModel):
    """Speculative decoding: tokens are drafted and verified. It does not change the answer."""

    enabled: bool | None = Field(
        None, description="False disables drafts. Default: used when they are faster."
    )
    max_draft_tokens: Annotated[int, _limit("speculation.max_draft_tokens")] | None = Field(
        None, description="The maximum number of tokens drafted at once."
    )


class GenerationBody(SamplingFields, GuidedFields):
    """Fields of every generation request except its prompt."""

    policy: ClassVar[Policy] = GENERATION

    model: str = Field(
        description="The model's name, as GET /v1/models lists it. Empty: the server's first model."
    )
    n: Annotated[int, _limit("num_choices")] | None = Field(
        None, description="How many answers to generate. Default: 1."
    )
    stop: OpenAiStop | None = Field(
        None, description="Up to 16 texts that end the answer; they are not part of it."
    )
    stream: bool | None = Field(None, description="Send chunks as server-sent events.")
    stream_options: StreamOptions | None = None

    max_tokens: OutputLimit | None = Field(
        None, description="The maximum number of tokens of one answer; -1 means no limit."
    )
    n_predict: Annotated[int, Field(ge=-2, le=2**31 - 1)] | None = Field(
        None, description="llama-server's name for max_tokens; -1 and -2 mean no limit."
    )
    min_tokens: Annotated[int, _limit("stopping.min_tokens")] | None = Field(
        None, description="Suppress end of text until this length."
    )
    stop_token_ids: Annotated[list[TokenId], _limit("stopping.stop_token_ids")] | None = Field(
        None, description="Tokens that end the answer, in addition to the model's own."
    )
    ignore_eos: bool | None = Field(None, description="Continue after the model's end of text.")
    include_stop_str_in_output: bool | None = Field(
        None, description="Include the stop text in the answer."
    )
    skip_special_tokens: bool | None = Field(
        None, description="False includes control tokens in the answer. Default: true."
    )
    response_format: ResponseFormat | None = None
    grammar: Gbnf = Field(None, description="A GBNF grammar for the answer.")
    json_schema: dict[str, Any] | None = Field(None, description="A JSON Schema for the answer.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="A constraint in vLLM's format."
    )
    cache_prompt: bool | None = Field(None, description="Reuse computed prefixes. Default: true.")
    cache_salt: str | None = Field(
        None, description="Cached prefixes are shared only by requests with the same salt."
    )
    prompt_cache_key: str | None = Field(
        None, description="A hint that requests with the same key share a prefix."
    )
    deterministic: bool | None = Field(
        None,
        description="Return the same tokens for the same request and seed under any load. The "
        "request is computed alone, without cached prefixes, while others wait.",
    )
    speculation: Speculation | None = None
    lora: Annotated[list[AdapterChoice], BeforeValidator(_wrap_name), _limit("adapters")] | None = (
        Field(None, description="LoRA adapters to apply together, each once, or the name of one.")
    )

    @property
    def constraint_field(self) -> str:
        """The field that specifies the constraint, for error messages."""
        local = ("json_schema", "grammar", "structured_outputs", *GuidedFields.model_fields)
        return next((name for name in local if getattr(self, name) is not None), "response_format")


class CompletionFields(GenerationBody):
    """Fields that only chat and text completions have."""

    prompt_logprobs: Annotated[int, _limit("output.prompt_logprobs")] | None = Field(
        None,
        description="Return the log probability of each prompt token and of this many "
        "alternatives, as vLLM does. The prompt is computed without cached prefixes.",
    )
    n_probs: TopLogprobs | None = Field(
        None, description="llama-server's name for logprobs with this many alternatives."
    )
    return_token_ids: bool | None = Field(
        None, description="Return the ids of the tokens of prompt and answer, as vLLM does."
    )


def completion_options(
    body: CompletionFields, max_tokens: int | None
) -> generation_pb2.GenerationOptions:
    """As `generation_options`, with what is returned of the prompt."""
    options = generation_options(body, max_tokens)
    if body.prompt_logprobs is not None:
        options.output.prompt_logprobs = body.prompt_logprobs
    if body.return_token_ids:
        options.output.token_ids = options.output.prompt_token_ids = True
    return options


def generation_options(
    body: GenerationBody, max_tokens: int | None
) -> generation_pb2.GenerationOptions:
    """Convert the options of a body, except its log probabilities.

    `max_tokens` is the output limit of one answer; None means the rest of the context. Raises
    DomainErrors with OpenAI's field names.
    """
    if body.stream_options is not None and not body.stream:
        ignore_parameter("stream_options", "the answer is not streamed")
    options = generation_pb2.GenerationOptions(
        sampling=sampling_params(body),
        stopping=_stopping(body, max_tokens),
        num_choices=body.n,
        constraint=resolve_constraint(
            body.response_format,
            body.json_schema,
            body.grammar,
            body.structured_outputs,
            body.guided_constraints,
        ),
        deterministic=body.deterministic,
    )
    if body.skip_special_tokens is not None:
        options.output.special_tokens = not body.skip_special_tokens
    _set_cache(body, options.cache)
    if body.speculation is not None:
        speculation = generation_pb2.SpeculationOptions(**body.speculation.model_dump())
        options.speculation.CopyFrom(speculation)
    for adapter in body.lora or ():
        options.adapters.add(adapter=adapter.id, scale=adapter.scale)
    return options


def output_limit(body: GenerationBody, *names: str) -> int | None:
    """The output limit from the first of its names. Negative values, as in llama-server, mean no
    limit. Raises InvalidField if two names disagree."""
    limit: int | None = resolve_alias(body, *names)
    return None if limit is None or limit < 0 else limit


def _stopping(body: GenerationBody, max_tokens: int | None) -> generation_pb2.StoppingParams:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return generation_pb2.StoppingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=[text for text in stops if text],
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        include_stop=body.include_stop_str_in_output,
    )


def _set_cache(body: GenerationBody, cache: generation_pb2.CacheOptions) -> None:
    if body.cache_prompt is not None:
        cache.reuse = body.cache_prompt
    if body.cache_salt:
        cache.salt = shorten(body.cache_salt)
    if body.prompt_cache_key:
        cache.affinity = shorten(body.prompt_cache_key)
