"""From a checked body to what collects its answer, wherever the body came from: an HTTP request, or
a line of a batch."""

import secrets
from collections.abc import Awaitable, Callable, Sequence

from openai_wire.envelope import Envelope
from openai_wire.errors import CHAT_PARAMS, COMPLETION_PARAMS, ParamNames, prompt_names
from openai_wire.objects import ChatCompletion, TextCompletion
from openai_wire.requests import ChatCompletionBody, CompletionBody, EmbeddingBody
from openai_wire.requests.completions import prompts_of
from openai_wire.vectors import EmbeddingList

CHAT_ID = "chatcmpl-"
COMPLETION_ID = "cmpl-"


def random_suffix() -> str:
    """What makes the id of an answer unique."""
    return secrets.token_hex(16)


def chat_params(body: ChatCompletionBody) -> ParamNames:
    """What the caller calls the fields of the ChatRequest."""
    return {**CHAT_PARAMS, "constraint": body.constraint_field}


def completion_params(body: CompletionBody) -> ParamNames:
    """What the caller calls the fields of the GenerateRequests."""
    return {**COMPLETION_PARAMS, "constraint": body.constraint_field}


async def echoes_of(
    body: CompletionBody, text_of: Callable[[Sequence[int]], Awaitable[str]]
) -> list[str]:
    """The prompts as text, to stand before the answers, if the body asks for them. `text_of` gives
    the text of tokens."""
    prompts = prompts_of(body)
    echoes: list[str] = []
    for number, prompt in enumerate(prompts if body.echo else ()):
        with prompt_names(number, len(prompts)):
            echoes.append(prompt if isinstance(prompt, str) else await text_of(prompt))
    return echoes


def whole_chat(body: ChatCompletionBody, envelope: Envelope) -> ChatCompletion:
    """Collects the events of the call that a body asks for."""
    return ChatCompletion(envelope, num_choices=body.n or 1, logprobs=bool(body.logprobs))


def whole_completion(
    body: CompletionBody, envelope: Envelope, echoes: Sequence[str]
) -> TextCompletion:
    """Collects the events of the calls that a body asks for, one a prompt."""
    num_choices = body.n or 1
    return TextCompletion(
        envelope,
        num_prompts=len(prompts_of(body)),
        produced=body.best_of or num_choices,
        kept=num_choices,
        logprobs=body.logprobs is not None,
        echoes=echoes,
    )


def embedding_list(body: EmbeddingBody) -> EmbeddingList:
    """Collects the answer of the call that a body asks for."""
    return EmbeddingList(body.model, packs=body.encoding_format == "base64")
