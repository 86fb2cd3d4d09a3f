"""Prompts and answers as the JSON of OpenTelemetry's GenAI conventions (`gen_ai.input.messages` and
`gen_ai.output.messages`), for spans that record content.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

Part = dict[str, Any]
_CALL: Final = "tool_call"


def input_messages(request: pb.ChatRequest | pb.GenerateRequest) -> str:
    """The messages of a prompt. Pictures, sounds and documents are named, not included."""
    if isinstance(request, pb.GenerateRequest):
        messages = [{"role": "user", "parts": [{"type": "text", "content": request.text}]}]
    else:
        messages = [
            {
                "role": chat_pb2.Role.Name(message.role).removeprefix("ROLE_").lower(),
                "parts": list(_parts(message)),
            }
            for message in request.conversation.messages
        ]
    return orjson.dumps(messages).decode()


def _parts(message: chat_pb2.ChatMessage) -> Iterator[Part]:
    if message.reasoning:
        yield {"type": "reasoning", "content": message.reasoning}
    for part in message.parts:
        kind = part.WhichOneof("part")
        if kind in ("text", "refusal"):
            text = getattr(part, kind)
            if message.tool_call_id:
                yield {"type": "tool_call_response", "id": message.tool_call_id, "response": text}
            else:
                yield {"type": "text", "content": text}
        elif kind is not None:
            yield {"type": kind}
    for call in message.tool_calls:
        yield _call(call.id, call.name, call.arguments_json)


class OutputMessages:
    """Collects the output of the choices of a request."""

    def __init__(self) -> None:
        self._choices: dict[int, _Output] = {}

    def add(self, response: pb.ChatResponse | pb.GenerateResponse) -> None:
        """Add the delta of a response, if it has one."""
        if response.HasField("delta"):
            delta = response.delta
            self._choices.setdefault(delta.index, _Output()).add(delta)

    def text(self, reasons: Mapping[int, str]) -> str:
        """The messages; `reasons` are the finish reasons of the choices that have finished."""
        messages = [
            {
                "role": "assistant",
                "parts": list(output.parts()),
                "finish_reason": reasons.get(index, "error"),
            }
            for index, output in sorted(self._choices.items())
        ]
        return orjson.dumps(messages).decode()


class _Output:
    """The parts of one choice in the order in which they were written."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, list[str]]] = []
        """The kind and the pieces of a part; the first of a call are its id and its name."""

    def add(self, delta: pb.ChatDelta | pb.TextDelta) -> None:
        if isinstance(delta, pb.TextDelta):
            self._append("text", delta.text)
            return
        self._append("reasoning", delta.reasoning)
        self._append("text", delta.content)
        for call in delta.tool_calls:
            if call.name:
                self._parts.append((_CALL, [call.id, call.name]))
            self._append(_CALL, call.arguments_json)

    def parts(self) -> Iterator[Part]:
        for kind, pieces in self._parts:
            if kind == _CALL:
                yield _call(pieces[0], pieces[1], "".join(pieces[2:]))
            else:
                yield {"type": kind, "content": "".join(pieces)}

    def _append(self, kind: str, text: str) -> None:
        if not text:
            return
        if not self._parts or self._parts[-1][0] != kind:
            self._parts.append((kind, []))
        self._parts[-1][1].append(text)


def _call(call_id: str, name: str, arguments_json: str) -> Part:
    arguments: object = arguments_json
    with suppress(orjson.JSONDecodeError):
        orjson.loads(arguments_json)
        arguments = orjson.Fragment(arguments_json)  # with all digits of its numbers
    return {"type": _CALL, "id": call_id, "name": name, "arguments": arguments}
