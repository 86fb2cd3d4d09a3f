"""The chunks of a stream accumulate to the object of the response."""

from collections.abc import Sequence
from typing import Any

import orjson
from corral.inference.v1 import chat_pb2
from hypothesis import given
from hypothesis import strategies as st

from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
from dialects.openai.chat.objects import CollectedChat, CollectedCompletion
from dialects.openai.shared.objects import DONE
from tests.support.wire_events import (
    ChatEvent,
    TextEvent,
    chat_accepted,
    chat_body,
    chat_delta,
    completion_body,
    done,
    event_data,
    finished,
    make_envelope,
    make_token,
    text_accepted,
    text_delta,
)

NUM_CHOICES = 3
indexes = st.integers(0, NUM_CHOICES - 1)
texts = st.text(max_size=8)
tokens = st.lists(
    st.builds(make_token, st.binary(min_size=1, max_size=4), st.floats(-10, 0)), max_size=2
)


@st.composite
def tool_call_deltas(draw: st.DrawFn) -> list[chat_pb2.ToolCallDelta]:
    """Generate pieces of calls. The first piece of each has its name, as the proto requires."""
    number = draw(st.integers(0, 2))
    head = chat_pb2.ToolCallDelta(
        index=number, id=f"c{number}", name=f"f{number}", arguments_json=draw(texts)
    )
    tail = [
        chat_pb2.ToolCallDelta(index=number, arguments_json=text)
        for text in draw(st.lists(texts, max_size=2))
    ]
    return [head, *tail]


chat_deltas = st.lists(
    st.builds(
        chat_delta, texts, index=indexes, reasoning=texts, calls=tool_call_deltas(), logprobs=tokens
    ),
    max_size=8,
)
text_deltas = st.lists(
    st.builds(text_delta, texts, index=indexes, logprobs=tokens).map(lambda event: (0, event))
    | st.builds(text_delta, texts, index=indexes, logprobs=tokens).map(lambda event: (1, event)),
    max_size=8,
)


@given(chat_deltas)
def test_the_chunks_of_a_chat_accumulate_to_its_object(deltas: list[ChatEvent]) -> None:
    """For all deltas."""
    ends = [ChatEvent(finished=finished(index)) for index in range(NUM_CHOICES)]
    events = [chat_accepted(), *deltas, *ends, ChatEvent(done=done())]
    usage = {"include_usage": True}
    body = chat_body(n=NUM_CHOICES, logprobs=True, stream=True, stream_options=usage)
    whole, chunks = CollectedChat(make_envelope(), body), ChatChunks(make_envelope(), body)
    frames: list[bytes] = []
    for event in events:
        whole.add(event)
        frames.extend(chunks.frames(event))
    added = accumulate([*frames, *chunks.final_frames()])

    answer: Any = whole.as_object()
    for choice, sums in zip(answer["choices"], added["choices"], strict=True):
        message = choice["message"]
        assert (message["content"] or "") == sums["content"]
        assert message.get("reasoning_content", "") == sums["reasoning"]
        assert message.get("tool_calls", []) == sums["calls"]
        assert choice["logprobs"]["content"] == sums["logprobs"]
        assert choice["finish_reason"] == sums["finish_reason"]
    assert answer["usage"] == added["usage"]


@given(text_deltas)
def test_the_chunks_of_a_completion_accumulate_to_its_object(
    deltas: list[tuple[int, TextEvent]],
) -> None:
    """For several prompts with several choices."""
    ends = [
        (call, TextEvent(finished=finished(index)))
        for call in range(2)
        for index in range(NUM_CHOICES)
    ]
    events = [(0, text_accepted()), (1, text_accepted()), *deltas, *ends]
    body = completion_body(prompt=["p", "q"], n=NUM_CHOICES, logprobs=0)
    whole, chunks = (
        CollectedCompletion(make_envelope(), body),
        CompletionChunks(make_envelope(), body),
    )
    frames: list[bytes] = []
    for call, event in events:
        whole.add(event, call)
        frames.extend(chunks.frames(event, call))

    answer: Any = whole.as_object()
    found = [orjson.loads(event_data(frame))["choices"][0] for frame in frames]
    for choice in answer["choices"]:
        own = [chunk for chunk in found if chunk["index"] == choice["index"]]
        lists = [chunk["logprobs"] for chunk in own if chunk["logprobs"]]
        assert choice["text"] == "".join(chunk["text"] for chunk in own)
        assert choice["finish_reason"] == own[-1]["finish_reason"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert choice["logprobs"][key] == [item for each in lists for item in each[key]]


def accumulate(frames: Sequence[bytes]) -> Any:
    choices: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "calls": {}, "logprobs": [], "finish_reason": None}
        for _ in range(NUM_CHOICES)
    ]
    usage = None
    assert frames[-1] == DONE
    for frame in frames[:-1]:
        chunk = orjson.loads(event_data(frame))
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            accumulate_choice(choices[choice["index"]], choice)
    for sums in choices:
        sums["calls"] = [call for _, call in sorted(sums["calls"].items())]
    return {"choices": choices, "usage": usage}


def accumulate_choice(sums: dict[str, Any], choice: Any) -> None:
    """Add the choice of one chunk, as OpenAI's SDK does."""
    delta = choice["delta"]
    sums["content"] += delta.get("content") or ""
    sums["reasoning"] += delta.get("reasoning_content") or ""
    sums["logprobs"] += (choice["logprobs"] or {}).get("content", [])
    sums["finish_reason"] = choice["finish_reason"] or sums["finish_reason"]
    for piece in delta.get("tool_calls", []):
        call = sums["calls"].setdefault(
            piece["index"],
            {"id": piece.get("id"), "type": piece.get("type"), "function": {"arguments": ""}},
        )
        call["function"]["arguments"] += piece["function"]["arguments"]
        if "name" in piece["function"]:
            call["function"]["name"] = piece["function"]["name"]
