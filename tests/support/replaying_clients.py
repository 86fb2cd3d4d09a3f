"""Clients of each dialect, which build the next request from what they were answered."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from corral.inference.v1.inference_service_pb2 import ChatResponse
from corral.inference.v1.inference_service_pb2 import Conversation as ConversationProto

from control_svc.agent.drafts import TurnDraft
from control_svc.agent.prompt import turn_messages
from control_svc.inference.turn_client import chat_request as turn_chat_request
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemStatus
from control_svc.items.proto import ITEM, input_item
from control_svc.items.service import call_parts
from control_svc.responses.compaction import check_calls
from dialects.anthropic.message_request import message_request, parse_message
from dialects.anthropic.objects import CollectedMessage
from dialects.ollama import requests as ollama
from dialects.ollama.events import ChatAnswer
from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.objects import CollectedChat
from dialects.openai.responses.input_items import item_to_proto
from dialects.openai.responses.output_items import item_object
from dialects.shared.json_body import json_bytes, json_text, load_exact
from tests.support.wire_events import chat_body, make_envelope

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HELLO: Json = {"role": "user", "content": "hello"}


class Piece(NamedTuple):
    """Reasoning, content or a call of an answer, as a client keeps it for another dialect."""

    kind: str
    text: str
    """The arguments of a call, as JSON."""
    call_id: str = ""
    name: str = ""


class Client(ABC):
    """Builds the body of the next request as clients do, from answers and results."""

    def user(self, role: str, text: str) -> Json:
        """A message of the user, of the assistant, or instructions."""
        return {"role": role, "content": text}

    @abstractmethod
    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        """The entries of an answer."""

    def written(self, call_id: str) -> str:
        return call_id

    @abstractmethod
    def calls(self, entry: Json) -> list[str]:
        """The ids of the calls of an entry."""

    @abstractmethod
    def result(self, call_id: str, text: str) -> Json:
        """The result of a call."""

    @abstractmethod
    def read(self, entry: Json) -> Iterator[Piece]:
        """What an entry of an answer has, in its order."""

    @abstractmethod
    def write(self, pieces: Sequence[Piece]) -> list[Json]:
        """The entries for an answer that was read, maybe in another dialect."""

    @abstractmethod
    def send(self, entries: Sequence[Json]) -> ConversationProto:
        """The conversation that the inference service gets. Raises DomainErrors."""


class Chat(Client):
    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        completion = CollectedChat(make_envelope(), chat_body())
        for each in sent:
            completion.add(each)
        answer: Any = completion.as_object()
        return [answer["choices"][0]["message"]]

    def calls(self, entry: Json) -> list[str]:
        return [call["id"] for call in entry.get("tool_calls") or ()]

    def result(self, call_id: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def read(self, entry: Json) -> Iterator[Piece]:
        return _read_message(entry, "reasoning_content")

    def write(self, pieces: Sequence[Piece]) -> list[Json]:
        return [_message(pieces, "reasoning_content")]

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        return chat_request(parse_chat({"model": "m", "messages": list(entries)})).conversation


class FrugalChat(Chat):
    """Chats of clients that omit what is empty, as those in Go, unless nothing would be left."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        (whole,) = super().answer(sent)
        kept = {name: value for name, value in whole.items() if value}
        return [kept if len(kept) > 1 else {**kept, "content": ""}]


class Messages(Client):
    """Anthropic's messages."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        message = CollectedMessage(parse_message(self._body([HELLO])))
        for each in sent:
            message.add(each)
        content = load_exact(json_bytes(message.as_object()["content"]))
        return [{"role": "assistant", "content": content}]

    def calls(self, entry: Json) -> list[str]:
        blocks = entry["content"] if isinstance(entry["content"], list) else ()
        return [block["id"] for block in blocks if block["type"] == "tool_use"]

    def written(self, call_id: str) -> str:
        return call_id.removeprefix("toolu_")

    def result(self, call_id: str, text: str) -> Json:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [block]}

    def read(self, entry: Json) -> Iterator[Piece]:
        for block in entry["content"]:
            match block["type"]:
                case "thinking":
                    yield Piece("reasoning", block["thinking"])
                case "text":
                    yield Piece("content", block["text"])
                case "tool_use":
                    arguments = json_text(block["input"])
                    yield Piece("call", arguments, block["id"], block["name"])

    def write(self, pieces: Sequence[Piece]) -> list[Json]:
        return [{"role": "assistant", "content": list(map(self._block, pieces))}]

    def _block(self, piece: Piece) -> Json:
        match piece.kind:
            case "reasoning":
                return {"type": "thinking", "thinking": piece.text, "signature": ""}
            case "content":
                return {"type": "text", "text": piece.text}
        arguments = _loaded(piece.text)
        return {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": arguments}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        return message_request(parse_message(self._body(entries))).proto.conversation

    def _body(self, entries: Sequence[Json]) -> Json:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = {"model": "m", "max_tokens": 2048, "thinking": thinking}
        return body | {"messages": list(entries)}


class Ollama(Client):
    """Ollama's chats."""

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        answer = ChatAnswer("m")
        for each in sent:
            answer.add(each)
        return [load_exact(json_bytes(answer.as_object()["message"]))]

    def calls(self, entry: Json) -> list[str]:
        return [call["id"] for call in entry.get("tool_calls") or ()]

    def result(self, call_id: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def read(self, entry: Json) -> Iterator[Piece]:
        return _read_message(entry, "thinking")

    def write(self, pieces: Sequence[Piece]) -> list[Json]:
        return [_message(pieces, "thinking", _loaded)]

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        body = ollama.parse_chat({"model": "m", "messages": list(entries)})
        return ollama.chat_request(body).conversation


class Responses(Client):
    """Responses, conversations and threads: their items are the same."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def answer(self, sent: Sequence[ChatResponse]) -> list[Json]:
        draft = TurnDraft([], {}, lambda prefix: f"{prefix}{next(self._numbers)}", lambda: NOW)
        for each in sent:
            if each.HasField("delta"):
                list(draft.apply(each.delta))
        items = (each.item(ItemStatus.COMPLETED) for each in draft.drafts)
        return [cast(Json, item_object(ITEM.to_message(item))) for item in items]

    def calls(self, entry: Json) -> list[str]:
        return [entry["call_id"]] if entry.get("type") == "function_call" else []

    def result(self, call_id: str, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def read(self, entry: Json) -> Iterator[Piece]:
        match entry["type"]:
            case "reasoning":
                yield Piece("reasoning", "".join(part["text"] for part in entry["summary"]))
            case "message":
                yield Piece("content", "".join(part["text"] for part in entry["content"]))
            case "function_call":
                yield Piece("call", entry["arguments"], entry["call_id"], full_name(entry))

    def write(self, pieces: Sequence[Piece]) -> list[Json]:
        return list(map(self._output_item, pieces))

    def _output_item(self, piece: Piece) -> Json:
        text = {"text": piece.text}
        match piece.kind:
            case "reasoning":
                return {"type": "reasoning", "summary": [{"type": "summary_text", **text}]}
            case "content":
                return {"role": "assistant", "content": [{"type": "output_text", **text}]}
        call = {"call_id": piece.call_id, "name": piece.name, "arguments": piece.text}
        return {"type": "function_call", **call}

    def send(self, entries: Sequence[Json]) -> ConversationProto:
        items = [self._item(index, entry) for index, entry in enumerate(entries)]
        for num_stored in range(len(items)):  # those of a previous response or a conversation
            check_calls(call_parts(items[:num_stored]), items[num_stored:])
        request = TurnRequest(project="p", model="m", messages=turn_messages("", items), seed=0)
        return turn_chat_request(request, {}).conversation

    def _item(self, index: int, entry: Json) -> Item:
        given = input_item(item_to_proto(entry, f"input[{index}]"), f"input[{index}]")
        given.check(f"input[{index}]")
        assert given.content is not None
        return Item(id=f"i{index}", status=given.status, created_at=NOW, content=given.content)


CLIENTS: dict[str, Callable[[], Client]] = {
    "chat": Chat,
    "messages": Messages,
    "ollama": Ollama,
    "responses": Responses,
}


def full_name(call: Json) -> str:
    """The name of a tool with its namespace, as dialects without namespaces have it."""
    return ".".join(filter(None, (call.get("namespace"), call["name"])))


def _read_message(message: Json, reasoning: str) -> Iterator[Piece]:
    if text := message.get(reasoning):
        yield Piece("reasoning", text)
    if text := message.get("content"):
        yield Piece("content", text)
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json_text(arguments)
        yield Piece("call", text, call["id"], call["function"]["name"])


def _loaded(text: str) -> Any:
    """The value of JSON text, with all digits of its numbers, as servers parse bodies."""
    return load_exact(text.encode())


def _message(
    pieces: Sequence[Piece], reasoning: str, arguments: Callable[[str], Any] = str
) -> Json:
    texts = {
        kind: separator.join(piece.text for piece in pieces if piece.kind == kind)
        for kind, separator in (("reasoning", ""), ("content", "\n"))
    }
    calls = [
        {
            "id": piece.call_id,
            "type": "function",
            "function": {"name": piece.name, "arguments": arguments(piece.text)},
        }
        for piece in pieces
        if piece.kind == "call"
    ]
    message: Json = {"role": "assistant", "content": texts["content"]}
    message |= {reasoning: texts["reasoning"]} if texts["reasoning"] else {}
    return message | ({"tool_calls": calls} if calls else {})
