"""Converts stream events to server-sent events of chunks.

Called for every token, so the constant parts of a chunk are encoded once per stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2

from dialects.openai.chat.chat_request import ChatCompletionBody
from dialects.openai.chat.completion_request import CompletionBody
from dialects.openai.chat.logprobs import chat_logprobs, completion_logprobs, num_characters
from dialects.openai.chat.objects import FINISH_REASONS, usage_and_timings
from dialects.openai.chat.options import GenerationBody
from dialects.openai.envelope import Envelope
from dialects.openai.errors import error_body
from dialects.openai.shared.objects import DONE, sse_data
from svc_kit.errors import DomainError

_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_FINISH = {reason: orjson.dumps(name) for reason, name in FINISH_REASONS.items()}


class _Chunks(ABC):
    """Converts the events of the calls of a body."""

    _object_name: ClassVar[str]
    _field: ClassVar[bytes]
    """The field of a choice that has its output."""
    _no_output: ClassVar[bytes]

    def __init__(self, envelope: Envelope, body: GenerationBody, *, logprobs: bool) -> None:
        self._envelope = envelope
        self._num_choices = body.n or 1
        self._logprobs = logprobs
        self._include_usage = body.wants_usage
        self._done: list[generation_pb2.Done] = []
        self._head = self._tail = b""

    def frames(self, message: Any, call: int = 0) -> Sequence[bytes]:
        """The chunks of one event of a call, usually one."""
        event, first_index = message.WhichOneof("event"), call * self._num_choices
        if event == "delta":
            return self._delta(message.delta, first_index + message.delta.index)
        if event == "finished":
            finished = message.finished
            reason = _FINISH[finished.reason]
            index = first_index + finished.index
            return (self._chunk(index, self._no_output, finish_reason=reason),)
        if event == "accepted":
            self._start(message.accepted.model)
            value = self._first_output(call)
            indexes = range(first_index, first_index + self._num_choices) if value else ()
            return [self._chunk(index, value) for index in indexes]
        if event == "done":
            self._done.append(message.done)
        return ()

    def final_frames(self) -> Sequence[bytes]:
        """The frames after the last event."""
        if not self._include_usage:
            return (DONE,)
        fields = self._envelope.fields(self._object_name)
        usage = fields | {"choices": []} | usage_and_timings(self._done)
        return sse_data(orjson.dumps(usage)), DONE

    def failure(self, error: DomainError) -> bytes:
        """The last frame of a failed stream."""
        return sse_data(orjson.dumps(error_body(error)))

    @abstractmethod
    def _first_output(self, call: int) -> bytes:
        """The output of each choice of a call before its first delta; empty for none."""

    @abstractmethod
    def _delta(self, delta: Any, index: int) -> Sequence[bytes]:
        """The chunks of a delta of the choice with this index."""

    def _start(self, model: str) -> None:
        self._envelope = self._envelope.with_model(model)
        fields = orjson.dumps(self._envelope.fields(self._object_name))
        self._head = b'data: %b,"choices":[{"index":' % fields[:-1]
        self._tail = b'}],"usage":null}\n\n' if self._include_usage else b"}]}\n\n"

    def _chunk(
        self, index: int, output: bytes, logprobs: bytes = b"null", finish_reason: bytes = b"null"
    ) -> bytes:
        """A chunk with one choice."""
        head = b'%b%d,"%b":' % (self._head, index, self._field)
        end = b',"logprobs":%b,"finish_reason":%b%b' % (logprobs, finish_reason, self._tail)
        return head + output + end


class ChatChunks(_Chunks):
    """Converts the events of one Chat call to server-sent events of its chunks."""

    _object_name = "chat.completion.chunk"
    _field = b"delta"
    _no_output = b"{}"

    def __init__(self, envelope: Envelope, body: ChatCompletionBody) -> None:
        super().__init__(envelope, body, logprobs=bool(body.logprobs))

    def _first_output(self, call: int) -> bytes:
        return _ROLE

    def _delta(self, delta: inference_service_pb2.ChatDelta, index: int) -> Sequence[bytes]:
        values = []
        if delta.reasoning:
            values.append(b'{"reasoning_content":%b}' % orjson.dumps(delta.reasoning))
        if delta.content:
            values.append(b'{"content":%b}' % orjson.dumps(delta.content))
        if delta.tool_calls:
            values.extend(value for call in delta.tool_calls for value in _tool_call(call))
        if not self._logprobs or not delta.logprobs:
            return [self._chunk(index, value) for value in values]
        first, *others = values or [b'{"content":""}']
        logprobs = orjson.dumps({"content": chat_logprobs(delta.logprobs), "refusal": None})
        return [
            self._chunk(index, first, logprobs),
            *(self._chunk(index, value) for value in others),
        ]


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
        self._echoes = echoes
        self._offsets: dict[int, int] = {}

    def _first_output(self, call: int) -> bytes:
        return orjson.dumps(self._echoes[call]) if self._echoes else b""

    def _delta(self, delta: inference_service_pb2.TextDelta, index: int) -> Sequence[bytes]:
        text = delta.text
        if self._logprobs and delta.logprobs:
            offset = self._offsets.get(index, 0)
            logprobs = orjson.dumps(completion_logprobs(delta.logprobs, offset))
            self._offsets[index] = offset + sum(
                num_characters(token.chosen.token) for token in delta.logprobs
            )
            return (self._chunk(index, orjson.dumps(text), logprobs),)
        return (self._chunk(index, orjson.dumps(text)),) if text else ()


def _tool_call(call: chat_pb2.ToolCallDelta) -> list[bytes]:
    """The deltas of a tool call. The first has the name and no arguments."""
    deltas: list[dict[str, object]] = []
    if call.id:
        function = {"name": call.name, "arguments": ""}
        deltas.append({"id": call.id, "type": "function", "function": function})
    if call.arguments_json:
        deltas.append({"function": {"arguments": call.arguments_json}})
    return [orjson.dumps({"tool_calls": [{"index": call.index} | delta]}) for delta in deltas]
