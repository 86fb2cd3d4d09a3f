"""Whole completions and their usage as OpenAI's objects."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from corral.inference.v1 import generation_pb2, inference_service_pb2

from dialects.openai.chat.chat_request import ChatCompletionBody, body_reasoning
from dialects.openai.chat.completion_request import CompletionBody
from dialects.openai.chat.legacy_functions import FINISH_REASON, answer_fields, function_names
from dialects.openai.chat.logprobs import CompletionLogprobs, completion_logprobs
from dialects.openai.chat.messages import picture_names
from dialects.openai.chat.options import CompletionFields
from dialects.openai.chat.prompt_tokens import PromptTokens, check_collected, joined_logprobs
from dialects.openai.chat.shapes import (
    AnswerIds,
    ChatCompletion,
    ChatFinishReason,
    ChatLogprobs,
    ChatMessage,
    Completion,
    CompletionChoice,
    CompletionUsage,
    FinishReason,
    PromptFields,
    UsageFields,
)
from dialects.openai.envelope import Envelope
from dialects.openai.errors import CHAT_PARAMS, COMPLETION_PARAMS, ParamNames, prompt_names
from dialects.shared.fields import split_inputs
from dialects.shared.timings import timings_object
from dialects.shared.token_logprobs import chat_logprobs

FINISH_REASONS: Final[dict[int, FinishReason]] = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(slots=True)
class _ToolCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _ChatChoice:
    """One choice of a chat completion while its deltas arrive."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict)
    logprobs: list[generation_pb2.ChosenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, delta: inference_service_pb2.ChatDelta) -> None:
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        self.logprobs.extend(delta.logprobs)
        self.token_ids.extend(delta.token_ids)
        for call_delta in delta.tool_calls:
            call = self.tool_calls.setdefault(call_delta.index, _ToolCall())
            call.id = call.id or call_delta.id
            call.name = call.name or call_delta.name
            call.arguments.append(call_delta.arguments_json)

    def message(self) -> ChatMessage:
        content = "".join(self.content)
        message: ChatMessage = {
            "role": "assistant",
            "content": content if content or not self.tool_calls else None,
            "refusal": None,
            "annotations": [],
        }
        reasoning = "".join(self.reasoning)
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for _, call in sorted(self.tool_calls.items())
            ]
        return message


class CollectedChat:
    """Collects the events of the Chat call of a body into a chat.completion."""

    def __init__(self, envelope: Envelope, body: ChatCompletionBody) -> None:
        self._envelope = envelope
        self._body = body
        self._prompt = PromptTokens(body.prompt_logprobs)
        self._choices = [_ChatChoice() for _ in range(body.n or 1)]
        self._done: list[generation_pb2.Done] = []

    def add(self, message: inference_service_pb2.ChatResponse, _call: int = 0) -> None:
        match message.WhichOneof("event"):
            case "delta":
                self._choices[message.delta.index].add(message.delta)
            case "prompt_tokens":
                self._prompt.add(message.prompt_tokens.tokens)
            case "accepted":
                self._envelope = self._envelope.with_model(message.accepted.model)
                self._prompt.ids = message.accepted.prompt_token_ids
            case "finished":
                finished = message.finished
                self._choices[finished.index].finish_reason = FINISH_REASONS[finished.reason]
            case "done":
                self._done.append(message.done)

    def as_object(self) -> ChatCompletion:
        return {
            "id": self._envelope.id,
            "object": "chat.completion",
            **self._envelope.fields(),
            "choices": [
                {
                    "index": index,
                    "message": self._message(choice),
                    "logprobs": self._choice_logprobs(choice),
                    "finish_reason": self._finish_reason(choice),
                    **answer_ids(self._body, choice.token_ids),
                }
                for index, choice in enumerate(self._choices)
            ],
            **prompt_fields(self._body, self._prompt),
            **usage_and_timings(self._done, has_prediction=self._body.prediction is not None),
        }

    def _message(self, choice: _ChatChoice) -> ChatMessage:
        message = choice.message()
        return answer_fields(message) if self._body.has_functions else message

    def _finish_reason(self, choice: _ChatChoice) -> ChatFinishReason | None:
        is_call = choice.finish_reason == "tool_calls" and self._body.has_functions
        return FINISH_REASON if is_call else choice.finish_reason

    def _choice_logprobs(self, choice: _ChatChoice) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return {"content": chat_logprobs(choice.logprobs), "refusal": None}


@dataclass(slots=True)
class _TextChoice:
    """One choice of a text completion while its deltas arrive."""

    text: list[str] = field(default_factory=list)
    logprobs: list[generation_pb2.ChosenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def mean_logprob(self) -> float:
        if not self.logprobs:
            return 0.0
        return sum(token.chosen.logprob for token in self.logprobs) / len(self.logprobs)


class CollectedCompletion:
    """Collects the events of the Generate calls of a body, one for each prompt, into a
    text_completion.

    Each prompt has `best_of` choices, of which the `n` most probable are returned. `echoes` are
    texts that precede the answers, one for each prompt, or none.
    """

    def __init__(
        self, envelope: Envelope, body: CompletionBody, echoes: Sequence[str] = ()
    ) -> None:
        self._envelope = envelope
        self._body = body
        self._n = body.n or 1
        num_prompts, best_of = len(split_inputs(body.prompt)), body.best_of or self._n
        self._echoes = list(echoes) or [""] * num_prompts
        self._num_logprobs = 0
        self._prompts = [new_prompt(body) for _ in range(num_prompts)]
        self._choices = [[_TextChoice() for _ in range(best_of)] for _ in range(num_prompts)]
        self._done: list[generation_pb2.Done] = []

    def add(self, message: inference_service_pb2.GenerateResponse, prompt: int = 0) -> None:
        """Add one event of the call for a prompt. Raises TooLong if the prompts have too many
        log probabilities."""
        match message.WhichOneof("event"):
            case "delta":
                choice = self._choices[prompt][message.delta.index]
                choice.text.append(message.delta.text)
                choice.logprobs.extend(message.delta.logprobs)
                choice.token_ids.extend(message.delta.token_ids)
            case "prompt_tokens":
                self._num_logprobs += self._prompts[prompt].add(message.prompt_tokens.tokens)
                check_collected(self._num_logprobs)
            case "accepted":
                self._envelope = self._envelope.with_model(message.accepted.model)
                self._prompts[prompt].ids = message.accepted.prompt_token_ids
            case "finished":
                finished = message.finished
                choice = self._choices[prompt][finished.index]
                choice.finish_reason = FINISH_REASONS[finished.reason]
            case "done":
                self._done.append(message.done)

    def as_object(self) -> Completion:
        best = [
            (number, choice)
            for number, choices in enumerate(self._choices)
            for choice in self._select_best(choices)
        ]
        return {
            "id": self._envelope.id,
            "object": "text_completion",
            **self._envelope.fields(),
            "choices": [self._choice(index, *each) for index, each in enumerate(best)],
            **usage_and_timings(self._done),
        }

    def _choice(self, index: int, number: int, choice: _TextChoice) -> CompletionChoice:
        echo, prompt = self._echoes[number], self._prompts[number]
        return {
            "index": index,
            "text": echo + "".join(choice.text),
            "logprobs": self._choice_logprobs(echo, prompt, choice),
            "finish_reason": choice.finish_reason,
            **prompt_fields(self._body, prompt),
            **answer_ids(self._body, choice.token_ids),
        }

    def _choice_logprobs(
        self, echo: str, prompt: PromptTokens, choice: _TextChoice
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        answer = completion_logprobs(choice.logprobs, len(echo))
        if not self._body.echoes_logprobs:
            return answer
        return joined_logprobs(prompt.echo(echo), answer)

    def _select_best(self, choices: list[_TextChoice]) -> list[_TextChoice]:
        if self._n == len(choices):
            return choices
        return sorted(choices, key=_TextChoice.mean_logprob, reverse=True)[: self._n]


def new_prompt(body: CompletionBody) -> PromptTokens:
    """A collector of what a body requests of each of its prompts."""
    return PromptTokens(body.prompt_logprobs, body.logprobs if body.echo else None)


def prompt_fields(body: CompletionFields, prompt: PromptTokens) -> PromptFields:
    """What a body requests of its prompt, in vLLM's fields."""
    fields: PromptFields = {}
    if body.prompt_logprobs is not None:
        fields["prompt_logprobs"] = prompt.logprobs
    if body.return_token_ids:
        fields["prompt_token_ids"] = list(prompt.ids)
    return fields


def answer_ids(body: CompletionFields, token_ids: Sequence[int]) -> AnswerIds:
    """The ids of the tokens of an answer, if a body requests them."""
    return {"token_ids": list(token_ids)} if body.return_token_ids else {}


def usage_and_timings(
    done: Sequence[generation_pb2.Done], *, has_prediction: bool = False
) -> UsageFields:
    """The summed usage of calls and, if there is only one, its timings."""
    fields: UsageFields = {
        "usage": usage_object([each.usage for each in done], has_prediction=has_prediction)
    }
    if len(done) == 1:
        fields["timings"] = timings_object(done[0])
    return fields


def usage_object(every: Sequence[generation_pb2.Usage], *, has_prediction: bool) -> CompletionUsage:
    """The summed token counts of calls. Without a prediction, drafts are not counted as its."""
    drafted = sum(usage.draft_tokens for usage in every) if has_prediction else 0
    accepted = sum(usage.accepted_draft_tokens for usage in every) if has_prediction else 0
    prompt = sum(usage.prompt_tokens for usage in every)
    completion = sum(usage.completion_tokens for usage in every)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in every),
            "audio_tokens": sum(usage.audio_tokens for usage in every),
            "image_tokens": sum(usage.image_tokens for usage in every),
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in every),
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


CHAT_ID = "chatcmpl-"
COMPLETION_ID = "cmpl-"


def chat_params(body: ChatCompletionBody) -> ParamNames:
    """The caller's names of ChatRequest fields."""
    pictures = picture_names(body.messages)
    reasoning = body_reasoning(body).names
    functions = function_names(body.functions)
    own = {"constraint": body.constraint_field, **pictures, **reasoning, **functions}
    return {**CHAT_PARAMS, **own}


def completion_params(body: CompletionBody) -> ParamNames:
    """The caller's names of GenerateRequest fields."""
    return {**COMPLETION_PARAMS, "constraint": body.constraint_field}


async def render_echoes(
    body: CompletionBody, detokenize: Callable[[Sequence[int]], Awaitable[str]]
) -> list[str]:
    """The prompts as text, to precede the answers; empty unless the body sets `echo`."""
    prompts = split_inputs(body.prompt)
    echoes: list[str] = []
    for number, prompt in enumerate(prompts if body.echo else ()):
        with prompt_names(number, len(prompts)):
            echoes.append(prompt if isinstance(prompt, str) else await detokenize(prompt))
    return echoes
