"""Converts stream events to server-sent events of chunks.

Called for every token, so the constant parts of a chunk are encoded once per stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2

from dialects.openai.chat.chat_request import ChatCompletionBody
from dialects.openai.chat.completion_request import CompletionBody
from dialects.openai.chat.legacy_functions import call_deltas
from dialects.openai.chat.logprobs import completion_logprobs, num_characters
from dialects.openai.chat.objects import (
    FINISH_REASONS,
    new_prompt,
    prompt_fields,
    usage_and_timings,
)
from dialects.openai.chat.options import CompletionFields, StreamOptions
from dialects.openai.chat.prompt_tokens import PromptTokens
from dialects.openai.envelope import Envelope
from dialects.openai.errors import error_body
from dialects.openai.shared.objects import DONE, sse_data
from dialects.shared.token_logprobs import chat_logprobs
from svc_kit.errors import DomainError

_END = b"}\n\n"
_NULL = b"null"
_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_FINISH = {reason: orjson.dumps(name) for reason, name in FINISH_REASONS.items()}


class _Chunks(ABC):
    _object_name: ClassVar[str]
    _field: ClassVar[bytes]
    """The field of a choice that has its output."""
    _no_output: ClassVar[bytes]
    _finish = _FINISH

    def __init__(self, envelope: Envelope, body: CompletionFields, *, logprobs: bool) -> None:
        self._envelope = envelope
        self._options = body
        self._prompts: dict[int, PromptTokens] = {}
        self._held: dict[int, list[bytes]] = {}
        self._num_choices = body.n or 1
        self._logprobs = logprobs
        options = body.stream_options or StreamOptions()
        self._include_usage = bool(options.include_usage)
        self._counts_chunks = bool(options.continuous_usage_stats)
        self._has_prediction = False
        self._prompt_tokens = self._completion_tokens = 0
        self._done: list[generation_pb2.Done] = []
        self._heads: dict[int, bytes] = {}  # what a chunk begins with, by the index of its choice
        self._tail = b""
        self._without_role: set[int] = set()
        """Choices whose first chunk has the role beside its output, because it may be a call."""

    def frames(self, message: Any, call: int = 0) -> Sequence[bytes]:
        """The chunks of one event of a call, usually one."""
        event, first_index = message.WhichOneof("event"), call * self._num_choices
        if event == "delta":
            if self._counts_chunks:
                self._completion_tokens += message.delta.num_tokens
                self._set_tail()
            delta, index = message.delta, message.delta.index
            if not self._prompts:
                return self._delta(delta, first_index + index)
            return self._after_prompt(call, index, partial(self._delta, delta, first_index + index))
        if event == "finished":
            finished = message.finished
            reason = self._finish[finished.reason]
            index = first_index + finished.index
            make = partial(self._end, index, reason)
            return self._after_prompt(call, finished.index, make)
        if event == "accepted":
            self._prompt_tokens += message.accepted.prompt_tokens
            self._start(message.accepted.model, self._indexes(call))
            prompt = self._prompts[call] = self._new_prompt()
            prompt.ids = message.accepted.prompt_token_ids
            value = self._first_output(call)
            return [self._chunk(index, value) for index in self._indexes(call) if value]
        if event == "prompt_tokens":
            self._prompts[call].add(message.prompt_tokens.tokens)
        if event == "done":
            self._done.append(message.done)
        return ()

    def final_frames(self) -> Sequence[bytes]:
        """The frames after the last event."""
        if not self._include_usage:
            return (DONE,)
        usage = usage_and_timings(self._done, has_prediction=self._has_prediction)
        return sse_data(orjson.dumps({**self._fields(), "choices": [], **usage})), DONE

    def failure(self, error: DomainError) -> bytes:
        """The last frame of a failed stream."""
        return sse_data(orjson.dumps(error_body(error)))

    def _indexes(self, call: int) -> range:
        return range(call * self._num_choices, (call + 1) * self._num_choices)

    def _after_prompt(
        self, call: int, choice: int, make: Callable[[], Sequence[bytes]]
    ) -> Sequence[bytes]:
        """Make the chunks of a choice, after those with what was requested of the prompt. The first
        choice begins when the prompt is complete; what others have before is held back."""
        if call not in self._prompts:
            return make()
        if self._sends_prompt and choice > 0:
            self._held.setdefault(call, []).extend(make())
            return ()
        prompt = self._prompts.pop(call)
        if not self._sends_prompt:
            return make()
        chunks = self._prompt_chunks(call, prompt, prompt_fields(self._options, prompt))
        return [*chunks, *self._held.pop(call, ()), *make()]

    def _end(self, index: int, reason: bytes) -> Sequence[bytes]:
        return (self._chunk(index, self._no_output, finish_reason=reason),)

    def _new_prompt(self) -> PromptTokens:
        return PromptTokens(self._options.prompt_logprobs)

    @property
    def _sends_prompt(self) -> bool:
        options = self._options
        return options.prompt_logprobs is not None or bool(options.return_token_ids)

    @abstractmethod
    def _prompt_chunks(
        self, call: int, prompt: PromptTokens, fields: Mapping[str, object]
    ) -> Sequence[bytes]:
        """The chunks of a prompt; `fields` are vLLM's."""

    @abstractmethod
    def _first_output(self, call: int) -> bytes:
        """The output of each choice of a call before its first delta; empty for none."""

    @abstractmethod
    def _delta(self, delta: Any, index: int) -> Sequence[bytes]:
        """The chunks of a delta of the choice with this index."""

    def _start(self, model: str, indexes: range) -> None:
        self._envelope = self._envelope.with_model(model)
        fields = orjson.dumps(self._fields())[:-1]
        self._heads |= {
            index: b'data: %b,"choices":[{"index":%d,"%b":' % (fields, index, self._field)
            for index in indexes
        }
        self._set_tail()

    def _fields(self) -> Mapping[str, object]:
        envelope = self._envelope
        return {"id": envelope.id, "object": self._object_name, **envelope.fields()}

    def _set_tail(self) -> None:
        if self._counts_chunks:
            counts = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._completion_tokens,
                "total_tokens": self._prompt_tokens + self._completion_tokens,
            }
            self._tail = b'}],"usage":%b}\n\n' % orjson.dumps(counts)
        else:
            self._tail = b'}],"usage":null}\n\n' if self._include_usage else b"}]}\n\n"

    def _chunk(
        self,
        index: int,
        output: bytes,
        logprobs: bytes = _NULL,
        finish_reason: bytes = _NULL,
        more: bytes = b"",
    ) -> bytes:
        """A chunk with one choice; `more` are further fields of the choice, after a comma."""
        if index in self._without_role:
            self._without_role.remove(index)
            output = _with_role(output)
        end = b',"logprobs":%b,"finish_reason":%b%b' % (logprobs, finish_reason, more)
        return self._heads[index] + output + end + self._tail

    def _ids(self, token_ids: Sequence[int]) -> bytes:
        """The ids of the tokens of a delta as a further field of its choice, if requested."""
        return _more({"token_ids": list(token_ids)}) if self._options.return_token_ids else b""


class ChatChunks(_Chunks):
    """Converts the events of one Chat call to server-sent events of its chunks."""

    _object_name = "chat.completion.chunk"
    _field = b"delta"
    _no_output = b"{}"

    def __init__(self, envelope: Envelope, body: ChatCompletionBody) -> None:
        super().__init__(envelope, body, logprobs=bool(body.logprobs))
        self._has_prediction = body.prediction is not None
        self._call_deltas = call_deltas if body.has_functions else _tool_call
        if body.has_functions:
            self._finish = _FINISH | {generation_pb2.FINISH_REASON_TOOL_CALLS: b'"function_call"'}
        if body.tools:
            self._without_role = set(range(self._num_choices))

    def _first_output(self, call: int) -> bytes:
        return b"" if self._without_role else _ROLE

    def _delta(self, delta: inference_service_pb2.ChatDelta, index: int) -> Sequence[bytes]:
        outputs, ids, logprobs = [], self._ids(delta.token_ids), _NULL
        if delta.reasoning:
            outputs.append((b'{"reasoning_content":%b}' % orjson.dumps(delta.reasoning), _NULL))
        if self._logprobs and delta.logprobs:
            logprobs = orjson.dumps({"content": chat_logprobs(delta.logprobs), "refusal": None})
        if delta.content or logprobs is not _NULL:
            outputs.append((b'{"content":%b}' % orjson.dumps(delta.content), logprobs))
        if delta.tool_calls:
            outputs += [
                (value, _NULL) for call in delta.tool_calls for value in self._call_deltas(call)
            ]
        if ids and not outputs:
            outputs.append((b'{"content":""}', _NULL))
        return [
            self._chunk(index, value, entries, more=b"" if number else ids)
            for number, (value, entries) in enumerate(outputs)
        ]

    def _prompt_chunks(
        self, call: int, prompt: PromptTokens, fields: Mapping[str, object]
    ) -> Sequence[bytes]:
        chunk = self._chunk(0, self._no_output)
        return (chunk.removesuffix(_END) + _more(fields) + _END,)


class CompletionChunks(_Chunks):
    """Converts the events of Generate calls, one for each prompt, to server-sent events of their
    chunks.

    `echoes` are texts that precede the answers, one for each prompt, or none.
    """

    _object_name = "text_completion"
    _field = b"text"
    _no_output = b'""'

    def __init__(
        self, envelope: Envelope, body: CompletionBody, echoes: Sequence[str] = ()
    ) -> None:
        super().__init__(envelope, body, logprobs=body.logprobs is not None)
        self._body = body
        self._echoes = echoes
        self._offsets: dict[int, int] = {}

    def _first_output(self, call: int) -> bytes:
        has_echo = self._echoes and not self._body.echoes_logprobs
        return orjson.dumps(self._echoes[call]) if has_echo else b""

    def _new_prompt(self) -> PromptTokens:
        return new_prompt(self._body)

    @property
    def _sends_prompt(self) -> bool:
        return self._body.echoes_logprobs or super()._sends_prompt

    def _prompt_chunks(
        self, call: int, prompt: PromptTokens, fields: Mapping[str, object]
    ) -> Sequence[bytes]:
        text, logprobs = self._no_output, _NULL
        if self._body.echoes_logprobs:
            echo = self._echoes[call]
            text = orjson.dumps(echo)
            logprobs = orjson.dumps(prompt.echo(echo))
        more = _more(fields)
        return [self._chunk(index, text, logprobs, more=more) for index in self._indexes(call)]

    def _delta(self, delta: inference_service_pb2.TextDelta, index: int) -> Sequence[bytes]:
        text, ids = delta.text, self._ids(delta.token_ids)
        if self._logprobs and delta.logprobs:
            echo = self._echoes[index // self._num_choices] if self._echoes else ""
            offset = self._offsets.get(index, len(echo))
            logprobs = orjson.dumps(completion_logprobs(delta.logprobs, offset))
            self._offsets[index] = offset + sum(
                num_characters(token.chosen.token) for token in delta.logprobs
            )
            return (self._chunk(index, orjson.dumps(text), logprobs, more=ids),)
        return (self._chunk(index, orjson.dumps(text), more=ids),) if text or ids else ()


def _more(fields: Mapping[str, object]) -> bytes:
    """Further fields of an object, after a comma."""
    return b"," + orjson.dumps(fields)[1:-1] if fields else b""


def _with_role(output: bytes) -> bytes:
    """The delta of the first chunk of a choice. As OpenAI's, its content is null for a call."""
    if output.startswith(b'{"content":'):
        return b'{"role":"assistant",%b,"refusal":null}' % output[1:-1]
    if output == b"{}":
        return _ROLE
    return b'{"role":"assistant","content":null,%b,"refusal":null}' % output[1:-1]


def _tool_call(call: chat_pb2.ToolCallDelta) -> list[bytes]:
    """The deltas of a tool call. The first has the name and no arguments."""
    deltas: list[dict[str, object]] = []
    if call.id:
        function = {"name": call.name, "arguments": ""}
        deltas.append({"id": call.id, "type": "function", "function": function})
    if call.arguments_json:
        deltas.append({"function": {"arguments": call.arguments_json}})
    return [orjson.dumps({"tool_calls": [{"index": call.index} | delta]}) for delta in deltas]
