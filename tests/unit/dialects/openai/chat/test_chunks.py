"""Stream events to server-sent events of chunks."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2

from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
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


def chat_chunks(
    events: Iterable[ChatEvent],
    *,
    num_choices: int = 1,
    logprobs: bool = False,
    include_usage: bool = False,
) -> list[Any]:
    """The decoded chunks of a chat; [DONE] as text."""
    usage = {"include_usage": include_usage}
    body = chat_body(n=num_choices, logprobs=logprobs, stream=True, stream_options=usage)
    chunks = ChatChunks(make_envelope(), body)
    frames = [frame for event in events for frame in chunks.frames(event)]
    return decode([*frames, *chunks.final_frames()])


def text_chunks(
    events: Iterable[tuple[int, TextEvent]],
    *,
    num_choices: int = 1,
    logprobs: bool = False,
    include_usage: bool = False,
    echoes: tuple[str, ...] = (),
) -> list[Any]:
    """The decoded chunks of a text completion; [DONE] as text."""
    usage = {"include_usage": include_usage}
    body = completion_body(
        n=num_choices, logprobs=0 if logprobs else None, stream=True, stream_options=usage
    )
    chunks = CompletionChunks(make_envelope("cmpl-1"), body, echoes)
    frames = [frame for call, event in events for frame in chunks.frames(event, call)]
    return decode([*frames, *chunks.final_frames()])


def decode(frames: Iterable[bytes]) -> list[Any]:
    return ["[DONE]" if frame == DONE else orjson.loads(event_data(frame)) for frame in frames]


def chat_chunk(delta: Any, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """A chunk as OpenAI sends it."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [choice],
    }


ROLE = {"role": "assistant", "content": "", "refusal": None}


def test_the_chunks_of_a_chat_are_in_order() -> None:
    """Role, content, finish reason, [DONE], all with the same id."""
    chunks = chat_chunks(
        [chat_accepted(), chat_delta("Hel"), chat_delta("lo"), ChatEvent(finished=finished()),
         ChatEvent(done=done())]
    )  # fmt: skip

    assert chunks == [
        chat_chunk(ROLE),
        chat_chunk({"content": "Hel"}),
        chat_chunk({"content": "lo"}),
        chat_chunk({}, finish="stop"),
        "[DONE]",
    ]


def test_continuous_usage_counts_the_tokens_so_far() -> None:
    """With every chunk, also of tokens whose text is held back."""
    body = chat_body(stream=True, stream_options={"continuous_usage_stats": True})
    chunks = ChatChunks(make_envelope(), body)
    events = [chat_accepted(), chat_delta("a"), chat_delta(""), chat_delta("b"),
              ChatEvent(finished=finished())]  # fmt: skip
    events[0].accepted.prompt_tokens = 7
    for event in events[1:4]:
        event.delta.num_tokens = 2
    sent = decode(frame for event in events for frame in chunks.frames(event))

    assert [chunk["usage"] for chunk in sent] == [
        {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        for count in (0, 2, 6, 6)
    ]


def test_include_usage_adds_a_last_chunk_with_the_usage() -> None:
    """Other chunks have the key with null."""
    *chunks, usage, end = chat_chunks(
        [chat_accepted(), chat_delta("a"), ChatEvent(finished=finished()),
         ChatEvent(done=done(3, 2, cached_tokens=1))],
        include_usage=True,
    )  # fmt: skip

    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert end == "[DONE]"


def test_include_usage_adds_a_last_chunk_to_a_text_completion() -> None:
    """Other chunks have the key with null, also the first one, with the prompt."""
    events = [text_accepted(), text_delta("a"), TextEvent(finished=finished()),
              TextEvent(done=done(3, 2))]  # fmt: skip
    *chunks, usage, end = text_chunks(
        [(0, event) for event in events], include_usage=True, echoes=("p",)
    )

    assert [(chunk["usage"], len(chunk["choices"])) for chunk in chunks] == [(None, 1)] * 3
    assert (usage["choices"], usage["usage"]["total_tokens"], end) == ([], 5, "[DONE]")


def test_without_include_usage_chunks_have_no_usage() -> None:
    """The key is absent."""
    chunks = chat_chunks([chat_accepted(), chat_delta("a"), ChatEvent(done=done())])

    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_every_choice_has_a_role_and_a_finish_chunk() -> None:
    """With n > 1, deltas are identified by index."""
    chunks = chat_chunks(
        [chat_accepted(), chat_delta("b", index=1), chat_delta("a"),
         ChatEvent(finished=finished(1)),
         ChatEvent(finished=finished(0, generation_pb2.FINISH_REASON_LENGTH))],
        num_choices=2,
    )  # fmt: skip

    assert chunks[:-1] == [
        chat_chunk(ROLE),
        chat_chunk(ROLE, index=1),
        chat_chunk({"content": "b"}, index=1),
        chat_chunk({"content": "a"}),
        chat_chunk({}, index=1, finish="stop"),
        chat_chunk({}, finish="length"),
    ]


def test_reasoning_precedes_content() -> None:
    """A delta with both becomes two chunks."""
    chunks = chat_chunks([chat_accepted(), chat_delta("so", reasoning="hm")])

    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"reasoning_content": "hm"},
        {"content": "so"},
    ]


def test_the_first_delta_of_a_tool_call_has_no_arguments() -> None:
    """It has id and name; later deltas have the arguments."""
    first = chat_pb2.ToolCallDelta(index=1, id="c1", name="look", arguments_json='{"a"')
    second = chat_pb2.ToolCallDelta(index=1, arguments_json=":1}")
    end = finished(0, generation_pb2.FINISH_REASON_TOOL_CALLS)
    chunks = chat_chunks(
        [chat_accepted(), chat_delta(calls=[first]), chat_delta(calls=[second]),
         ChatEvent(finished=end)]
    )  # fmt: skip

    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ":1}"}}]},
        {},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_delta_without_text_has_no_chunk() -> None:
    """The detokenizer may hold back the text of a token."""
    assert chat_chunks([chat_accepted(), chat_delta("")]) == [chat_chunk(ROLE), "[DONE]"]


def test_logprobs_are_sent_with_their_tokens() -> None:
    """Also if the text is held back, and only if requested."""
    token = make_token(b"\xe2\x82", -0.5, [(b"a", -0.25)])
    events = [chat_accepted(), chat_delta("", logprobs=[token])]

    choice = chat_chunks(events, logprobs=True)[1]["choices"][0]

    assert choice["delta"] == {"content": ""}
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "�",
                "logprob": -0.5,
                "bytes": [226, 130],
                "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
            }
        ],
        "refusal": None,
    }
    assert chat_chunks(events) == [chat_chunk(ROLE), "[DONE]"]


@pytest.mark.parametrize("text", ['"\\\n\t', "\u2028", "日本語 🦙", "\x00\x1f", "</script>"])
def test_text_is_escaped(text: str) -> None:
    """The payload has no line break and decodes to the same text."""
    chunks = ChatChunks(make_envelope(), chat_body())
    chunks.frames(chat_accepted())

    (frame,) = chunks.frames(chat_delta(text))

    assert b"\n" not in event_data(frame)
    assert decode([frame])[0]["choices"][0]["delta"]["content"] == text


def test_the_requested_model_is_the_default() -> None:
    """Chunks always have a model."""
    assert chat_chunks([chat_accepted("")])[0]["model"] == "asked"


def test_the_chunks_of_a_text_completion_are_in_order() -> None:
    """Text, then a finish chunk per choice, then [DONE]."""
    chunks = text_chunks(
        [(0, text_accepted()), (0, text_delta("Hel")), (0, text_delta("")),
         (0, TextEvent(finished=finished())), (0, TextEvent(done=done()))]
    )  # fmt: skip

    assert [chunk["object"] for chunk in chunks[:-1]] == ["text_completion"] * 2
    assert [chunk["choices"][0] for chunk in chunks[:-1]] == [
        {"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]


def test_choices_of_several_prompts_are_numbered() -> None:
    """The index is prompt * n + choice; usage is summed."""
    *chunks, usage, _ = text_chunks(
        [(0, text_accepted()), (1, text_accepted()), (1, text_delta("d", index=1)),
         (0, text_delta("a")), (1, TextEvent(finished=finished(1))),
         (0, TextEvent(done=done(3, 2))), (1, TextEvent(done=done(4, 5)))],
        num_choices=2,
        include_usage=True,
    )  # fmt: skip

    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks] == [
        (3, "d"),
        (0, "a"),
        (3, ""),
    ]
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (7, 7)


def test_choices_follow_the_prompt() -> None:
    """What a choice has before the prompt is complete is held back."""
    chunks = ChatChunks(make_envelope(), chat_body(n=2, stream=True, prompt_logprobs=0))
    prompt = ChatEvent(prompt_tokens={"tokens": [{"token": b"a", "logprob": -0.5}]})
    events = [chat_accepted(), chat_delta("b", index=1), prompt, chat_delta("a")]
    decoded = decode(frame for event in events for frame in chunks.frames(event))

    assert ["prompt_logprobs" in chunk for chunk in decoded] == [False, False, True, False, False]
    assert [chunk["choices"][0]["index"] for chunk in decoded[3:]] == [1, 0]


def test_echo_sends_the_prompt_first() -> None:
    """Each choice starts with its prompt."""
    chunks = text_chunks(
        [(1, text_accepted()), (0, text_accepted())], num_choices=2, echoes=("p", "q")
    )

    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [choice["index"] for choice in choices] == [2, 3, 0, 1]
    assert [choice["text"] for choice in choices] == ["q", "q", "p", "p"]


def test_text_offsets_continue_over_chunks() -> None:
    """They count characters; one split over tokens counts once."""
    first = text_delta("a", logprobs=[make_token(b"a"), make_token(b"\xe2\x82")])
    second = text_delta("€b", logprobs=[make_token(b"\xac"), make_token(b"b")])
    chunks = text_chunks([(0, text_accepted()), (0, first), (0, second)], logprobs=True)

    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks[:-1]]
    assert offsets == [[0, 1], [2, 2]]


CALL = chat_pb2.ToolCallDelta(id="c1", name="look", arguments_json="{}")
CALL_DELTA = {
    "tool_calls": [
        {
            "index": 0,
            "id": "c1",
            "type": "function",
            "function": {"name": "look", "arguments": ""},
        }
    ]
}


@pytest.mark.parametrize(
    ("event", "first"),
    [
        (chat_delta(calls=[CALL]), {"content": None, **CALL_DELTA}),
        (chat_delta(reasoning="hm"), {"content": None, "reasoning_content": "hm"}),
        (chat_delta("Hi", calls=[CALL]), {"content": "Hi"}),
        (ChatEvent(finished=finished()), {"content": ""}),
    ],
)
def test_the_first_chunk_of_a_call_has_no_content(event: ChatEvent, first: dict[str, Any]) -> None:
    """With tools, each choice has its role in its first chunk, whose content is null unless it is
    text; empty content is that of a text."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    chunks = ChatChunks(make_envelope(), chat_body(n=2, stream=True, tools=tools))
    accepted = chunks.frames(chat_accepted())
    other = ChatEvent(finished=finished(index=1))
    frames = [*chunks.frames(event), *chunks.frames(other)]
    deltas = [chunk["choices"][0]["delta"] for chunk in decode(frames)]

    assert list(accepted) == []
    assert deltas[0] == {"role": "assistant", "refusal": None} | first
    assert deltas[-1] == ROLE
    assert [delta for delta in deltas if "role" in delta] == [deltas[0], deltas[-1]]
