"""The streams of chat completions of many engines, in the shapes that each of them writes."""

import json
from typing import Any

import pytest

from inference_svc.engine.events import CallPart, ChosenLogprob, Logprob, MessagePart
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


# --- log probabilities ----------------------------------------------------------------------------


def entry(token: str, logprob: Any = -0.5, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, **more}


def told(content: str, *entries: Any, **more: Any) -> dict[str, Any]:
    return chunk({"content": content, **more}, logprobs={"content": [*entries]})


def tokens_of(*events: Any) -> list[tuple[str, list[bytes]]]:
    """The content of each part, and the bytes of the tokens that have log probabilities."""
    reader = MessageReader(1)
    parts = [reader.read(json.dumps(each).encode()).part for each in events]
    return [(p.content, [each.chosen.piece for each in p.logprobs]) for p in parts if p is not None]


def test_log_probabilities_have_the_bytes_and_alternatives_that_are_told() -> None:
    top = [entry("b", -1.5), entry("c", -2)]
    data = json.dumps(told("é", entry("?", -0.5, bytes=[195, 169], top_logprobs=top))).encode()
    (found,) = (MessageReader(1).read(data).part or MessagePart()).logprobs
    piece = "é".encode()
    expected = ChosenLogprob(Logprob(0, piece, -0.5), (Logprob(0, b"b", -1.5),), text=piece)
    assert found == expected
    unasked = MessageReader().read(data).part or MessagePart()
    assert (unasked.content, unasked.logprobs) == ("é", ())


PIECES: dict[str, tuple[list[Any], list[tuple[str, list[bytes]]]]] = {
    "a token": ([told("a", entry("a"))], [("a", [b"a"])]),
    "several at once, as vLLM with drafts": (
        [told("ab", entry("a"), entry("b"))],
        [("ab", [b"a", b"b"])],
    ),
    "the end of the turn in an event of its own": (
        [told("a", entry("a")), told("", entry("<end>"))],
        [("a", [b"a"])],
    ),
    "the end of the turn with the text": ([told("a", entry("a"), entry("<end>"))], [("a", [b"a"])]),
    "a character of two tokens": (
        [told("", entry("\ufffd", bytes=[195])), told("é", entry("\ufffd", bytes=[169]))],
        [("é", [b"\xc3", b"\xa9"])],
    ),
    "reasoning and its markers": (
        [
            told("", entry("<think>")),
            told("", entry("why"), reasoning="why"),
            told("", entry("</think>")),
            told("so", entry("so")),
        ],
        [("", []), ("so", [b"so"])],
    ),
    "a text without its first blanks": ([told("so", entry("\n\nso"))], [("so", [b"so"])]),
    "a text that no tokens spell": ([told("x", entry("a"))], [("x", [b"a"])]),
    "a text without any": ([told("x")], [("x", [])]),
}


@pytest.mark.parametrize(("events", "expected"), PIECES.values(), ids=PIECES)
def test_log_probabilities_are_those_of_the_content(
    events: list[Any], expected: list[tuple[str, list[bytes]]]
) -> None:
    assert tokens_of(*events) == expected


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        {"content": {"a": 1}},
        {"content": ["a"]},
        {"content": [entry("a", None)]},
        {"content": [entry("a", "-1")]},
        {"content": [{"logprob": -1, "token": 5}]},
        {"content": [entry("a", bytes=[256])]},
        {"content": [entry("a", bytes=1 << 40)]},
        {"content": [entry("a", top_logprobs=5)]},
        {"content": [entry("a", top_logprobs=["b"])]},
    ],
    ids=str,
)
def test_log_probabilities_that_are_none_are_refused(logprobs: Any) -> None:
    event = json.dumps(chunk({"content": "a"}, logprobs=logprobs)).encode()
    if logprobs:
        with pytest.raises(AnswerInvalid):
            MessageReader(1).read(event)
    else:
        assert MessageReader(1).read(event).part == MessagePart("", "a")
    assert MessageReader().read(event).part == MessagePart("", "a")
