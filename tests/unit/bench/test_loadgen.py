"""Parsing of recorded HTTP responses."""

import json

import pytest

from bench.loadgen import EventReader, Reads, read_stream
from bench.streams import Arrival, LoadError


def make_answer(*chunks: object, chunked: bool = True, done: bool = True) -> bytes:
    """Build an HTTP response with one SSE event per chunk."""
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    events += [b"data: [DONE]\n\n"] if done else []
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if not chunked:
        return head + b"\r\n" + b"".join(events)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in [*events])
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


TEXT = {"choices": [{"text": "é"}]}
LAST = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_events_are_parsed_from_reads_of_any_size(size: int, chunked: bool) -> None:
    """A read may end inside a header, a chunk size, an event or a character."""
    answer, reader = make_answer(TEXT, TEXT, LAST, chunked=chunked), EventReader()

    events = [
        event for at in range(0, len(answer), size) for event in reader.feed(answer[at : at + size])
    ]

    assert [*map(json.loads, events[:-1]), events[-1]] == [TEXT, TEXT, LAST, b"[DONE]"]


def test_an_arrival_has_the_time_of_the_read_that_completed_it() -> None:
    """Only events with text are arrivals; the server reports the usage."""
    answer = make_answer(TEXT, TEXT, LAST)
    half = answer.index(b"data", answer.index(b"data") + 1) + 5

    stream = read_stream(1.0, [(2.0, answer[:half]), (3.0, answer[half:])])

    assert stream.arrivals == (Arrival(2.0, 1), Arrival(3.0, 1))
    assert (stream.sent, stream.ended) == (1.0, 3.0)
    assert (stream.prompt_tokens, stream.completion_tokens) == (3, 2)


def test_chat_deltas_with_content_are_arrivals() -> None:
    """The first chunk of a chat has a role and no content."""
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    text = {"choices": [{"delta": {"content": "a"}}]}

    stream = read_stream(0.0, [(1.0, make_answer(role, text, LAST))])

    assert len(stream.arrivals) == 1


REFUSED = b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"error": "queue"}'


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (REFUSED, "HTTP 429.*queue"),
        (make_answer(TEXT, LAST, done=False), "before .DONE."),
        (make_answer(TEXT), "no usage"),
        (make_answer(TEXT, {"error": {"message": "engine died"}}), "engine died"),
    ],
)
def test_an_error_or_incomplete_response_is_refused(answer: bytes, problem: str) -> None:
    """A failed request is not measured."""
    reads: Reads = [(1.0, answer)]

    with pytest.raises(LoadError, match=problem):
        read_stream(0.0, reads)


def test_token_counts_of_chunks_are_used() -> None:
    """One chunk may contain a character of several tokens."""
    first = TEXT | {"timings": {"predicted_n": 1}}
    third = TEXT | {"timings": {"predicted_n": 3}}

    stream = read_stream(0.0, [(1.0, make_answer(first, third, LAST))])

    assert [arrival.tokens for arrival in stream.arrivals] == [1, 2]
