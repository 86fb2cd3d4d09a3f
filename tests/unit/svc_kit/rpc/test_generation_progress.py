"""A generation that goes on elsewhere: each message is delivered once, behind the last token."""

from collections.abc import Sequence
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.rpc.generation_progress import GenerationProgress

NUM_TOKENS = 4
SEED = 5
MAX_TOKENS = 9
SCORED = {"output": {"prompt_logprobs": 0, "top_logprobs": 0}}


def chat_request(**options: Any) -> pb.ChatRequest:
    return pb.ChatRequest(model="m", options={"num_choices": 2, **options})


def logprob(token: int) -> Any:
    return {"chosen": {"token_id": token, "logprob": -token}}


def attempt(request: pb.ChatRequest) -> list[pb.ChatResponse]:
    """The answer of a replica: the prompt's tokens, then both choices in turns, each token as two
    deltas, of which the second has the id and the log probability of the token before; a text that
    was withheld precedes the end, with the last log probability."""
    resumed = {each.index: len(each.output_token_ids) for each in request.options.resume}
    held: dict[int, list[Any]] = {0: [], 1: []}
    for each in request.options.resume:
        held[each.index] = [*each.held_logprobs]
    events: list[Any] = [
        {
            "accepted": {
                "seed": SEED,
                "max_tokens": MAX_TOKENS,
                "ignored_options": ["reasoning_effort"],
                "input_digest": "d",
            }
        },
        {"started": {"cached_tokens": 3}},
        {"prompt_tokens": {"tokens": [{"token_id": 0}, {"token_id": 1}]}},
        {"prompt_tokens": {"tokens": [{"token_id": 2}]}},
    ]
    for token in range(NUM_TOKENS):
        for index in (0, 1):
            if token < resumed.get(index, 0):
                continue
            delta = {
                "index": index,
                "content": f"c{token}",
                "token_ids": [token],
                "num_tokens": 1,
                "logprobs": held[index],
                "held_logprobs": [logprob(token)],
                "num_held": 1,
            }
            held[index] = [logprob(token)]
            thought = {"index": index, "reasoning": f"r{token}", "is_continued": True}
            events += [{"delta": thought}, {"delta": delta}]
    for index in (0, 1):
        last = {"index": index, "content": "!", "logprobs": held[index]}
        events += [{"delta": last}, {"finished": {"index": index}}]
    elsewhere = {"cached_tokens": 9, "divergence": {"token_index": 9}}
    events.append({"done": {"usage": elsewhere if resumed else {"cached_tokens": 3}}})
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


def scored(messages: Sequence[Any]) -> list[list[int]]:
    """The tokens with log probabilities: of the prompt, and of the choices."""
    prompt = [token.token_id for each in messages for token in each.prompt_tokens.tokens]
    choices = [
        [
            entry.chosen.token_id
            for each in messages
            if each.delta.index == index
            for entry in each.delta.logprobs
        ]
        for index in (0, 1)
    ]
    return [prompt, *choices]


WHOLE = GenerationProgress(chat_request(**SCORED))
UNDISTURBED = deliver(WHOLE, attempt(WHOLE.next_request()))


@pytest.mark.parametrize("second_cut", [0, 1, 3, 4, 10, 99])
@pytest.mark.parametrize("cut", range(len(UNDISTURBED)))
def test_an_answer_that_was_cut_equals_the_undisturbed_one(cut: int, second_cut: int) -> None:
    progress = GenerationProgress(chat_request(**SCORED))
    delivered = deliver(progress, attempt(progress.next_request())[:cut])
    delivered += deliver(progress, attempt(progress.next_request())[:second_cut])
    if not any(each.HasField("done") for each in delivered):
        delivered += deliver(progress, attempt(progress.next_request()))
    kinds = [each.WhichOneof("event") for each in delivered]

    assert contents(delivered) == contents(UNDISTURBED)
    assert scored(delivered) == scored(UNDISTURBED) == [[0, 1, 2], *[[0, 1, 2, 3]] * 2]
    assert not any(each.delta.held_logprobs or each.delta.num_held for each in delivered)
    assert [each.sequence_number for each in delivered] == list(range(len(delivered)))
    assert [kinds.count(kind) for kind in ("accepted", "started", "done")] == [1, 1, 1]
    assert kinds.count("finished") == 2
    (usage,) = [each.done.usage for each in delivered if each.HasField("done")]
    assert (usage.cached_tokens, usage.HasField("divergence")) == (3, False)


def test_the_ids_of_an_earlier_attempt_are_kept() -> None:
    resume = [{"index": 1, "output_token_ids": [0, 1]}]
    progress = GenerationProgress(chat_request(resume=resume, sampling={"seed": SEED}))
    deliver(progress, attempt(progress.next_request())[:8])
    resumed = {
        each.index: [*each.output_token_ids] for each in progress.next_request().options.resume
    }

    assert resumed == {0: [0, 1], 1: [0, 1]}


def test_the_held_log_probabilities_of_an_earlier_attempt_are_kept() -> None:
    resume = [{"index": 0, "output_token_ids": [0, 1], "held_logprobs": [logprob(1)]}]
    options = {"resume": resume, "sampling": {"seed": SEED}, **SCORED}
    progress = GenerationProgress(chat_request(**options))
    deliver(progress, attempt(progress.next_request())[:2])
    (resumed,) = progress.next_request().options.resume

    assert [entry.chosen.token_id for entry in resumed.held_logprobs] == [1]


def test_a_caller_that_goes_on_by_itself_gets_what_is_held_back() -> None:
    """Behind the tokens; it may send it with them (`resume`), when it has lost its process."""
    output = {**SCORED["output"], "token_ids": True}
    progress = GenerationProgress(chat_request(output=output))
    first = deliver(progress, attempt(progress.next_request())[:8])
    second = deliver(progress, attempt(progress.next_request()))
    held: dict[int, list[int]] = {0: [], 1: []}
    for delta in [each.delta for each in (*first, *second) if each.delta.num_tokens]:
        parts = held[delta.index] + [each.chosen.token_id for each in delta.held_logprobs]
        held[delta.index] = parts[-delta.num_held :]
        assert held[delta.index] == [*delta.token_ids]

    assert held == {0: [NUM_TOKENS - 1], 1: [NUM_TOKENS - 1]}


def test_a_completion_holds_nothing_back() -> None:
    """Its log probabilities come with their tokens, which the client has not asked for."""
    progress = GenerationProgress(pb.GenerateRequest(options={"output": {"top_logprobs": 0}}))
    delta: Any = {"text": "a", "token_ids": [1], "num_tokens": 1, "logprobs": [logprob(1)]}
    messages: list[Any] = [
        {"accepted": {"input_digest": "d"}},
        {"started": {}},
        {"delta": delta},
    ]
    delivered = deliver(progress, [pb.GenerateResponse(**each) for each in messages])

    assert [entry.chosen.token_id for entry in delivered[-1].delta.logprobs] == [1]
    assert not delivered[-1].delta.token_ids
    assert [*progress.next_request().options.resume[0].output_token_ids] == [1]


def test_the_limit_of_the_first_replica_holds_at_the_next() -> None:
    """Whose context may be larger."""
    progress = GenerationProgress(chat_request())
    deliver(progress, attempt(progress.next_request())[:1])

    assert progress.next_request().options.stopping.max_tokens == MAX_TOKENS


def test_an_engine_without_ids_is_delivered_unchanged() -> None:
    progress = GenerationProgress(chat_request())
    accepted = pb.ChatResponse(accepted={"ignored_options": ["output.token_ids"]})
    deltas = [pb.ChatResponse(delta={"content": text}) for text in "ab"]

    assert progress.advance(accepted)[0].accepted.ignored_options == []
    assert [message for delta in deltas for message in progress.advance(delta)] == deltas
    assert "text mode" in progress.obstacle


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [({"resume": [{"snapshot_id": "s"}]}, "snapshot"), ({"label": "x" * (4 << 20)}, "4 MiB")],
    ids=["snapshot", "size"],
)
def test_what_only_one_replica_can_answer_is_not_resumed(
    options: dict[str, Any], obstacle: str
) -> None:
    request = chat_request(**options)
    progress = GenerationProgress(request)

    assert obstacle in progress.obstacle
    assert progress.next_request() is request


@pytest.mark.parametrize(
    ("options", "second", "obstacle"),
    [
        ({}, {"input_digest": "other"}, "another prompt"),
        ({}, {"model_digest": "other"}, "other weights"),
        ({}, {"ignored_options": ["tools[0]"]}, "ignores tools[0]"),
        ({}, {"input_digest": ""}, ""),
        (SCORED, {"input_digest": ""}, "earlier release"),
    ],
)
def test_a_replica_that_would_answer_otherwise_is_an_obstacle(
    options: dict[str, Any], second: dict[str, Any], obstacle: str
) -> None:
    """One of an earlier release tells no digest."""
    progress = GenerationProgress(chat_request(**options))
    digests = {"model_digest": "one", "input_digest": "d"}
    progress.advance(pb.ChatResponse(accepted=digests))
    progress.next_request()
    progress.advance(pb.ChatResponse(accepted={**digests, **second}))

    assert bool(progress.obstacle) is bool(obstacle)
    assert obstacle in progress.obstacle


def test_a_large_request_is_dropped_once_it_is_answered() -> None:
    progress = GenerationProgress(chat_request(label="x" * (4 << 20)))
    progress.advance(pb.ChatResponse(accepted={}))

    assert progress.next_request() == pb.ChatRequest()
