"""Converts the events of a generation to Ollama's lines of JSON, or to one object."""

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NotRequired

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2
from google.protobuf.duration_pb2 import Duration
from typing_extensions import TypeAliasType, TypedDict

from dialects.ollama.errors import OllamaError, error_body
from dialects.shared.json_body import tool_input
from dialects.shared.token_logprobs import TokenLogprob, chat_logprobs
from svc_kit.errors import DomainError

_LENGTH: Final = generation_pb2.FINISH_REASON_LENGTH


def timestamp(at: datetime | None = None) -> str:
    """A time, by default the current one, in RFC 3339."""
    return (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


class OllamaFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(TypedDict):
    id: str
    function: OllamaFunction


class OllamaMessage(TypedDict):
    """The answer of a chat, or a piece of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCall]]


class ChatOutput(TypedDict):
    """What /api/chat answers."""

    message: OllamaMessage


class PromptOutput(TypedDict):
    """What /api/generate answers."""

    response: str
    thinking: NotRequired[str]


class AnswerHead(TypedDict):
    """The model and the time of a line or an object."""

    model: str
    created_at: str


class AnswerLogprobs(TypedDict, total=False):
    """Log probabilities, if they were requested."""

    logprobs: list[TokenLogprob]


class PieceEnd(TypedDict):
    """The last field of a line before the last one."""

    done: Literal[False]


class AnswerEnd(TypedDict):
    """The last fields of an answer. Durations are in nanoseconds."""

    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class AnswerContext(TypedDict, total=False):
    context: list[int]


class PromptAnswerEnd(AnswerEnd, AnswerContext):
    """The last fields of an answer to a prompt."""


class LoadedEnd(TypedDict):
    """The last fields of the answer to a request without a prompt."""

    done: Literal[True]
    done_reason: Literal["load", "unload"]


class OllamaChatPiece(AnswerHead, ChatOutput, AnswerLogprobs, PieceEnd):
    """A line of a chat before the last one."""


class OllamaChatAnswer(AnswerHead, ChatOutput, AnswerLogprobs, AnswerEnd):
    """A whole chat, or the last line of it."""


class OllamaLoadedChat(AnswerHead, ChatOutput, LoadedEnd):
    """The answer to a chat without messages."""


class OllamaGenerationPiece(AnswerHead, PromptOutput, AnswerLogprobs, PieceEnd):
    """A line of an answer before the last one."""


class OllamaGenerationAnswer(AnswerHead, PromptOutput, AnswerLogprobs, PromptAnswerEnd):
    """A whole answer, or the last line of it."""


class OllamaLoadedGeneration(AnswerHead, PromptOutput, LoadedEnd):
    """The answer to an empty prompt."""


OllamaChat = TypeAliasType("OllamaChat", OllamaChatAnswer | OllamaLoadedChat)
OllamaChatChunk = TypeAliasType("OllamaChatChunk", OllamaChatPiece | OllamaChatAnswer)
OllamaChatEvent = TypeAliasType("OllamaChatEvent", OllamaChatChunk | OllamaError)
OllamaGeneration = TypeAliasType(
    "OllamaGeneration", OllamaGenerationAnswer | OllamaLoadedGeneration
)
OllamaGenerationChunk = TypeAliasType(
    "OllamaGenerationChunk", OllamaGenerationPiece | OllamaGenerationAnswer
)
OllamaGenerationEvent = TypeAliasType("OllamaGenerationEvent", OllamaGenerationChunk | OllamaError)
NO_MESSAGE: Final[ChatOutput] = {"message": {"role": "assistant", "content": ""}}
NO_RESPONSE: Final[PromptOutput] = {"response": ""}


@dataclass(slots=True)
class Output:
    """What a line or a whole answer contains. The calls follow the text."""

    text: str = ""
    thinking: str = ""
    calls: list[OllamaToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, later: "Output") -> None:
        """Append what follows."""
        self.text += later.text
        self.thinking += later.thinking
        self.calls += later.calls
        self.logprobs += later.logprobs

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls or self.logprobs)


class Answer(ABC):
    """The events of one generation as lines (`frames`), or as one object (`add`, `as_object`).

    `model` is the name in the request. The clock of `total_duration` starts when this is made.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._started_ns = time.monotonic_ns()
        self._load_ns = 0
        self._open_call: chat_pb2.ToolCallDelta | None = None
        self._reason: Literal["stop", "length"] = "stop"
        self._done = generation_pb2.Done()
        self._whole = Output()

    def frames(self, message: Any, _call: int = 0) -> Sequence[bytes]:
        """The lines of one event: none without output, and usually one."""
        outputs = filter(None, self._read(message))
        end: PieceEnd = {"done": False}
        return [_line({**self._object(output), **end}) for output in outputs]

    def final_frames(self) -> Sequence[bytes]:
        """The last line."""
        return (_line({**self._object(Output()), **self._end()}),)

    def failure(self, error: DomainError) -> bytes:
        """The last line of a failed stream."""
        return _line(error_body(error))

    def add(self, message: Any, _call: int = 0) -> None:
        for output in self._read(message):
            self._whole.add(output)

    def as_object(self) -> Mapping[str, Any]:
        return {**self._object(self._whole), **self._end()}

    @abstractmethod
    def _fields(self, output: Output) -> ChatOutput | PromptOutput:
        """The fields that have the text, the thinking and the calls."""

    def _end(self) -> AnswerEnd:
        usage, timings = self._done.usage, self._done.timings
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": time.monotonic_ns() - self._started_ns,
            "load_duration": self._load_ns,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(timings.prefill),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(timings.decode),
        }

    def _object(self, output: Output) -> Mapping[str, object]:
        logprobs: AnswerLogprobs = {"logprobs": output.logprobs} if output.logprobs else {}
        return {**_head(self._model), **self._fields(output), **logprobs}

    def _read(self, message: Any) -> Sequence[Output]:
        match message.WhichOneof("event"):
            case "delta":
                return self._delta(message.delta)
            case "accepted":
                self._load_ns = time.monotonic_ns() - self._started_ns
            case "finished":
                self._reason = "length" if message.finished.reason == _LENGTH else "stop"
                return (Output(calls=self._close_call()),)
            case "done":
                self._done = message.done
        return ()

    def _delta(self, delta: Any) -> Sequence[Output]:
        """The text and the calls that have ended; a call ends where text or the next call begins,
        and is then a line before the text."""
        output = Output(delta.content, delta.reasoning)
        output.logprobs = chat_logprobs(delta.logprobs) if delta.logprobs else []
        before = Output(calls=self._close_call() if output.text or output.thinking else [])
        for part in delta.tool_calls:
            if part.name:
                output.calls += self._close_call()
                self._open_call = chat_pb2.ToolCallDelta(
                    index=part.index, id=part.id, name=part.name
                )
            if self._open_call is not None:
                self._open_call.arguments_json += part.arguments_json
        return (before, output)

    def _close_call(self) -> list[OllamaToolCall]:
        """The call that has ended, if any."""
        call, self._open_call = self._open_call, None
        if call is None:
            return []
        arguments = tool_input(call.arguments_json)
        function: OllamaFunction = {
            "index": call.index,
            "name": call.name,
            "arguments": arguments,
        }
        return [{"id": call.id, "function": function}]


class ChatAnswer(Answer):
    def _fields(self, output: Output) -> ChatOutput:
        message: OllamaMessage = {"role": "assistant", "content": output.text}
        if output.thinking:
            message["thinking"] = output.thinking
        if output.calls:
            message["tool_calls"] = output.calls
        return {"message": message}


class PromptAnswer(Answer):
    """The answer of /api/generate. `prompt_tokens` are those of the prompt, for `context`; None:
    the answer has no context."""

    def __init__(self, model: str, prompt_tokens: Sequence[int] | None = None) -> None:
        super().__init__(model)
        self._context = None if prompt_tokens is None else array("i", prompt_tokens)

    def _delta(self, delta: Any) -> Sequence[Output]:
        if self._context is not None:
            self._context.extend(delta.token_ids)
        if isinstance(delta, inference_service_pb2.TextDelta):
            logprobs = chat_logprobs(delta.logprobs) if delta.logprobs else []
            return (Output(text=delta.text, logprobs=logprobs),)
        return super()._delta(delta)

    def _fields(self, output: Output) -> PromptOutput:
        fields: PromptOutput = {"response": output.text}
        if output.thinking:
            fields["thinking"] = output.thinking
        return fields

    def _end(self) -> PromptAnswerEnd:
        context: AnswerContext = {} if self._context is None else {"context": [*self._context]}
        return {**super()._end(), **context}


def loaded(model: str, output: ChatOutput | PromptOutput, *, unloads: bool) -> Mapping[str, object]:
    """The answer to a request without a prompt. `output` has its empty text."""
    end: LoadedEnd = {"done": True, "done_reason": "unload" if unloads else "load"}
    return {**_head(model), **output, **end}


def _head(model: str) -> AnswerHead:
    return {"model": model, "created_at": timestamp()}


def _line(fields: Mapping[str, object]) -> bytes:
    return orjson.dumps(fields) + b"\n"


def _nanoseconds(duration: Duration) -> int:
    nanoseconds: int = duration.ToNanoseconds()
    return nanoseconds
