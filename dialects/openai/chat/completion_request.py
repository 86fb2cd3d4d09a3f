"""The body of POST /v1/completions, converted to a GenerateRequest for each prompt.

Control tokens in text prompts are parsed, since callers apply the chat template themselves.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from corral.inference.v1 import generation_pb2, inference_service_pb2
from pydantic import Discriminator, Field, Tag

from dialects.openai.chat.options import (
    CompletionFields,
    completion_options,
    output_limit,
)
from dialects.shared.fields import Tokens, json_array_kind, split_inputs, validate
from dialects.shared.generation_fields import TopLogprobs
from dialects.shared.parameters import Policy, Refused
from svc_kit.errors import InvalidField, TooLong
from svc_kit.rpc.field_limits import limit

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 2048
MAX_BEST_OF = 20
_limit = partial(limit, inference_service_pb2.GenerateRequest)
Prompt = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[str], Field(min_length=1), Tag("~array of strings")]
    | Annotated[Tokens, Tag("~array of integers")]
    | Annotated[list[Tokens], Tag("~array of arrays")],
    Discriminator(json_array_kind),
]


class CompletionBody(CompletionFields):
    """A request to complete one or several prompts."""

    route: ClassVar[str] = "/v1/completions"
    policy: ClassVar[Policy] = {
        "messages": Refused("it belongs to /v1/chat/completions; use 'prompt'"),
    }

    prompt: Prompt = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = Field(
        None, description="Generate this many answers and return the n most probable. Default: n."
    )
    echo: bool | None = Field(
        None, description="Return the prompt before the answer, with its log probabilities too."
    )
    suffix: str | None = Field(
        None, description="The text after the answer, for models with tokens for it."
    )
    logprobs: TopLogprobs | None = Field(
        None, description="Return the log probability of each token and of this many alternatives."
    )

    truncate_prompt_tokens: Annotated[int, _limit("truncate_prompt_tokens")] | None = Field(
        None,
        description="Keep only the last tokens of a longer prompt, as in vLLM. -1: as many as fit.",
    )

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the log probabilities begin with those of the prompt."""
        return bool(self.echo) and self.logprobs is not None


def parse_completion(fields: Mapping[str, Any]) -> CompletionBody:
    """Validate a body. Raises DomainErrors with OpenAI's field names."""
    body = validate(CompletionBody, fields)
    if body.n_probs and body.logprobs is None:
        body = body.model_copy(update={"logprobs": body.n_probs})
    _check_supported(body)
    return body


def prompt_requests(body: CompletionBody) -> list[inference_service_pb2.GenerateRequest]:
    """Convert a body, one request per prompt. Raises DomainErrors with OpenAI's field names."""
    limit = output_limit(body, "max_tokens", "n_predict")
    if body.max_tokens is None and body.n_predict is None:
        limit = DEFAULT_MAX_TOKENS
    options = completion_options(body, limit)
    n = body.n or 1
    best_of = body.best_of or n
    if best_of > n:
        options.num_choices = best_of
        options.output.top_logprobs = 0
    if body.logprobs is not None:
        options.output.top_logprobs = body.logprobs
        if body.echo:
            options.output.prompt_logprobs = max(body.logprobs, body.prompt_logprobs or 0)
    return [_request(body, prompt, options) for prompt in split_inputs(body.prompt)]


def _request(
    body: CompletionBody, prompt: str | list[int], options: generation_pb2.GenerationOptions
) -> inference_service_pb2.GenerateRequest:
    request = inference_service_pb2.GenerateRequest(
        model=body.model,
        options=options,
        parse_special=True,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    if body.suffix:
        request.infill.suffix = body.suffix
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def _check_supported(body: CompletionBody) -> None:
    n, best_of = body.n or 1, body.best_of
    if best_of is not None and best_of < n:
        raise InvalidField(field="best_of", problem="it must not be less than 'n'")
    if best_of is not None and best_of > n and body.stream:
        raise InvalidField(field="best_of", problem="it cannot be streamed")
    if body.truncate_prompt_tokens is not None and (body.echo or body.suffix):
        problem = "it cannot be combined with 'echo' or 'suffix'"
        raise InvalidField(field="truncate_prompt_tokens", problem=problem)
    total = len(split_inputs(body.prompt)) * max(n, best_of or 1)
    if total > MAX_CHOICES:
        raise TooLong(field="prompt", length=total, limit=MAX_CHOICES)
