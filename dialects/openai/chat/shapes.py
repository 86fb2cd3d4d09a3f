"""Chat and text completions and their chunks as they are sent. `objects.py` fills the objects, and
`chunks.py` writes chunks as bytes.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.chat.logprobs import CompletionLogprobs
from dialects.openai.envelope import EnvelopeFields
from dialects.openai.errors import Error
from dialects.shared.timings import Timings
from dialects.shared.token_logprobs import TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls"]
ChatFinishReason = FinishReason | Literal["function_call"]


class TokenCounts(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptTokenCounts(TypedDict):
    """Tokens of a prompt that were cached, and those of its sounds and pictures."""

    cached_tokens: int
    audio_tokens: int
    image_tokens: int


class AnswerTokenCounts(TypedDict):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(TokenCounts):
    """Token counts of all choices."""

    prompt_tokens_details: PromptTokenCounts
    completion_tokens_details: AnswerTokenCounts


class UsageFields(TypedDict):
    """Token counts, and the timings of a single call."""

    usage: CompletionUsage
    timings: NotRequired[Timings]


class PromptLogprob(TypedDict):
    """The log probability of a token at a place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token those of the candidates by token id; None where there is none."""


class PromptFields(TypedDict, total=False):
    """What was requested of the prompt, in vLLM's fields."""

    prompt_logprobs: PromptLogprobs
    prompt_token_ids: list[int]


class AnswerIds(TypedDict, total=False):
    """The tokens of an answer, if they were requested."""

    token_ids: list[int]


class ChatFunctionCall(TypedDict):
    """A function and its arguments, a text of JSON."""

    name: str
    arguments: str


class ChatToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: ChatFunctionCall


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ChatToolCall]]
    function_call: NotRequired[ChatFunctionCall]


class ChatLogprobs(TypedDict):
    """The log probabilities of a content."""

    content: list[TokenLogprob]
    refusal: None


class ChatChoice(AnswerIds):
    """A choice of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatCompletion(EnvelopeFields, PromptFields, UsageFields):
    id: str
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionChoice(PromptFields, AnswerIds):
    """A choice of a text completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(EnvelopeFields, UsageFields):
    id: str
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChunkFields(EnvelopeFields):
    """Fields of all chunks. Those before the last one have the counts so far, if requested, and
    null if only the last is to have counts."""

    id: str
    usage: NotRequired[TokenCounts | CompletionUsage | None]
    timings: NotRequired[Timings]


class StartedToolCall(TypedDict):
    """The beginning of a call."""

    index: int
    id: str
    type: Literal["function"]
    function: ChatFunctionCall


class CallArguments(TypedDict):
    """A piece of a call's arguments."""

    arguments: str


class ContinuedToolCall(TypedDict):
    """More of a call."""

    index: int
    function: CallArguments


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str
    tool_calls: list[StartedToolCall | ContinuedToolCall]
    function_call: ChatFunctionCall | CallArguments


class ChatChunkChoice(AnswerIds):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatCompletionChunk(ChunkFields, PromptFields):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class CompletionChunk(ChunkFields):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


ChatCompletionEvent = TypeAliasType("ChatCompletionEvent", ChatCompletionChunk | Error)
CompletionEvent = TypeAliasType("CompletionEvent", CompletionChunk | Error)
