"""Converts the events of continuations to llama-server's events, or to its objects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

import orjson
from corral.inference.v1 import generation_pb2
from typing_extensions import TypeAliasType, TypedDict

from dialects.llama_server.completion import ContinuationBody
from dialects.llama_server.errors import LlamaServerError, error_body
from dialects.shared.json_body import answer_value, json_text
from dialects.shared.timings import Timings, timings_object
from dialects.shared.token_logprobs import CandidateLogprob, candidate_logprob
from svc_kit.errors import DomainError

StopType = Literal["none", "eos", "limit", "word"]


class CandidateProbability(CandidateLogprob):
    """The log probability of a token, with its id."""

    id: int


class TokenProbability(CandidateProbability):
    """The log probability of a sampled token, and those of the most probable ones."""

    top_logprobs: list[CandidateProbability]


class ContinuationFields(TypedDict):
    """An answer, or a piece of it."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[TokenProbability]]


class ContinuationChunk(ContinuationFields):
    stop: Literal[False]


class Continuation(ContinuationFields):
    """A whole answer; in a stream its end, without the text and the tokens."""

    stop: Literal[True]
    model: str
    generation_settings: dict[str, Any]
    prompt: str | list[int]
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings


ContinuationList = TypeAliasType("ContinuationList", list[Continuation])
_Event = ContinuationChunk | Continuation | LlamaServerError
ContinuationEvent = TypeAliasType("ContinuationEvent", _Event)


@dataclass(slots=True)
class _Continuation:
    """One prompt's answer while its events arrive."""

    prompt: str | list[int]
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[TokenProbability] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    stop_type: StopType = "none"
    stopping_word: str = ""
    done: generation_pb2.Done = field(default_factory=generation_pb2.Done)


class Continuations:
    """The answers to the prompts of a body, as events or as objects."""

    def __init__(self, body: ContinuationBody, prompts: Sequence[str | list[int]]) -> None:
        settings = body.model_dump(
            exclude_none=True, exclude={"prompt", "input_prefix", "input_suffix", "input_extra"}
        )
        self._settings = answer_value(json_text(settings))
        self._model = body.model or ""
        self._answers = [_Continuation(prompt) for prompt in prompts]

    def frames(self, message: Any, call: int = 0) -> Sequence[bytes]:
        """The events of one event of a call: text, or the end of its answer."""
        self.add(message, call)
        answer = self._answers[call]
        if message.WhichOneof("event") == "done":
            return (_event(self._final(call, streamed=True)),)
        if message.WhichOneof("event") != "delta" or not (
            message.delta.text or message.delta.token_ids
        ):
            return ()
        event: ContinuationChunk = {
            "index": call,
            "content": message.delta.text,
            "tokens": list(message.delta.token_ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": answer.num_tokens,
            "tokens_evaluated": answer.num_prompt_tokens,
        }
        if message.delta.logprobs:
            event["completion_probabilities"] = _probabilities(message.delta.logprobs)
        return (_event(event),)

    def final_frames(self) -> Sequence[bytes]:
        """Nothing: the last event of an answer says that it is the last."""
        return ()

    def failure(self, error: DomainError) -> bytes:
        """The last event of a failed stream."""
        return _event(error_body(error))

    def add(self, message: Any, call: int = 0) -> None:
        answer = self._answers[call]
        match message.WhichOneof("event"):
            case "accepted":
                answer.num_prompt_tokens = message.accepted.prompt_tokens
                self._model = message.accepted.model
            case "delta":
                delta = message.delta
                answer.text.append(delta.text)
                answer.tokens += delta.token_ids
                answer.num_tokens += delta.num_tokens
                answer.probabilities += _probabilities(delta.logprobs)
            case "finished":
                self._finish(answer, message.finished)
            case "done":
                answer.done = message.done

    def as_object(self) -> Continuation | list[Continuation]:
        """The answer, or a list of them if there are several prompts."""
        answers = [self._final(index, streamed=False) for index in range(len(self._answers))]
        return answers[0] if len(answers) == 1 else answers

    def _finish(self, answer: _Continuation, finished: generation_pb2.ChoiceFinished) -> None:
        answer.num_tokens = finished.completion_tokens or answer.num_tokens
        if finished.reason == generation_pb2.FINISH_REASON_LENGTH:
            answer.stop_type = "limit"
        elif finished.stop_text:
            answer.stop_type, answer.stopping_word = "word", finished.stop_text
        else:
            answer.stop_type = "eos"

    def _final(self, index: int, *, streamed: bool) -> Continuation:
        answer = self._answers[index]
        text = "".join(answer.text)
        fields: Continuation = {
            "index": index,
            "content": "" if streamed else text,
            "tokens": [] if streamed else answer.tokens,
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": answer.num_tokens,
            "tokens_evaluated": answer.num_prompt_tokens,
            "generation_settings": self._settings,
            "prompt": answer.prompt,
            "has_new_line": "\n" in text,
            "truncated": False,
            "stop_type": answer.stop_type,
            "stopping_word": answer.stopping_word,
            "tokens_cached": answer.done.usage.cached_tokens,
            "timings": timings_object(answer.done),
        }
        if answer.probabilities and not streamed:
            fields["completion_probabilities"] = answer.probabilities
        return fields


def _event(event: _Event) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(event)


def _probabilities(tokens: Iterable[generation_pb2.ChosenLogprob]) -> list[TokenProbability]:
    return [
        {**_probability(token.chosen), "top_logprobs": [_probability(each) for each in token.top]}
        for token in tokens
    ]


def _probability(token: generation_pb2.TokenLogprob) -> CandidateProbability:
    return {"id": token.token_id, **candidate_logprob(token)}
