"""Fields that chat and completions share, converted to GenerationOptions.

A field that is absent has OpenAI's default where OpenAI has one, else the model's.
"""

import hashlib
from typing import Annotated, Any

from corral.inference.v1 import generation_pb2
from pydantic import AliasChoices, BeforeValidator, Field, Tag

from openai_wire.chat.output_format import ResponseFormat, StructuredOutputs, constraint_of
from openai_wire.chat.sampling import SamplingFields, sampling_params
from openai_wire.shared.fields import BY_KIND, Count, TokenId, WireModel, one_of
from svc_kit.errors import InvalidField, TooLong, UnsupportedValue

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_HINT_BYTES = 256
OpenAiStop = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[str], Field(max_length=MAX_STOPS), Tag("~array")],
    BY_KIND,
]
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (),
    "bad_words": ([],),
    "id_slot": (-1,),
    "length_penalty": (1,),
    "n_cache_reuse": (0,),
    "n_indent": (0,),
    "n_keep": (0, -1),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "prompt_logprobs": (),
    "return_progress": (False,),
    "return_token_ids": (False,),
    "return_tokens": (False,),
    "spaces_between_special_tokens": (True,),
    "t_max_predict_ms": (0,),
    "timings_per_token": (False,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Known local extensions that this server does not offer, with the values that ask for nothing."""


class StreamOptions(WireModel):
    """What a stream carries beside its chunks."""

    include_usage: bool | None = Field(
        None, description="Send one more chunk, with the token counts, before [DONE]."
    )
    include_obfuscation: bool | None = Field(None, description="Only false is supported.")


class AdapterChoice(WireModel):
    """One LoRA adapter to apply, named by `id` or `name`."""

    id: str = Field(
        min_length=1,
        validation_alias=AliasChoices("id", "name"),
        description="The adapter's name; may be written as `name` too.",
    )
    scale: Annotated[float, Field(ge=-10, le=10)] | None = Field(
        None, description="Multiplies its effect. Default: the adapter's own."
    )


def _one_name_is_a_list(value: object) -> object:
    return [{"id": value}] if isinstance(value, str) else value


class Speculation(WireModel):
    """Whether tokens may be guessed and verified; the answer does not depend on it."""

    enabled: bool | None = Field(None, description="False: no drafts. Default: where they pay.")
    max_draft_tokens: Annotated[int, Field(ge=1, le=32)] | None = Field(
        None, description="The most tokens guessed at once."
    )


class GenerationBody(SamplingFields):
    """What both kinds of generation accept beside their prompt."""

    model: str = Field(description="The model's name, as GET /v1/models lists it.")
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(
        None, description="How many answers to produce. Default: 1."
    )
    stop: OpenAiStop | None = Field(
        None, description="Up to 16 texts that end the answer; they are not sent."
    )
    stream: bool | None = Field(None, description="Send chunks as server-sent events.")
    stream_options: StreamOptions | None = None

    max_tokens: Count | None = Field(None, description="The most tokens of one answer.")
    n_predict: Annotated[int, Field(ge=-2, le=2**31 - 1)] | None = Field(
        None, description="llama-server's name for max_tokens; -1 and -2 mean no limit."
    )
    min_tokens: Count | None = Field(None, description="No end of text before this many tokens.")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = Field(
        None, description="Tokens that end the answer, beside the model's own."
    )
    ignore_eos: bool | None = Field(None, description="Go on over the model's end of text.")
    include_stop_str_in_output: bool | None = Field(None, description="Send the stop text too.")
    skip_special_tokens: bool | None = Field(
        None, description="False shows control tokens as text. Default: true."
    )
    response_format: ResponseFormat | None = None
    grammar: str | None = Field(None, description="A GBNF grammar for the answer.")
    json_schema: dict[str, Any] | None = Field(None, description="A JSON Schema for the answer.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM's form of a constraint."
    )
    cache_prompt: bool | None = Field(None, description="Reuse computed prefixes. Default: true.")
    cache_salt: Annotated[str, Field(max_length=MAX_HINT_BYTES)] | None = Field(
        None, description="Keeps prefixes apart from those with another salt."
    )
    prompt_cache_key: str | None = Field(
        None, description="A hint that requests with the same key share a prefix."
    )
    deterministic: bool | None = Field(
        None,
        description="The same tokens for the same request and seed, whatever else runs: it is "
        "computed by itself, without cached prefixes, and others wait for it.",
    )
    speculation: Speculation | None = None
    lora: (
        Annotated[list[AdapterChoice], BeforeValidator(_one_name_is_a_list), Field(max_length=64)]
        | None
    ) = Field(None, description="LoRA adapters to apply together, each once; or the name of one.")

    user: str | None = Field(None, description="Accepted and ignored.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted and ignored.")
    safety_identifier: str | None = Field(None, description="Accepted and ignored.")
    service_tier: str | None = Field(None, description="Accepted and ignored.")

    @property
    def constraint_field(self) -> str:
        """The field that errors about the constraint name."""
        local = ("json_schema", "grammar", "structured_outputs")
        return next((name for name in local if getattr(self, name) is not None), "response_format")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


def generation_options(
    body: GenerationBody, max_tokens: int | None
) -> generation_pb2.GenerationOptions:
    """The options a body asks for, all but its log probabilities.

    `max_tokens` is the output limit of one answer; None leaves it to the context. Raises
    DomainErrors with OpenAI's field names.
    """
    check_stream_options(body)
    options = generation_pb2.GenerationOptions(
        sampling=sampling_params(body), stopping=_stopping(body, max_tokens)
    )
    if body.n is not None:
        options.num_choices = body.n
    constraint = constraint_of(
        body.response_format, body.json_schema, body.grammar, body.structured_outputs
    )
    if constraint is not None:
        options.constraint.CopyFrom(constraint)
    if body.deterministic is not None:
        options.deterministic = body.deterministic
    if body.skip_special_tokens is not None:
        options.output.special_tokens = not body.skip_special_tokens
    _set_cache(body, options.cache)
    if body.speculation is not None:
        options.speculation.CopyFrom(
            generation_pb2.SpeculationOptions(
                enabled=body.speculation.enabled,
                max_draft_tokens=body.speculation.max_draft_tokens,
            )
        )
    for adapter in body.lora or ():
        added = options.adapters.add(adapter=adapter.id)
        if adapter.scale is not None:
            added.scale = adapter.scale
    return options


def output_limit(body: GenerationBody, *names: str) -> int | None:
    """The output limit under any of its names; llama-server's negative values mean no limit."""
    limit: int | None = one_of(body, *names)
    return None if limit is None or limit < 0 else limit


def check_stream_options(body: GenerationBody) -> None:
    """Raises InvalidField for options without a stream, UnsupportedValue for obfuscation."""
    if body.stream_options is None:
        return
    if not body.stream:
        raise InvalidField(
            field="stream_options", problem="it is only allowed when 'stream' is true"
        )
    if body.stream_options.include_obfuscation:
        raise UnsupportedValue(field="stream_options.include_obfuscation", value="true")


def _stopping(body: GenerationBody, max_tokens: int | None) -> generation_pb2.StoppingParams:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    for position, text in enumerate(stops):
        size = len(text.encode())
        if size > MAX_STOP_BYTES:
            raise TooLong(
                field=f"stop[{position}]", length=size, limit=MAX_STOP_BYTES, unit="bytes"
            )
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
        cache.salt = _short_hint(body.cache_salt)
    if body.prompt_cache_key:
        cache.affinity = _short_hint(body.prompt_cache_key)


def _short_hint(text: str) -> str:
    """Equal texts give equal hints; what is too long for the proto becomes its digest."""
    raw = text.encode()
    return text if len(raw) <= MAX_HINT_BYTES else hashlib.sha256(raw).hexdigest()
