"""What is returned of a prompt: log probabilities and token ids, in objects and in streams."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import pytest
from corral.inference.v1 import generation_pb2 as pb

from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
from dialects.openai.chat.objects import CollectedChat, CollectedCompletion
from dialects.openai.chat.prompt_tokens import MAX_COLLECTED
from svc_kit.errors import TooLong
from tests.support.wire_events import (
    ChatEvent,
    TextEvent,
    chat_body,
    completion_body,
    event_data,
    finished,
    make_envelope,
    make_token,
)

FIRST = pb.PromptToken(token_id=1, token=b"<s>")
HELLO = pb.PromptToken(
    token_id=7,
    token=b" Hi",
    logprob=-0.5,
    rank=2,
    top=[
        pb.TokenLogprob(token_id=9, token=b" Yo", logprob=-0.25),
        pb.TokenLogprob(token_id=7, token=b" Hi", logprob=-0.5),
    ],
)
WORLD = pb.PromptToken(
    token_id=8,
    token=b"\xe2\x82\xac",
    logprob=-1.5,
    rank=1,
    top=[pb.TokenLogprob(token_id=8, token=b"\xe2\x82\xac", logprob=-1.5)] * 2,
)
PROMPT = "Hi€"
VLLM = [
    None,
    {
        "7": {"logprob": -0.5, "rank": 2, "decoded_token": " Hi"},
        "9": {"logprob": -0.25, "rank": 1, "decoded_token": " Yo"},
    },
    {"8": {"logprob": -1.5, "rank": 1, "decoded_token": "€"}},
]
ECHO = {
    "tokens": ["<s>", " Hi", "€", "!"],
    "token_logprobs": [None, -0.5, -1.5, -2.0],
    "top_logprobs": [None, {" Yo": -0.25}, {"€": -1.5}, {}],
    "text_offset": [0, 0, 2, 3],
}


def _events(kind: Any, output: dict[str, Any]) -> list[Any]:
    return [
        kind(accepted=pb.Accepted(model="m", prompt_token_ids=[1, 7, 8])),
        kind(prompt_tokens=pb.PromptTokens(tokens=[FIRST, HELLO])),
        kind(prompt_tokens=pb.PromptTokens(tokens=[WORLD])),
        kind(delta={"token_ids": [5], "logprobs": [make_token(b"!", -2.0)], **output}),
        kind(finished=finished()),
    ]


TEXT_EVENTS = _events(TextEvent, {"text": "!"})
CHAT_EVENTS = _events(ChatEvent, {"content": "!"})


def _text(**fields: Any) -> dict[str, Any]:
    """The only choice of a text_completion."""
    body = completion_body(prompt=PROMPT, **fields)
    completion = CollectedCompletion(make_envelope(), body, [PROMPT] if body.echo else [])
    for event in TEXT_EVENTS:
        completion.add(event)
    answer: Any = completion.as_object()
    (choice,) = answer["choices"]
    assert isinstance(choice, dict)
    return choice


def _streamed(chunks: Any, events: Iterable[Any]) -> list[Any]:
    frames = [frame for event in events for frame in chunks.frames(event)]
    return [orjson.loads(event_data(frame)) for frame in frames]


def _text_chunks(**fields: Any) -> list[Any]:
    body = completion_body(prompt=PROMPT, stream=True, **fields)
    chunks = CompletionChunks(make_envelope(), body, [PROMPT] if body.echo else [])
    return [chunk["choices"][0] for chunk in _streamed(chunks, TEXT_EVENTS)]


def test_an_echo_begins_with_the_log_probabilities_of_the_prompt() -> None:
    """The first has none. The begin token and the space before the text take no characters."""
    choice = _text(echo=True, logprobs=1)

    assert choice["text"] == "Hi€!"
    assert choice["logprobs"] == ECHO
    assert "prompt_logprobs" not in choice


def test_an_echo_is_streamed_once_its_log_probabilities_are_there() -> None:
    """One chunk has the prompt, and those after it continue its offsets."""
    prompt, answer, end = _text_chunks(echo=True, logprobs=1)

    assert [choice["text"] for choice in (prompt, answer, end)] == [PROMPT, "!", ""]
    for name, values in ECHO.items():
        assert prompt["logprobs"][name] + answer["logprobs"][name] == values


@pytest.mark.parametrize(
    ("number", "removed"), [(2, ()), (1, ()), (0, ("9",))], ids=["2", "1", "0"]
)
def test_prompt_logprobs_have_the_form_of_vllm(number: int, removed: tuple[str, ...]) -> None:
    """By token id, with ranks; the prompt's own token is always there."""
    expected = [
        each and {name: value for name, value in each.items() if name not in removed}
        for each in VLLM
    ]

    assert _text(prompt_logprobs=number)["prompt_logprobs"] == expected
    first, *others = _text_chunks(prompt_logprobs=number)
    assert (first["prompt_logprobs"], first["text"]) == (expected, "")
    assert all("prompt_logprobs" not in choice for choice in others)


def test_token_ids_of_a_text_completion_are_in_its_choices() -> None:
    """Those of the prompt too, in a stream before the answer."""
    choice = _text(return_token_ids=True)
    first, answer, _ = _text_chunks(return_token_ids=True)

    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([1, 7, 8], [5])
    assert (first["prompt_token_ids"], answer["token_ids"]) == ([1, 7, 8], [5])


def test_a_chat_has_its_prompt_beside_the_choices() -> None:
    """And the ids of its answer in the choice, as vLLM."""
    body = chat_body(prompt_logprobs=1, return_token_ids=True)
    completion = CollectedChat(make_envelope(), body)
    for event in CHAT_EVENTS:
        completion.add(event)
    answer: Any = completion.as_object()

    assert (answer["prompt_logprobs"], answer["prompt_token_ids"]) == (VLLM, [1, 7, 8])
    assert answer["choices"][0]["token_ids"] == [5]


def test_a_streamed_chat_sends_its_prompt_before_the_answer() -> None:
    """In a chunk with an empty delta."""
    body = chat_body(prompt_logprobs=1, return_token_ids=True, stream=True)
    role, prompt, answer, end = _streamed(ChatChunks(make_envelope(), body), CHAT_EVENTS)

    assert (prompt["prompt_logprobs"], prompt["prompt_token_ids"]) == (VLLM, [1, 7, 8])
    assert prompt["choices"][0]["delta"] == {}
    assert answer["choices"][0]["token_ids"] == [5]
    assert all("prompt_logprobs" not in chunk for chunk in (role, answer, end))


@pytest.mark.parametrize("option", [{"prompt_logprobs": 1}, {"return_token_ids": True}])
def test_the_first_chunk_of_a_chat_with_tools_has_the_role(option: Mapping[str, Any]) -> None:
    """It is that of the prompt, which comes before the answer."""
    tool = {"type": "function", "function": {"name": "f"}}
    body = chat_body(stream=True, tools=[tool], **option)
    prompt, *others = _streamed(ChatChunks(make_envelope(), body), CHAT_EVENTS)

    assert prompt["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in others)


@pytest.mark.parametrize(
    ("tokens", "text", "offsets"),
    [
        ([b"a", b"\xe2\x82", b"\xac", b"b"], "a€b", [0, 1, 2, 2]),
        ([b"a", b"b", b"</s>"], "ab", [0, 1, 2]),
        ([b"<s>", b"s"], "s", [0, 0]),
        ([b"other"], "text", [0]),
    ],
    ids=["split character", "end token", "begin token", "normalized"],
)
def test_offsets_are_those_of_the_returned_text(
    tokens: list[bytes], text: str, offsets: list[int]
) -> None:
    """They are never outside it."""
    body = completion_body(prompt=text, echo=True, logprobs=0)
    completion = CollectedCompletion(make_envelope(), body, [text])
    sent = [pb.PromptToken(token_id=i, token=token) for i, token in enumerate(tokens)]
    completion.add(TextEvent(prompt_tokens=pb.PromptTokens(tokens=sent)))
    answer: Any = completion.as_object()

    assert answer["choices"][0]["logprobs"]["text_offset"] == offsets


def test_an_object_with_too_many_log_probabilities_is_refused() -> None:
    """The limit is over all prompts of a request."""
    completion = CollectedCompletion(make_envelope(), completion_body(prompt=["a", "b"]))
    half = pb.PromptTokens(tokens=[FIRST] * (MAX_COLLECTED // 2 + 1))
    completion.add(TextEvent(prompt_tokens=half), 0)

    with pytest.raises(TooLong, match="prompt_logprobs"):
        completion.add(TextEvent(prompt_tokens=half), 1)
