"""The streams of chat completions of many engines, in the shapes that each of them writes."""

import json
from typing import Any

import pytest

from inference_svc.engine.events import CallPart, MessagePart
from inference_svc.upstream.faults import AnswerInvalid, EngineOverloaded, RequestRefused
from inference_svc.upstream.openai import MessageReader, Usage

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
WEATHER = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
TIME = {"name": "get_time", "arguments": "{}"}


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, **more}]}


def read(*events: Any) -> tuple[list[MessagePart], str, Usage | None]:
    """The parts, the reason and the usage of an answer."""
    reader, parts, reason, usage = MessageReader(), list[MessagePart](), "", None
    for each in events:
        event = reader.read(each.encode() if isinstance(each, str) else json.dumps(each).encode())
        parts += [event.part] if event.part is not None else []
        reason, usage = event.finish_reason or reason, event.usage or usage
    return parts, reason, usage


def calls_of(parts: list[MessagePart]) -> list[tuple[str, str, str]]:
    """Id, name and whole arguments of each call."""
    calls: dict[int, list[str]] = {}
    for each in (each for part in parts for each in part.calls):
        if each.id:
            calls[each.position] = [each.id, each.name, each.arguments]
        else:
            calls[each.position][2] += each.arguments
    assert list(calls) == list(range(len(calls)))
    return [(given, name, arguments) for given, name, arguments in calls.values()]


def test_text_of_openai_with_usage_in_an_event_of_its_own() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    cached = {"prompt_tokens_details": {"cached_tokens": 8}}
    found = read(
        chunk({"role": "assistant", "content": "", "refusal": None}, logprobs=None)
        | {"usage": None},
        chunk({"content": "Hi"}) | {"usage": None},
        chunk({}, "stop") | {"usage": None},
        {**HEAD, "choices": [], "usage": usage | details | cached},
        "[DONE]",
    )
    assert found == ([MessagePart("", "Hi")], "stop", Usage(9, 3, 2))


def test_usage_in_the_last_choice_and_in_every_event() -> None:
    """As Groq, and as llama.cpp's Python server and OpenRouter write it: the last one counts."""
    first, last = ({"prompt_tokens": 9, "completion_tokens": count} for count in (1, 2))
    found = read(
        chunk({"content": "a"}) | {"usage": first},
        chunk({"content": "b"}, "length") | {"usage": last},
    )
    assert found[1:] == ("length", Usage(9, 2, 0))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_has_either_name(name: str) -> None:
    """That of DeepSeek, llama-server and LM Studio, or that of Ollama, OpenRouter and vLLM."""
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "why"}]}
    parts, _, _ = read(chunk({name: "why", "content": None, **details}), chunk({"content": "so"}))
    assert parts == [MessagePart("why"), MessagePart("", "so")]


def test_both_names_at_once_are_one_reasoning() -> None:
    parts, _, _ = read(chunk({"reasoning": "why", "reasoning_content": "why", "content": ""}))
    assert parts == [MessagePart("why")]


def test_arguments_in_pieces_belong_to_their_calls() -> None:
    """As OpenAI, vLLM and llama-server write them; pieces may alternate."""

    def piece(index: int, **function: str) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, "function": function}]})

    begin = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {**begin, "index": 1, "id": "b"}
    parts, reason, _ = read(
        chunk({"role": "assistant", "content": None, "tool_calls": [begin]}),
        piece(0, arguments='{"x":'),
        chunk({"tool_calls": [second]}),
        piece(0, arguments="1}"),
        piece(1, arguments="{}"),
        chunk({}, "tool_calls"),
    )
    assert (calls_of(parts), reason) == ([("a", "f", '{"x":1}'), ("b", "f", "{}")], "tool_calls")


WHOLE_CALLS = {
    "of one event": [
        [{"index": 0, "id": "a", "function": WEATHER}, {"index": 1, "id": "b", "function": TIME}]
    ],
    "with the same index (older Ollama)": [
        [{"index": 0, "id": "a", "type": "function", "function": WEATHER}],
        [{"index": 0, "id": "b", "type": "function", "function": TIME}],
    ],
    "without an index (Gemini)": [
        [{"id": "a", "type": "function", "function": WEATHER}],
        [{"id": "b", "type": "function", "function": TIME}],
    ],
    "from another index": [
        [{"index": 1, "id": "a", "function": WEATHER}, {"index": 2, "id": "b", "function": TIME}]
    ],
}


@pytest.mark.parametrize("events", WHOLE_CALLS.values(), ids=WHOLE_CALLS)
def test_whole_calls_are_told_apart(events: list[list[Any]]) -> None:
    parts, _, _ = read(*(chunk({"tool_calls": calls}) for calls in events))
    assert calls_of(parts) == [("a", *WEATHER.values()), ("b", *TIME.values())]


def test_calls_without_ids_get_ids_that_differ() -> None:
    parts, _, _ = read(
        chunk({"tool_calls": [{"function": WEATHER}]}), chunk({"tool_calls": [{"function": TIME}]})
    )
    (first, *weather), (second, *time) = calls_of(parts)
    assert (weather, time) == ([*WEATHER.values()], [*TIME.values()])
    assert first != second
    assert first.startswith("call_")


def test_a_name_that_is_repeated_with_each_piece_is_one_call() -> None:
    pieces = [{"index": 0, "function": {"name": "f", "arguments": each}} for each in ("{", "}")]
    parts, _, _ = read(*(chunk({"tool_calls": [each]}) for each in pieces))
    assert parts[0].calls[0].name == "f"
    assert parts[1].calls == (CallPart(0, "", "", "}"),)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "code": 429}, EngineOverloaded),
        ({"message": "bad", "code": 400}, RequestRefused),
        ("boom", Exception),
    ],
    ids=["overload", "refusal", "text"],
)
def test_an_error_inside_a_stream_is_a_fault(error: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read({**HEAD, "choices": [], "error": error})


def test_calls_without_end_are_refused() -> None:
    calls = [{"id": str(number), "function": TIME} for number in range(1025)]
    with pytest.raises(AnswerInvalid):
        read(chunk({"tool_calls": calls}))
