"""The pieces of a turn arrive in the order in which the model wrote them, however its tokens come
in batches: for every family, in every dialect.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from corral.inference.v1.inference_service_pb2 import ChatResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.agent.drafts import TurnDraft
from control_svc.items.model import ItemStatus
from control_svc.responses.events import TurnProjection
from dialects.anthropic.events import MessageEvents
from dialects.anthropic.message_request import parse_message
from dialects.anthropic.objects import CollectedMessage
from dialects.ollama.events import ChatAnswer
from dialects.openai.chat.chunks import ChatChunks
from dialects.openai.chat.objects import CollectedChat
from dialects.openai.responses.events import event_object
from dialects.shared.json_body import json_text, load_exact, tool_input
from inference_svc.rpc.span_content import OutputMessages
from tests.support.examples import examples, timeout
from tests.support.golden_turns import GOLDEN
from tests.support.random_turns import random_turns
from tests.support.replaying_clients import full_name
from tests.support.served_turns import Batches, serve
from tests.support.turns import Golden, Parsed
from tests.support.wire_events import chat_body, make_envelope

Piece = tuple[str, ...]
"""A kind and a text, or "call", a name and the arguments."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
SHOWN = {"type": "enabled", "budget_tokens": 1024}


def responses(turn: Golden, batches: Batches, max_calls: int | None) -> list[ChatResponse]:
    """What the inference service sends for a turn whose tokens come in these batches."""
    return serve(turn.parser(), batches, max_calls)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring texts of a kind."""
    result: list[Piece] = []
    for kind, text, *rest in pieces:
        if rest or not result or result[-1][0] != kind or kind == "call":
            result.append((kind, text, *rest))
        else:
            result[-1] = (kind, result[-1][1] + text)
    return result


def of_stream(sent: Sequence[ChatResponse]) -> list[Piece]:
    """The pieces of the service's stream. No argument comes outside its call."""
    pieces: list[Piece] = []
    for delta in (each.delta for each in sent if each.HasField("delta")):
        pieces += [("reasoning", delta.reasoning)] if delta.reasoning else []
        pieces += [("text", delta.content)] if delta.content else []
        for call in delta.tool_calls:
            if call.name:
                pieces.append(("call", call.name, call.arguments_json))
            else:
                assert pieces[-1][0] == "call"
                pieces[-1] = (*pieces[-1][:2], pieces[-1][2] + call.arguments_json)
    return joined(pieces)


def of_chat_chunks(sent: Sequence[ChatResponse], **fields: Any) -> list[Piece]:
    chunks = ChatChunks(make_envelope(), chat_body(stream=True, **fields))
    pieces: list[Piece] = []
    for frame in (frame for each in sent for frame in chunks.frames(each)):
        delta = orjson.loads(frame.removeprefix(b"data: "))["choices"][0]["delta"]
        if text := delta.get("reasoning_content"):
            pieces.append(("reasoning", text))
        if text := delta.get("content"):
            pieces.append(("text", text))
        functions = [call["function"] for call in delta.get("tool_calls", ())]
        for function in (*functions, *filter(None, [delta.get("function_call")])):
            if "name" in function:
                pieces.append(("call", function["name"], function["arguments"]))
            else:
                assert pieces[-1][0] == "call"
                pieces[-1] = (*pieces[-1][:2], pieces[-1][2] + function["arguments"])
    return joined(pieces)


def of_function_calls(sent: Sequence[ChatResponse]) -> list[Piece]:
    """The same with `functions`, which came before tools."""
    return of_chat_chunks(sent, functions=[{"name": "look"}])


def of_message_events(sent: Sequence[ChatResponse]) -> list[Piece]:
    events = MessageEvents(parse_message(MESSAGE | {"thinking": SHOWN, "max_tokens": 2048}))
    blocks: list[Piece] = []
    for frame in (frame for each in sent for frame in events.frames(each)):
        event = orjson.loads(frame.split(b"data: ")[1])
        if event["type"] == "content_block_start":
            blocks.append(_block(event["content_block"]))
            assert event["index"] == len(blocks) - 1
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            text = delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            blocks[-1] = (*blocks[-1][:-1], blocks[-1][-1] + text)
    return blocks


def of_whole_message(sent: Sequence[ChatResponse]) -> list[Piece]:
    message = CollectedMessage(parse_message(MESSAGE | {"thinking": SHOWN, "max_tokens": 2048}))
    for each in sent:
        message.add(each)
    return [_block(block) for block in message.as_object()["content"]]


def _block(block: Any) -> Piece:
    if block["type"] == "tool_use":
        assert block["name"]
        arguments = orjson.dumps(block["input"]).decode() if block["input"] else ""
        return "call", block["name"], arguments
    if block["type"] == "thinking":
        return "reasoning", block["thinking"]
    return "text", block["text"]


def of_ollama_lines(sent: Sequence[ChatResponse]) -> list[Piece]:
    """The pieces of a stream of Ollama's lines: the text of a line comes before its calls."""
    answer = ChatAnswer("m")
    pieces: list[Piece] = []
    for line in (line for each in sent for line in answer.frames(each)):
        assert line.count(b"\n") == 1
        message = load_exact(line)["message"]
        pieces += [("reasoning", message["thinking"])] if message.get("thinking") else []
        pieces += [("text", message["content"])] if message["content"] else []
        for call in message.get("tool_calls", ()):
            arguments = json_text(call["function"]["arguments"])
            pieces.append(("call", call["function"]["name"], arguments))
    return joined(pieces)


def of_response_events(sent: Sequence[ChatResponse]) -> list[Piece]:
    numbers = itertools.count()
    draft = TurnDraft([], {}, lambda prefix: f"{prefix}{next(numbers)}", lambda: NOW)
    projection = TurnProjection(0, lambda item: item)
    events = [
        event
        for each in sent
        if each.HasField("delta")
        for event in projection.record(list(draft.apply(each.delta)))
    ]
    projection.record(list(draft.close()))
    events += projection.end([each.item(ItemStatus.COMPLETED) for each in draft.drafts])
    items: list[Piece] = []
    streamed: list[str] = []
    for event in map(event_object, events):
        if event["type"] == "response.output_item.added":
            streamed.append("")
            assert event["output_index"] == len(streamed) - 1
        elif event["type"].endswith(".delta"):
            streamed[event["output_index"]] += event["delta"]
        elif event["type"] == "response.output_item.done":
            items.append(_item(event["item"]))
    assert [item[-1] for item in items] == streamed
    return items


def _item(item: Any) -> Piece:
    match item["type"]:
        case "message":
            return "text", item["content"][0]["text"]
        case "reasoning":
            return "reasoning", item["summary"][0]["text"]
        case _:
            assert item["call_id"]
            assert item["name"]
            return "call", full_name(item), item["arguments"]


def of_span(sent: Sequence[ChatResponse]) -> list[Piece]:
    output = OutputMessages()
    for each in sent:
        output.add(each)
    messages = orjson.loads(output.text({}))
    return [_part(part) for message in messages for part in message["parts"]]


def _part(part: Any) -> Piece:
    if part["type"] != "tool_call":
        return part["type"], part["content"]
    arguments = part["arguments"]
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return "call", part["name"], written


def whole_chat(sent: Sequence[ChatResponse]) -> Parsed:
    completion = CollectedChat(make_envelope(), chat_body())
    for each in sent:
        completion.add(each)
    answer: Any = completion.as_object()
    message = answer["choices"][0]["message"]
    calls = (call["function"] for call in message.get("tool_calls", ()))
    return Parsed(
        message["content"] or "",
        message.get("reasoning_content", ""),
        tuple((call["name"], call["arguments"]) for call in calls),
    )


def whole_ollama(sent: Sequence[ChatResponse]) -> Parsed:
    """Ollama's whole answer, which has no order."""
    answer = ChatAnswer("m")
    for each in sent:
        answer.add(each)
    message = answer.as_object()["message"]
    calls = (call["function"] for call in message.get("tool_calls", ()))
    return Parsed(
        message["content"],
        message.get("thinking", ""),
        tuple((call["name"], orjson.dumps(call["arguments"]).decode()) for call in calls),
    )


ORDERED: dict[str, Callable[[Sequence[ChatResponse]], list[Piece]]] = {
    "chat": of_chat_chunks,
    "functions": of_function_calls,
    "messages": of_message_events,
    "whole message": of_whole_message,
    "ollama": of_ollama_lines,
    "responses": of_response_events,
    "span": of_span,
}


def without_order(pieces: Sequence[Piece]) -> Parsed:
    return Parsed(
        "".join(piece[1] for piece in pieces if piece[0] == "text"),
        "".join(piece[1] for piece in pieces if piece[0] == "reasoning"),
        tuple((piece[1], piece[2]) for piece in pieces if piece[0] == "call"),
    )


def with_inputs(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with arguments as objects, as in dialects that have no text of them. Numbers are
    floats, as in spans."""
    return [(*piece[:2], _as_input(piece[2])) if piece[0] == "call" else piece for piece in pieces]


def _as_input(arguments: str) -> str:
    return orjson.dumps(orjson.loads(orjson.dumps(tool_input(arguments)))).decode()


def is_in_order(pieces: Sequence[Piece], text: str) -> bool:
    """Whether the model wrote the pieces in this order: their characters and the names of the calls
    are found in its text one after the other."""
    at = 0
    for kind, value, *_ in pieces:
        for word in [value] if kind == "call" else "".join(value.split()):
            if kind == "call" and word not in text:
                continue  # a name that the syntax implies
            if (at := text.find(word, at) + len(word)) < len(word):
                return False
    return True


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


@st.composite
def batches(draw: st.DrawFn, text: str) -> Batches:
    numbers = st.lists(st.integers(0, 4000), max_size=40)
    tokens = split(text.encode(), draw(numbers))
    ends = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in draw(numbers))})
    return [tokens[begin:end] for begin, end in itertools.pairwise(ends)]


@timeout(60)
@pytest.mark.parametrize("family", GOLDEN)
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_batches_change_neither_the_pieces_of_a_turn_nor_their_order(
    family: str, data: st.DataObject
) -> None:
    """All at once, byte by byte, or anything between."""
    turn = data.draw(random_turns(family))
    max_calls = data.draw(st.sampled_from([None, 1]))
    by_byte = responses(turn, [[bytes((each,))] for each in turn.text.encode()], max_calls)
    pieces = of_stream(by_byte)
    assert is_in_order(pieces, turn.text)

    for cut in ([[turn.text.encode()]], data.draw(batches(turn.text))):
        sent = responses(turn, cut, max_calls)
        assert of_stream(sent) == pieces
        for name, read in ORDERED.items():
            assert with_inputs(read(sent)) == with_inputs(pieces), name
        assert whole_chat(sent) == without_order(pieces)
        assert whole_ollama(sent) == whole_ollama(by_byte)


def test_a_batch_with_text_between_two_calls_is_not_torn() -> None:
    """The arguments of each call are whole, and the text is between them, in every dialect."""
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
    text = f"<think>Two.</think>First {call % 'Paris'}\nthen {call % 'Rome'} and done."
    turn = Golden("", GOLDEN["hermes"][0].turn_format, text, Parsed())
    sent = responses(turn, [[text.encode()]], None)

    expected = [
        ("reasoning", "Two."),
        ("text", "First"),
        ("call", "get_weather", '{"city": "Paris"}'),
        ("text", "then"),
        ("call", "get_weather", '{"city": "Rome"}'),
        ("text", "and done."),
    ]
    assert of_stream(sent) == expected
    for read in ORDERED.values():
        assert with_inputs(read(sent)) == with_inputs(expected)


def test_line_breaks_and_long_numbers_of_arguments_stay_in_one_line() -> None:
    """Of Ollama; every dialect has all digits."""
    arguments = '{\n "id": 18446744073709551616,\r\n "part": 0.12345678901234567890\n}'
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    turn = Golden("", GOLDEN["hermes"][0].turn_format, text, Parsed())
    sent = responses(turn, [[text.encode()]], None)

    for name in ORDERED.keys() - {"span"}:
        ((_, _, written),) = ORDERED[name](sent)
        assert "18446744073709551616" in written, name
        assert "0.12345678901234567890" in written, name
    lines = [line for each in sent for line in ChatAnswer("m").frames(each)]
    assert all(line.count(b"\n") == 1 for line in lines)
