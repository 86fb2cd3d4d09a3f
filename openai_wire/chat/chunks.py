"""Stream events as chunks of JSON bytes.

This is the token path: constant parts of a chunk are encoded once a stream.
"""

from collections.abc import Sequence

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2

from openai_wire.chat.logprobs import chat_logprobs, completion_logprobs, num_characters
from openai_wire.chat.objects import FINISH_REASONS, accounts
from openai_wire.envelope import Envelope

DONE = b"[DONE]"
"""The payload that ends a stream which did not fail."""
_CHAT_CHUNK = "chat.completion.chunk"
_COMPLETION = "text_completion"
_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_FINISH = {reason: orjson.dumps(name) for reason, name in FINISH_REASONS.items()}


class _Frame:
    """The constant text around the values that change in the chunks of one stream."""

    def __init__(
        self, envelope: Envelope, object_name: str, field: bytes, include_usage: bool
    ) -> None:
        fields = orjson.dumps(envelope.fields(object_name))
        self._head = fields[:-1] + b',"choices":[{"index":'
        self._field = b',"%b":' % field
        self._tail = b'}],"usage":null}' if include_usage else b"}]}"

    def around(
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
    """Turns the events of one Chat call into the payloads of its chunks."""

    def __init__(
        self, envelope: Envelope, *, num_choices: int, logprobs: bool, include_usage: bool
    ) -> None:
        self._envelope = envelope
        self._num_choices = num_choices
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._done: list[generation_pb2.Done] = []
        self._frame = self._framed()

    def payloads(
        self, message: inference_service_pb2.ChatResponse, _call: int = 0
    ) -> Sequence[bytes]:
        """The chunks of one event, most often one."""
        event = message.WhichOneof("event")
        if event == "delta":
            return self._delta(message.delta)
        if event == "finished":
            finished = message.finished
            reason = _FINISH[finished.reason]
            return (self._frame.around(finished.index, b"{}", finish_reason=reason),)
        if event == "accepted":
            self._envelope = self._envelope.answered_by(message.accepted.model)
            self._frame = self._framed()
            return [self._frame.around(index, _ROLE) for index in range(self._num_choices)]
        if event == "done":
            self._done.append(message.done)
        return ()

    def closing(self) -> Sequence[bytes]:
        """The payloads after the last event."""
        if not self._include_usage:
            return (DONE,)
        return _usage_chunk(self._envelope, _CHAT_CHUNK, self._done), DONE

    def _framed(self) -> _Frame:
        return _Frame(self._envelope, _CHAT_CHUNK, b"delta", self._include_usage)

    def _delta(self, delta: inference_service_pb2.ChatDelta) -> Sequence[bytes]:
        values = []
        if delta.reasoning:
            values.append(b'{"reasoning_content":%b}' % orjson.dumps(delta.reasoning))
        if delta.content:
            values.append(b'{"content":%b}' % orjson.dumps(delta.content))
        if delta.tool_calls:
            values.extend(value for call in delta.tool_calls for value in _tool_call(call))
        index, around = delta.index, self._frame.around
        if not self._logprobs or not delta.logprobs:
            return [around(index, value) for value in values]
        first, *others = values or [b'{"content":""}']
        tokens = orjson.dumps({"content": chat_logprobs(delta.logprobs), "refusal": None})
        return [around(index, first, tokens), *(around(index, value) for value in others)]


class CompletionChunks:
    """Turns the events of Generate calls, one for each prompt, into the payloads of their chunks.

    `echoes` are texts to send before the answers, one for each prompt, or none.
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
        self._frame: _Frame | None = None

    def payloads(
        self, message: inference_service_pb2.GenerateResponse, call: int = 0
    ) -> Sequence[bytes]:
        """The chunks of one event of the call for a prompt, most often one."""
        event = message.WhichOneof("event")
        if self._frame is None:
            self._envelope = self._envelope.answered_by(message.accepted.model)
            self._frame = _Frame(self._envelope, _COMPLETION, b"text", self._include_usage)
        first_index = call * self._num_choices
        if event == "delta":
            return self._delta(message.delta, first_index, self._frame)
        if event == "finished":
            finished = message.finished
            index, reason = first_index + finished.index, _FINISH[finished.reason]
            return (self._frame.around(index, b'""', finish_reason=reason),)
        if event == "accepted" and self._echoes:
            text, indexes = orjson.dumps(self._echoes[call]), range(self._num_choices)
            return [self._frame.around(first_index + index, text) for index in indexes]
        if event == "done":
            self._done.append(message.done)
        return ()

    def closing(self) -> Sequence[bytes]:
        """The payloads after the last event."""
        if not self._include_usage:
            return (DONE,)
        return _usage_chunk(self._envelope, _COMPLETION, self._done), DONE

    def _delta(
        self, delta: inference_service_pb2.TextDelta, first_index: int, frame: _Frame
    ) -> Sequence[bytes]:
        index, text = first_index + delta.index, delta.text
        if self._logprobs and delta.logprobs:
            offset = self._offsets.get(index, 0)
            tokens = orjson.dumps(completion_logprobs(delta.logprobs, offset))
            self._offsets[index] = offset + sum(
                num_characters(token.chosen.token) for token in delta.logprobs
            )
            return (frame.around(index, orjson.dumps(text), tokens),)
        return (frame.around(index, orjson.dumps(text)),) if text else ()


def _usage_chunk(
    envelope: Envelope, object_name: str, done: Sequence[generation_pb2.Done]
) -> bytes:
    return orjson.dumps(envelope.fields(object_name) | {"choices": []} | accounts(done))


def _tool_call(call: chat_pb2.ToolCallDelta) -> list[bytes]:
    """The fragments of a piece: the first names the call and has no arguments yet."""
    fragments: list[dict[str, object]] = []
    if call.id:
        function = {"name": call.name, "arguments": ""}
        fragments.append({"id": call.id, "type": "function", "function": function})
    if call.arguments_json:
        fragments.append({"function": {"arguments": call.arguments_json}})
    return [
        orjson.dumps({"tool_calls": [{"index": call.index} | fragment]}) for fragment in fragments
    ]
