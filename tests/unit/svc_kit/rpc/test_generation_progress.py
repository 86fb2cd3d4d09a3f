"""A generation that goes on elsewhere: each message is delivered once, behind the last token."""

from collections.abc import Sequence
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.rpc.generation_progress import GenerationProgress

NUM_TOKENS = 4
SEED = 5


def chat_request(**options: Any) -> pb.ChatRequest:
    return pb.ChatRequest(model="m", options={"num_choices": 2, **options})


def attempt(request: pb.ChatRequest) -> list[pb.ChatResponse]:
    """The answer of a replica: both choices in turns, each token as two deltas, of which the second
    has the id; a text that was withheld precedes the end."""
    resumed = {each.index: len(each.output_token_ids) for each in request.options.resume}
    events: list[Any] = [
        {"accepted": {"seed": SEED, "ignored_options": ["reasoning_effort"]}},
        {"started": {"cached_tokens": 3}},
    ]
    for token in range(NUM_TOKENS):
        for index in (0, 1):
            if token < resumed.get(index, 0):
                continue
            events += [
                {"delta": {"index": index, "reasoning": f"r{token}", "is_continued": True}},
                {
                    "delta": {
                        "index": index,
                        "content": f"c{token}",
                        "token_ids": [token],
                        "num_tokens": 1,
                    }
                },
            ]
    for index in (0, 1):
        events += [{"delta": {"index": index, "content": "!"}}, {"finished": {"index": index}}]
    events.append({"done": {"usage": {"cached_tokens": 9 if resumed else 3}}})
    return [pb.ChatResponse(sequence_number=i, **event) for i, event in enumerate(events)]


def deliver(progress: GenerationProgress, messages: Sequence[Any]) -> list[Any]:
    return [each for message in messages for each in progress.advance(message)]


def contents(messages: Sequence[Any]) -> list[str]:
    return [
        "".join(
            each.delta.reasoning + each.delta.content
            for each in messages
            if each.HasField("delta") and each.delta.index == index
        )
        for index in (0, 1)
    ]


WHOLE = GenerationProgress(chat_request())
UNDISTURBED = deliver(WHOLE, attempt(WHOLE.next_request()))


@pytest.mark.parametrize("second_cut", [0, 1, 3, 8, 99])
@pytest.mark.parametrize("cut", range(len(UNDISTURBED)))
def test_an_answer_that_was_cut_equals_the_undisturbed_one(cut: int, second_cut: int) -> None:
    progress = GenerationProgress(chat_request())
    delivered = deliver(progress, attempt(progress.next_request())[:cut])
    delivered += deliver(progress, attempt(progress.next_request())[:second_cut])
    if not any(each.HasField("done") for each in delivered):
        delivered += deliver(progress, attempt(progress.next_request()))
    kinds = [each.WhichOneof("event") for each in delivered]

    assert contents(delivered) == contents(UNDISTURBED)
    assert [each.sequence_number for each in delivered] == list(range(len(delivered)))
    assert [kinds.count(kind) for kind in ("accepted", "started", "done")] == [1, 1, 1]
    assert kinds.count("finished") == 2
    assert next(x for x in delivered if x.HasField("done")).done.usage.cached_tokens == 3


def test_the_ids_of_an_earlier_attempt_are_kept() -> None:
    resume = [{"index": 1, "output_token_ids": [0, 1]}]
    progress = GenerationProgress(chat_request(resume=resume, sampling={"seed": SEED}))
    deliver(progress, attempt(progress.next_request())[:6])
    resumed = {
        each.index: [*each.output_token_ids] for each in progress.next_request().options.resume
    }

    assert resumed == {0: [0, 1], 1: [0, 1]}


def test_an_engine_without_ids_is_delivered_unchanged() -> None:
    progress = GenerationProgress(chat_request())
    accepted = pb.ChatResponse(accepted={"ignored_options": ["output.token_ids"]})
    deltas = [pb.ChatResponse(delta={"content": text}) for text in "ab"]

    assert progress.advance(accepted)[0].accepted.ignored_options == []
    assert [message for delta in deltas for message in progress.advance(delta)] == deltas
    assert not progress.is_resumable


@pytest.mark.parametrize(
    "options",
    [
        {"output": {"prompt_logprobs": 0}},
        {"output": {"top_logprobs": 0}},
        {"resume": [{"snapshot_id": "s"}]},
        {"label": "x" * (4 << 20)},
    ],
    ids=["prompt_logprobs", "top_logprobs", "snapshot", "size"],
)
def test_what_cannot_be_exact_is_not_resumed(options: dict[str, Any]) -> None:
    request = chat_request(**options)
    progress = GenerationProgress(request)

    assert not progress.is_resumable
    assert progress.next_request() is request


def test_a_large_request_is_dropped_once_it_is_answered() -> None:
    progress = GenerationProgress(chat_request(label="x" * (4 << 20)))
    progress.advance(pb.ChatResponse(accepted={}))

    assert progress.next_request() == pb.ChatRequest()
