"""Converts stream events to server-sent events of a message.

Called for every token, so the constant parts of a delta are encoded once per block. One block is
open at a time, and their indexes have no holes: Anthropic's SDKs rely on both.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import orjson
from corral.inference.v1 import chat_pb2, inference_service_pb2
from pydantic import Discriminator
from typing_extensions import TypeAliasType, TypedDict

from dialects.anthropic.errors import AnthropicErrorDetails, error_details
from dialects.anthropic.message_request import CreateMessageBody
from dialects.anthropic.objects import (
    AnthropicBlock,
    AnthropicMessage,
    AnthropicUsage,
    BlockKind,
    MessageState,
    StopReason,
    tool_use_id,
)
from dialects.anthropic.signatures import write_signature
from svc_kit.errors import DomainError

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_STARTS: Final[Mapping[BlockKind, AnthropicBlock]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS: Final = {
    "text": b'"text_delta","text":',
    "thinking": b'"thinking_delta","thinking":',
    "tool_use": b'"input_json_delta","partial_json":',
}
"""The type of the deltas of a block, and the key of their text."""


class AnthropicMessageStartEvent(TypedDict):
    """The message, without content."""

    type: Literal["message_start"]
    message: AnthropicMessage


class AnthropicPingEvent(TypedDict):
    """Keeps the connection open."""

    type: Literal["ping"]


class AnthropicContentBlockStartEvent(TypedDict):
    """An empty block."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnthropicBlock


class AnthropicTextDelta(TypedDict):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class AnthropicThinkingDelta(TypedDict):
    """More of a thought."""

    type: Literal["thinking_delta"]
    thinking: str


class AnthropicInputDelta(TypedDict):
    """More of the input of a tool, as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class AnthropicSignatureDelta(TypedDict):
    """The signature of a thought."""

    type: Literal["signature_delta"]
    signature: str


class AnthropicContentBlockDeltaEvent(TypedDict):
    """More of the open block."""

    type: Literal["content_block_delta"]
    index: int
    delta: (
        AnthropicTextDelta | AnthropicThinkingDelta | AnthropicInputDelta | AnthropicSignatureDelta
    )


class AnthropicContentBlockStopEvent(TypedDict):
    """The end of the open block."""

    type: Literal["content_block_stop"]
    index: int


class AnthropicStop(TypedDict):
    """Why a message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class AnthropicMessageDeltaEvent(TypedDict):
    """The end of the message, with the final token counts."""

    type: Literal["message_delta"]
    delta: AnthropicStop
    usage: AnthropicUsage


class AnthropicMessageStopEvent(TypedDict):
    """The last event."""

    type: Literal["message_stop"]


class AnthropicErrorEvent(TypedDict):
    """The last event of a failed stream."""

    type: Literal["error"]
    error: AnthropicErrorDetails


_Event = (
    AnthropicMessageStartEvent
    | AnthropicPingEvent
    | AnthropicContentBlockStartEvent
    | AnthropicContentBlockDeltaEvent
    | AnthropicContentBlockStopEvent
    | AnthropicMessageDeltaEvent
    | AnthropicMessageStopEvent
    | AnthropicErrorEvent
)
AnthropicEvent = TypeAliasType("AnthropicEvent", Annotated[_Event, Discriminator("type")])


def _frame(event: _Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


class MessageEvents:
    """Converts the events of one Chat call.

    The message starts with the computation, since its first event says how much of the prompt was
    cached. Until then the client gets pings.
    """

    def __init__(self, body: CreateMessageBody) -> None:
        self._state = MessageState(body)
        self._shows_thinking = body.shows_thinking
        self._hidden: list[str] = []
        """The pieces of a thought that is not shown."""
        self._has_started = False
        self._kind: BlockKind | None = None
        """The kind of the open block, if one is open."""
        self._index = -1
        self._head = b""

    def frames(
        self, message: inference_service_pb2.ChatResponse, _call: int = 0
    ) -> Sequence[bytes]:
        """The events of one event of the call, usually one."""
        event = message.WhichOneof("event")
        if event == "delta":
            return [*self._start(), *self._delta(message.delta)]
        if event == "accepted":
            self._state.accept(message.accepted)
        elif event == "started":
            self._state.start(message.started)
            return self._start()
        elif event == "finished":
            self._state.finish(message.finished)
        elif event == "done":
            self._state.complete(message.done)
        return ()

    def final_frames(self) -> Sequence[bytes]:
        """The events after the last event of the call."""
        state = self._state
        end = _frame(
            {
                "type": "message_delta",
                "delta": {"stop_reason": state.stop_reason, "stop_sequence": state.stop_sequence},
                "usage": state.usage(),
            }
        )
        return [*self._start(), *self._close(), end, _STOP]

    def failure(self, error: DomainError) -> bytes:
        """The last event of a failed stream."""
        return _frame({"type": "error", "error": error_details(error)})

    def _start(self) -> Sequence[bytes]:
        if self._has_started:
            return ()
        self._has_started = True
        return [_frame({"type": "message_start", "message": self._state.object([])}), PING]

    def _delta(self, delta: inference_service_pb2.ChatDelta) -> Iterator[bytes]:
        if delta.reasoning:
            yield from self._open("thinking")
            if self._shows_thinking:
                yield self._piece(delta.reasoning)
            else:
                self._hidden.append(delta.reasoning)
        if delta.content:
            yield from self._open("text")
            yield self._piece(delta.content)
        for call in delta.tool_calls:
            yield from self._call(call)

    def _call(self, call: chat_pb2.ToolCallDelta) -> Iterator[bytes]:
        if call.id:
            yield from self._close()
            call_id = tool_use_id(call.id)
            yield self._open_block(
                "tool_use", {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}
            )
        if call.arguments_json:
            yield self._piece(call.arguments_json)

    def _open(self, kind: BlockKind) -> Iterator[bytes]:
        if self._kind != kind:
            yield from self._close()
            yield self._open_block(kind, _STARTS[kind])

    def _open_block(self, kind: BlockKind, block: AnthropicBlock) -> bytes:
        self._kind, self._index = kind, self._index + 1
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":%b' % (self._index, _DELTAS[kind])
        )
        return _frame({"type": "content_block_start", "index": self._index, "content_block": block})

    def _piece(self, text: str) -> bytes:
        return b"%b%b}}\n\n" % (self._head, orjson.dumps(text))

    def _close(self) -> Iterator[bytes]:
        if not self._kind:
            return
        if self._kind == "thinking":
            signature = write_signature("".join(self._hidden))
            self._hidden.clear()
            yield _frame(
                {
                    "type": "content_block_delta",
                    "index": self._index,
                    "delta": {"type": "signature_delta", "signature": signature},
                }
            )
        self._kind = None
        yield _frame({"type": "content_block_stop", "index": self._index})
