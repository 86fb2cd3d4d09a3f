"""Bodies of /completion and /infill, converted to requests of the inference service.

Filters that a body does not name have the model's defaults, which are llama.cpp's.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, ClassVar, Final

from corral.inference.v1 import generation_pb2, inference_service_pb2
from pydantic import Discriminator, Field, Tag

from dialects.llama_server.tokens import (
    ContentPart,
    TokenizeBody,
    token_list,
    tokenize_requests,
)
from dialects.shared.fields import (
    INT32_MAX,
    MAX_TOKENS,
    Gbnf,
    Tokens,
    WireModel,
    json_array_kind,
    split_inputs,
    validate,
)
from dialects.shared.generation_fields import StopTexts, TopLogprobs
from dialects.shared.json_body import json_text
from dialects.shared.parameters import Ignored, Policy, Refused
from dialects.shared.sampling import SamplingFields, sampling_params
from svc_kit.errors import InvalidField
from svc_kit.rpc.field_limits import limit

MAX_PROMPTS: Final = 128
Tokenize = Callable[
    [inference_service_pb2.TokenizeRequest], Awaitable[inference_service_pb2.TokenizeResponse]
]
_OPERATOR: Final = Ignored("the operator decides it")
_EXTRA: Final = "the additional output does not exist here"
COMPLETION_PARAMS: Final = {
    "text": "prompt",
    "token_ids": "prompt",
    "max_tokens": "n_predict",
    "top_logprobs": "n_probs",
    "constraint": "json_schema",
    "constraint.gbnf": "grammar",
    "penalty_last_n": "repeat_last_n",
    "reuse": "cache_prompt",
}
INFILL_PARAMS: Final = COMPLETION_PARAMS | {
    "infill.files": "input_extra",
    "infill.suffix": "input_suffix",
    "text": "input_prefix",
}


def _prompt_kind(value: object) -> str:
    if isinstance(value, list) and {str, int} == {type(each) for each in value}:
        return "~array of texts and integers"
    return json_array_kind(value)


Prompt = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS), Tag("~array of arrays")]
    | Annotated[
        list[ContentPart], Field(max_length=MAX_TOKENS), Tag("~array of texts and integers")
    ],
    Discriminator(_prompt_kind),
]


class ContinuationBody(SamplingFields):
    """Fields of both bodies beside the prompt."""

    policy: ClassVar[Policy] = {
        **dict.fromkeys(
            ("id_slot", "n_cache_reuse", "n_discard", "n_keep", "t_max_prompt_ms"), _OPERATOR
        ),
        "return_progress": Ignored(_EXTRA, (False,)),
        "timings_per_token": Ignored("timings are sent at the end", (False,)),
        "verbose": Ignored(_EXTRA, (False,)),
        "n_indent": Refused("use 'grammar'", (0,)),
        "post_sampling_probs": Refused("probabilities are those before sampling", (False,)),
        "response_fields": Ignored("all fields are sent", ([],)),
        "t_max_predict_ms": Refused("use 'n_predict', or cancel the request", (0,)),
    }

    model: str | None = Field(None, description="Default: the server's first model.")
    stream: bool | None = None
    n_predict: Annotated[int, Field(ge=-2, le=INT32_MAX)] | None = Field(
        None, description="The maximum number of tokens; -1 means no limit."
    )
    n_probs: TopLogprobs | None = Field(
        None, description="Return the probability of each token, and of this many others."
    )
    stop: StopTexts | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = Field(None, description="Reuse computed prefixes. Default: true.")
    grammar: Gbnf = Field(None, description="A GBNF grammar for the answer.")
    json_schema: dict[str, Any] | None = Field(None, description="A JSON Schema for the answer.")
    return_tokens: bool | None = Field(None, description="Return the tokens' ids.")


class ContinuationOfPromptBody(ContinuationBody):
    """llama-server's request to continue one or several prompts."""

    route: ClassVar[str] = "/completion"
    prompt: Prompt


class InfillFileBody(WireModel):
    """A file that the model sees."""

    text: str
    filename: str | None = None


class InfillBody(ContinuationBody):
    """llama-server's request for the text between a prefix and a suffix."""

    route: ClassVar[str] = "/infill"
    input_prefix: str
    input_suffix: str
    input_extra: (
        Annotated[list[InfillFileBody], limit(inference_service_pb2.Infill, "files")] | None
    ) = None
    prompt: str | None = Field(None, description="The beginning of the text, after the prefix.")


def parse_continuation(fields: Mapping[str, Any]) -> ContinuationOfPromptBody:
    """Validate a body of /completion. Raises DomainErrors."""
    return validate(ContinuationOfPromptBody, fields)


async def with_token_prompt(
    body: ContinuationOfPromptBody, tokenize: Tokenize
) -> ContinuationOfPromptBody:
    """The body with tokens in place of the texts of a prompt that mixes both. A text at the
    beginning gets a begin token."""
    prompt: Any = body.prompt
    if _prompt_kind(prompt) != "~array of texts and integers":
        return body
    content = TokenizeBody(model=body.model, content=prompt, add_special=isinstance(prompt[0], str))
    replies = [await tokenize(request) for request in tokenize_requests(content)]
    return body.model_copy(update={"prompt": token_list(content, replies)["tokens"]})


def parse_infill(fields: Mapping[str, Any]) -> InfillBody:
    """Validate a body of /infill. Raises DomainErrors."""
    return validate(InfillBody, fields)


def prompts_of(body: ContinuationOfPromptBody) -> list[str | list[int]]:
    """The prompts, each a text or token ids."""
    prompt: Any = body.prompt
    return split_inputs(prompt)


def continuation_requests(
    body: ContinuationOfPromptBody,
) -> list[inference_service_pb2.GenerateRequest]:
    """Convert a body, one request for each prompt. Raises DomainErrors."""
    options = _options(body)
    requests = []
    for prompt in prompts_of(body):
        request = inference_service_pb2.GenerateRequest(
            model=body.model or "", options=options, parse_special=True
        )
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        requests.append(request)
    return requests


def infill_request(body: InfillBody) -> inference_service_pb2.GenerateRequest:
    """Convert a body. Raises DomainErrors."""
    files = [
        inference_service_pb2.InfillFile(name=each.filename or "", text=each.text)
        for each in body.input_extra or ()
    ]
    return inference_service_pb2.GenerateRequest(
        model=body.model or "",
        text=body.input_prefix + (body.prompt or ""),
        infill=inference_service_pb2.Infill(suffix=body.input_suffix, files=files),
        options=_options(body),
    )


def _options(body: ContinuationBody) -> generation_pb2.GenerationOptions:
    if body.grammar is not None and body.json_schema is not None:
        raise InvalidField(field="grammar", problem="it cannot be combined with 'json_schema'")
    limit = body.n_predict
    options = generation_pb2.GenerationOptions(
        sampling=sampling_params(body, openai_defaults=False),
        stopping=generation_pb2.StoppingParams(
            max_tokens=None if limit is None or limit < 0 else limit,
            stop=[text for text in body.stop or () if text],
            ignore_eos=body.ignore_eos,
        ),
    )
    if body.grammar is not None:
        options.constraint.gbnf = body.grammar
    if body.json_schema is not None:
        options.constraint.json_schema = json_text(body.json_schema)
    if body.n_probs:
        options.output.top_logprobs = body.n_probs
    if body.cache_prompt is not None:
        options.cache.reuse = body.cache_prompt
    options.output.token_ids = bool(body.return_tokens)
    return options
