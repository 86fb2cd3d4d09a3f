"""Converts stream events to chunks of JSON bytes.

Called for every token, so the constant parts of a chunk are encoded once per stream.
"""

from collections.abc import Sequence

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2

from openai_wire.chat.logprobs import chat_logprobs, completion_logprobs, num_characters
from openai_wire.chat.objects import FINISH_REASONS, usage_and_timings
from openai_wire.envelope import Envelope

DONE = b"[DONE]"
"""The last payload of a successful stream."""
_CHAT_CHUNK = "chat.completion.chunk"
_COMPLETION = "text_completion"
_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_FINISH = {reason: orjson.dumps(name) for reason, name in FINISH_REASONS.items()}


class _ChunkTemplate:
    """Encoder of the chunks of one stream."""

    def __init__(
        self, envelope: Envelope, object_name: str, field: bytes, include_usage: bool
    ) -> None:
        fields = orjson.dumps(envelope.fields(object_name))
        self._head = fields[:-1] + b',"choices":[{"index":'
        self._field = b',"%b":' % field
        self._tail = b'}],"usage":null}' if include_usage else b"}]}"

    def chunk(
        self, index: int, value: bytes, logprobs: bytes = b"null", finish_reason: bytes = b"null"
    ) -> bytes:
        """A chunk with one choice."""
        return b"".join(
            (
                self._head,
                b"%d" % index,
                self._field,
                value,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish_reason,
                self._tail,
            )
        )


class ChatChunks:
    """Converts the events of one Chat call to the payloads of its chunks."""

    def __init__(
        self, envelope: Envelope, *, num_choices: int, logprobs: bool, include_usage: bool
    ) -> None:
        self._envelope = envelope
        self._num_choices = num_choices
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._done: list[generation_pb2.Done] = []
        self._template = self._new_template()

    def payloads(
        self, message: inference_service_pb2.ChatResponse, _call: int = 0
    ) -> Sequence[bytes]:
        """The chunks of one event, usually one."""
        event = message.WhichOneof("event")
        if event == "delta":
            return self._delta(message.delta)
        if event == "finished":
            finished = message.finished
            reason = _FINISH[finished.reason]
            return (self._template.chunk(finished.index, b"{}", finish_reason=reason),)
        if event == "accepted":
            self._envelope = self._envelope.with_model(message.accepted.model)
            self._template = self._new_template()
            return [self._template.chunk(index, _ROLE) for index in range(self._num_choices)]
        if event == "done":
            self._done.append(message.done)
        return ()

    def final_payloads(self) -> Sequence[bytes]:
        """The payloads after the last event."""
        if not self._include_usage:
            return (DONE,)
        return _usage_chunk(self._envelope, _CHAT_CHUNK, self._done), DONE

    def _new_template(self) -> _ChunkTemplate:
        return _ChunkTemplate(self._envelope, _CHAT_CHUNK, b"delta", self._include_usage)

    def _delta(self, delta: inference_service_pb2.ChatDelta) -> Sequence[bytes]:
        values = []
        if delta.reasoning:
            values.append(b'{"reasoning_content":%b}' % orjson.dumps(delta.reasoning))
        if delta.content:
            values.append(b'{"content":%b}' % orjson.dumps(delta.content))
        if delta.tool_calls:
            values.extend(value for call in delta.tool_calls for value in _tool_call(call))
        index, chunk = delta.index, self._template.chunk
        if not self._logprobs or not delta.logprobs:
            return [chunk(index, value) for value in values]
        first, *others = values or [b'{"content":""}']
        logprobs = orjson.dumps({"content": chat_logprobs(delta.logprobs), "refusal": None})
        return [chunk(index, first, logprobs), *(chunk(index, value) for value in others)]


class CompletionChunks:
    """Converts the events of Generate calls, one for each prompt, to the payloads of their chunks.

    `echoes` are texts that precede the answers, one for each prompt, or none.
    """

    def __init__(
        self,
        envelope: Envelope,
        *,
        num_choices: int,
        logprobs: bool,
        include_usage: bool,
        echoes: Sequence[str] = (),
    ) -> None:
        self._envelope = envelope
        self._num_choices = num_choices
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._echoes = echoes
        self._offsets: dict[int, int] = {}
        self._done: list[generation_pb2.Done] = []
        self._template: _ChunkTemplate | None = None

    def payloads(
        self, message: inference_service_pb2.GenerateResponse, call: int = 0
    ) -> Sequence[bytes]:
        """The chunks of one event of the call for a prompt, usually one."""
        event = message.WhichOneof("event")
        if self._template is None:
            self._envelope = self._envelope.with_model(message.accepted.model)
            self._template = _ChunkTemplate(
                self._envelope, _COMPLETION, b"text", self._include_usage
            )
        first_index = call * self._num_choices
        if event == "delta":
            return self._delta(message.delta, first_index, self._template)
        if event == "finished":
            finished = message.finished
            index, reason = first_index + finished.index, _FINISH[finished.reason]
            return (self._template.chunk(index, b'""', finish_reason=reason),)
        if event == "accepted" and self._echoes:
            text, indexes = orjson.dumps(self._echoes[call]), range(self._num_choices)
            return [self._template.chunk(first_index + index, text) for index in indexes]
        if event == "done":
            self._done.append(message.done)
        return ()

    def final_payloads(self) -> Sequence[bytes]:
        """The payloads after the last event."""
        if not self._include_usage:
            return (DONE,)
        return _usage_chunk(self._envelope, _COMPLETION, self._done), DONE

    def _delta(
        self, delta: inference_service_pb2.TextDelta, first_index: int, template: _ChunkTemplate
    ) -> Sequence[bytes]:
        index, text = first_index + delta.index, delta.text
        if self._logprobs and delta.logprobs:
            offset = self._offsets.get(index, 0)
            logprobs = orjson.dumps(completion_logprobs(delta.logprobs, offset))
            self._offsets[index] = offset + sum(
                num_characters(token.chosen.token) for token in delta.logprobs
            )
            return (template.chunk(index, orjson.dumps(text), logprobs),)
        return (template.chunk(index, orjson.dumps(text)),) if text else ()


def _usage_chunk(
    envelope: Envelope, object_name: str, done: Sequence[generation_pb2.Done]
) -> bytes:
    return orjson.dumps(envelope.fields(object_name) | {"choices": []} | usage_and_timings(done))


def _tool_call(call: chat_pb2.ToolCallDelta) -> list[bytes]:
    """The deltas of a tool call. The first has the name and no arguments."""
    deltas: list[dict[str, object]] = []
    if call.id:
        function = {"name": call.name, "arguments": ""}
        deltas.append({"id": call.id, "type": "function", "function": function})
    if call.arguments_json:
        deltas.append({"function": {"arguments": call.arguments_json}})
    return [orjson.dumps({"tool_calls": [{"index": call.index} | delta]}) for delta in deltas]
