"""Whole answers, usage and models."""

from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, generation_pb2, model_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from dialects.openai.chat.models import model_list, model_object
from dialects.openai.chat.objects import (
    CollectedChat,
    CollectedCompletion,
    usage_and_timings,
)
from tests.support.wire_events import (
    ChatEvent,
    TextEvent,
    chat_accepted,
    chat_body,
    chat_delta,
    completion_body,
    done,
    finished,
    make_envelope,
    make_token,
    text_accepted,
    text_delta,
)


def chat_object(*events: ChatEvent, num_choices: int = 1, logprobs: bool = False) -> Any:
    completion = CollectedChat(make_envelope(), chat_body(n=num_choices, logprobs=logprobs))
    for event in events:
        completion.add(event, 0)
    return completion.as_object()


@pytest.mark.parametrize(("has_prediction", "counts"), [(True, (3, 1)), (False, (0, 0))])
def test_drafts_are_counted_as_those_of_a_prediction(
    has_prediction: bool, counts: tuple[int, int]
) -> None:
    """Only if the request has one."""
    event = done(10, 5)
    event.usage.draft_tokens, event.usage.accepted_draft_tokens = 4, 3
    usage: Any = usage_and_timings([event], has_prediction=has_prediction)["usage"]
    details = usage["completion_tokens_details"]

    assert counts == (
        details["accepted_prediction_tokens"],
        details["rejected_prediction_tokens"],
    )


def test_timings_of_a_single_call() -> None:
    """Several calls have no timings."""
    event = done(10, 5, cached_tokens=6)
    event.usage.cache_source = generation_pb2.CACHE_SOURCE_LIVE
    event.usage.draft_tokens, event.usage.accepted_draft_tokens = 4, 3
    timings = event.timings
    timings.queue.FromMilliseconds(2)
    timings.prefill.FromMilliseconds(20)
    timings.first_token.FromMilliseconds(22)
    timings.decode.FromMilliseconds(40)
    timings.between_tokens.FromMilliseconds(10)
    timings.tokens_per_second, timings.completion_tokens = 100.0, 5

    assert usage_and_timings([event])["timings"] == {
        "cache_n": 6,
        "cache_source": "live",
        "prompt_n": 4,
        "prompt_ms": 20.0,
        "prompt_per_second": 200.0,
        "predicted_n": 5,
        "predicted_ms": 40.0,
        "predicted_per_token_ms": 10.0,
        "predicted_per_second": 100.0,
        "draft_n": 4,
        "draft_n_accepted": 3,
        "queue_ms": 2.0,
        "first_token_ms": 22.0,
    }
    assert "timings" not in usage_and_timings([event, event])


def test_a_chat_completion_has_every_field() -> None:
    """The object equals OpenAI's, except for `timings`."""
    answer = chat_object(
        chat_accepted(), chat_delta("Hel"), chat_delta("lo"), ChatEvent(finished=finished()),
        ChatEvent(done=done(
            3, 2, cached_tokens=1, reasoning_tokens=1, audio_tokens=4, image_tokens=6
        )),
    )  # fmt: skip

    del answer["timings"]
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 4, "image_tokens": 6},
            "completion_tokens_details": {
                "reasoning_tokens": 1,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


def test_an_empty_answer_has_empty_content() -> None:
    """Content is null only with tool calls."""
    message = chat_object(chat_accepted(), ChatEvent(finished=finished()))["choices"][0]["message"]

    assert message["content"] == ""


def test_tool_call_deltas_are_joined() -> None:
    """In order of their index; content is null."""
    pieces = [
        chat_pb2.ToolCallDelta(index=1, id="c2", name="g", arguments_json="{}"),
        chat_pb2.ToolCallDelta(index=0, id="c1", name="f", arguments_json='{"a"'),
        chat_pb2.ToolCallDelta(index=0, arguments_json=":1}"),
    ]
    message = chat_object(chat_accepted(), *(chat_delta(calls=[piece]) for piece in pieces))[
        "choices"
    ][0]["message"]

    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_empty_reasoning_and_tool_calls_are_omitted() -> None:
    """Only non-empty fields are present."""
    message = chat_object(chat_accepted(), chat_delta("x"))["choices"][0]["message"]

    assert message.keys() == {"role", "content", "refusal", "annotations"}
    thought = chat_object(chat_accepted(), chat_delta("x", reasoning="hm"))["choices"][0]["message"]
    assert thought["reasoning_content"] == "hm"


def test_infinite_logprobs_are_clamped() -> None:
    """JSON has no infinity and no NaN."""
    token = make_token(b"a", float("-inf"), [(b"b", float("nan"))])
    answer = chat_object(chat_accepted(), chat_delta("a", logprobs=[token]), logprobs=True)

    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["logprob"] == -9999.0
    assert entry["top_logprobs"][0]["logprob"] == -9999.0


def test_choices_are_in_the_order_of_prompts() -> None:
    """Usage is summed."""
    body = completion_body(prompt=["p", "q"], echo=True)
    completion = CollectedCompletion(make_envelope("cmpl-1"), body, ["p", "q"])
    events = [
        (1, text_accepted()),
        (1, text_delta("b")),
        (0, text_delta("a")),
        (0, TextEvent(finished=finished(0, generation_pb2.FINISH_REASON_LENGTH))),
        (1, TextEvent(finished=finished())),
        (0, TextEvent(done=done(3, 2))),
        (1, TextEvent(done=done(4, 5))),
    ]
    for call, event in events:
        completion.add(event, call)
    answer: Any = completion.as_object()

    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "pa", "logprobs": None, "finish_reason": "length"},
        {"index": 1, "text": "qb", "logprobs": None, "finish_reason": "stop"},
    ]
    assert answer["usage"]["total_tokens"] == 14


def test_best_of_returns_the_most_probable_choices() -> None:
    """By mean log probability, best first."""
    completion = CollectedCompletion(make_envelope("cmpl-1"), completion_body(best_of=3, n=2))
    for index, (text, logprob) in enumerate([("bad", -3.0), ("best", -1.0), ("good", -2.0)]):
        completion.add(text_delta(text, index=index, logprobs=[make_token(b"x", logprob)]))
    answer: Any = completion.as_object()

    assert [(c["index"], c["text"], c["logprobs"]) for c in answer["choices"]] == [
        (0, "best", None),
        (1, "good", None),
    ]


def test_completion_logprobs_are_parallel_lists() -> None:
    """Invalid UTF-8 gets the `bytes:` notation."""
    completion = CollectedCompletion(make_envelope("cmpl-1"), completion_body(logprobs=0))
    tokens = [
        make_token(b"a", -0.5, [(b"\xe2", -1.0), (b"\xe3", -2.0)]),
        make_token(b"\xe2\x82", -0.25),
    ]
    completion.add(text_delta("a", logprobs=tokens))
    answer: Any = completion.as_object()

    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xe2\\x82"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"bytes:\\xe2": -1.0, "bytes:\\xe3": -2.0}, {}],
        "text_offset": [0, 1],
    }


def test_a_model_object() -> None:
    """OpenAI's fields and extensions."""
    model = model_pb2.Model(
        name="m",
        aliases=["n"],
        state=model_pb2.Model.STATE_READY,
        load_time=Timestamp(seconds=1700000000),
        resolved_limits=model_pb2.ModelLimits(context_tokens=4096),
    )

    shown = model_object(model)
    assert {key: shown[key] for key in ("id", "object", "created", "owned_by")} == {
        "id": "m",
        "object": "model",
        "created": 1700000000,
        "owned_by": "corral",
    }
    assert (shown["state"], shown["problem"]) == ("ready", None)
    assert model_object(model_pb2.Model(problem="not a GGUF file"))["problem"] == "not a GGUF file"
    assert (shown["shutdown_date"], shown["max_model_len"], shown["aliases"]) == (None, 4096, ["n"])
    assert shown["input_modalities"] == ["text"]
    assert model_list([model]) == {"object": "list", "data": [shown]}


def test_a_model_object_says_what_the_model_reads() -> None:
    """In OpenAI's words; a kind of another release is omitted."""
    kinds = [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_IMAGE, model_pb2.MODALITY_AUDIO, 99]
    model = model_pb2.Model(name="m", input_modalities=kinds)  # type: ignore[arg-type]

    assert model_object(model)["input_modalities"] == ["text", "image", "audio"]
