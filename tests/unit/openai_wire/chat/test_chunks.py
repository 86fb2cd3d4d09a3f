"""Stream events to chunk payloads."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2

from openai_wire.chat.chunks import DONE, ChatChunks, CompletionChunks
from tests.support.wire_events import (
    ChatEvent,
    TextEvent,
    a_token,
    an_envelope,
    chat_accepted,
    chat_delta,
    done,
    finished,
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
    """The chunks of a chat, read back; [DONE] as text."""
    chunks = ChatChunks(
        an_envelope(), num_choices=num_choices, logprobs=logprobs, include_usage=include_usage
    )
    payloads = [payload for event in events for payload in chunks.payloads(event, 0)]
    return read_back([*payloads, *chunks.final_payloads()])


def text_chunks(
    events: Iterable[tuple[int, TextEvent]],
    *,
    num_choices: int = 1,
    logprobs: bool = False,
    include_usage: bool = False,
    echoes: tuple[str, ...] = (),
) -> list[Any]:
    """The chunks of a completion, read back; [DONE] as text."""
    chunks = CompletionChunks(
        an_envelope("cmpl-1"),
        num_choices=num_choices,
        logprobs=logprobs,
        include_usage=include_usage,
        echoes=echoes,
    )
    payloads = [payload for call, event in events for payload in chunks.payloads(event, call)]
    return read_back([*payloads, *chunks.final_payloads()])


def read_back(payloads: Iterable[bytes]) -> list[Any]:
    """Payloads as objects."""
    return [payload.decode() if payload == DONE else orjson.loads(payload) for payload in payloads]


def a_chunk(delta: Any, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """A chat chunk as OpenAI sends it."""
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


def test_a_chat_stream_has_openai_order() -> None:
    """Role, content, finish, [DONE]; the same identity in each chunk."""
    chunks = chat_chunks(
        [chat_accepted(), chat_delta("Hel"), chat_delta("lo"), ChatEvent(finished=finished()),
         ChatEvent(done=done())]
    )  # fmt: skip

    assert chunks == [
        a_chunk(ROLE),
        a_chunk({"content": "Hel"}),
        a_chunk({"content": "lo"}),
        a_chunk({}, finish="stop"),
        "[DONE]",
    ]


def test_usage_is_null_until_its_own_chunk() -> None:
    """With include_usage every chunk has the key, and one without choices has the counts."""
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


def test_without_include_usage_no_chunk_has_the_key() -> None:
    """Usage is absent where it was not asked for."""
    chunks = chat_chunks([chat_accepted(), chat_delta("a"), ChatEvent(done=done())])

    assert not any("usage" in chunk for chunk in chunks[:-1])


def test_every_choice_has_its_role_and_finish() -> None:
    """n > 1: one role chunk and one finish chunk an index, deltas between them by index."""
    chunks = chat_chunks(
        [chat_accepted(), chat_delta("b", index=1), chat_delta("a"),
         ChatEvent(finished=finished(1)),
         ChatEvent(finished=finished(0, generation_pb2.FINISH_REASON_LENGTH))],
        num_choices=2,
    )  # fmt: skip

    assert chunks[:-1] == [
        a_chunk(ROLE),
        a_chunk(ROLE, index=1),
        a_chunk({"content": "b"}, index=1),
        a_chunk({"content": "a"}),
        a_chunk({}, index=1, finish="stop"),
        a_chunk({}, finish="length"),
    ]


def test_reasoning_goes_before_content() -> None:
    """A delta with both becomes two chunks, reasoning first."""
    chunks = chat_chunks([chat_accepted(), chat_delta("so", reasoning="hm")])

    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"reasoning_content": "hm"},
        {"content": "so"},
    ]


def test_a_tool_call_begins_without_arguments() -> None:
    """The first fragment names the call, later ones carry index and arguments only."""
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


def test_a_delta_without_text_makes_no_chunk() -> None:
    """Tokens whose text is held back are not seen."""
    assert chat_chunks([chat_accepted(), chat_delta("")]) == [a_chunk(ROLE), "[DONE]"]


def test_logprobs_ride_on_the_chunk_of_their_tokens() -> None:
    """Also where the text of a token is still held back, and only where they were asked for."""
    token = a_token(b"\xe2\x82", -0.5, [(b"a", -0.25)])
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
    assert chat_chunks(events) == [a_chunk(ROLE), "[DONE]"]


@pytest.mark.parametrize("text", ['"\\\n\t', "\u2028", "日本語 🦙", "\x00\x1f", "</script>"])
def test_every_text_survives(text: str) -> None:
    """What JSON must escape is escaped, on one line."""
    chunks = ChatChunks(an_envelope(), num_choices=1, logprobs=False, include_usage=False)
    chunks.payloads(chat_accepted(), 0)

    (payload,) = chunks.payloads(chat_delta(text), 0)

    assert b"\n" not in payload
    assert orjson.loads(payload)["choices"][0]["delta"]["content"] == text


def test_the_requested_name_stands_where_the_server_names_no_model() -> None:
    """The chunks always name a model."""
    assert chat_chunks([chat_accepted("")])[0]["model"] == "asked"


def test_a_completion_stream_has_openai_order() -> None:
    """Text chunks, a finish chunk an index, [DONE]; the object is text_completion."""
    chunks = text_chunks(
        [(0, text_accepted()), (0, text_delta("Hel")), (0, text_delta("")),
         (0, TextEvent(finished=finished())), (0, TextEvent(done=done()))]
    )  # fmt: skip

    assert [chunk["object"] for chunk in chunks[:-1]] == ["text_completion"] * 2
    assert [chunk["choices"][0] for chunk in chunks[:-1]] == [
        {"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]


def test_several_prompts_number_their_choices_in_order() -> None:
    """The index of a choice is prompt * n + choice, the usage the sum."""
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


def test_echo_sends_the_prompt_first() -> None:
    """Each choice of each prompt begins with its prompt."""
    chunks = text_chunks(
        [(1, text_accepted()), (0, text_accepted())], num_choices=2, echoes=("p", "q")
    )

    assert [
        (chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks[:-1]
    ] == [
        (2, "q"),
        (3, "q"),
        (0, "p"),
        (1, "p"),
    ]


def test_offsets_go_on_over_chunks() -> None:
    """text_offset counts characters from the start of the answer, a split one once."""
    chunks = text_chunks(
        [(0, text_accepted()), (0, text_delta("a", logprobs=[a_token(b"a"), a_token(b"\xe2\x82")])),
         (0, text_delta("€b", logprobs=[a_token(b"\xac"), a_token(b"b")]))],
        logprobs=True,
    )  # fmt: skip

    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks[:-1]]
    assert offsets == [[0, 1], [2, 2]]
