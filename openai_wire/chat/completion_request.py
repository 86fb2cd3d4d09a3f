"""The body of POST /v1/completions, converted to a GenerateRequest for each prompt.

Control tokens in text prompts are parsed, since callers of this endpoint write whole prompts.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from corral.inference.v1 import generation_pb2, inference_service_pb2
from pydantic import Discriminator, Field, Tag

from openai_wire.chat.options import UNSUPPORTED, GenerationBody, generation_options, output_limit
from openai_wire.shared.fields import TokenId, array_kind_of, validated, without_neutral
from svc_kit.errors import InvalidField, TooLong

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 2048
MAX_BEST_OF = 20
MAX_PROMPT_TOKENS = 2**20
COMPLETION_UNSUPPORTED: dict[str, tuple[object, ...]] = UNSUPPORTED | {
    "messages": (),
    "suffix": ("",),
}
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]
Prompt = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[str], Field(min_length=1), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], Tag("~array of arrays")],
    Discriminator(array_kind_of),
]


class CompletionBody(GenerationBody):
    """A request to continue one or several prompts."""

    prompt: Prompt = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = Field(
        None, description="Produce this many answers and send the n most probable. Default: n."
    )
    echo: bool | None = Field(None, description="Send the prompt before the answer.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Send the log probability of each token and of this many alternatives."
    )


def parse_completion(fields: Mapping[str, Any]) -> CompletionBody:
    """Checks a body. Raises DomainErrors with OpenAI's field names."""
    body = validated(CompletionBody, without_neutral(fields, COMPLETION_UNSUPPORTED))
    _check_offered(body)
    return body


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """The prompts, each a text or token ids."""
    prompt = body.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def choices_per_prompt(body: CompletionBody) -> int:
    """How many answers each prompt gets back."""
    return body.n or 1


def prompt_requests(body: CompletionBody) -> list[inference_service_pb2.GenerateRequest]:
    """The requests a body asks for, one a prompt. Raises DomainErrors with OpenAI's field names."""
    limit = output_limit(body, "max_tokens", "n_predict")
    if body.max_tokens is None and body.n_predict is None:
        limit = DEFAULT_MAX_TOKENS
    options = generation_options(body, limit)
    best_of = body.best_of or choices_per_prompt(body)
    if best_of > choices_per_prompt(body):
        options.num_choices = best_of
        options.output.top_logprobs = 0
    if body.logprobs is not None:
        options.output.top_logprobs = body.logprobs
    return [_request(body.model, prompt, options) for prompt in prompts_of(body)]


def _request(
    model: str, prompt: str | list[int], options: generation_pb2.GenerationOptions
) -> inference_service_pb2.GenerateRequest:
    request = inference_service_pb2.GenerateRequest(
        model=model, options=options, parse_special=True
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def _check_offered(body: CompletionBody) -> None:
    choices, best_of = choices_per_prompt(body), body.best_of
    if body.echo and body.logprobs is not None:
        problem = "it cannot be combined with 'logprobs' on this server"
        raise InvalidField(field="echo", problem=problem)
    if best_of is not None and best_of < choices:
        raise InvalidField(field="best_of", problem="it must not be less than 'n'")
    if best_of is not None and best_of > choices and body.stream:
        raise InvalidField(field="best_of", problem="it cannot be streamed")
    total = len(prompts_of(body)) * max(choices, best_of or 1)
    if total > MAX_CHOICES:
        raise TooLong(field="prompt", length=total, limit=MAX_CHOICES)
