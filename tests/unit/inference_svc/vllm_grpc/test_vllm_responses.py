"""What routers get of the events of a generation."""

from collections.abc import Sequence
from typing import Any

import pytest
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as inference
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inference_svc.vllm_grpc.vllm_responses import ResponseWriter

END = 9


def events(*, choices: int = 1) -> list[inference.GenerateResponse]:
    """Two deltas and the end of each choice, whose tokens are ten times its index and more."""
    begin = [
        inference.GenerateResponse(accepted=generation.Accepted(prompt_tokens=5)),
        inference.GenerateResponse(started=generation.Started(cached_tokens=4)),
    ]
    deltas = [
        inference.GenerateResponse(delta=inference.TextDelta(index=i, token_ids=ids))
        for ids in ([1, 2], [], [END])
        for i in range(choices)
    ]
    return [*begin, *deltas, *(finished(i, stop_token_id=END) for i in range(choices))]


def finished(index: int = 0, **values: Any) -> inference.GenerateResponse:
    values = {"reason": generation.FINISH_REASON_STOP, **values}
    return inference.GenerateResponse(
        finished=generation.ChoiceFinished(index=index, completion_tokens=3, **values)
    )


def write(
    happened: Sequence[inference.GenerateResponse], *, stream: bool = False, **params: Any
) -> list[pb.GenerateResponse]:
    request = pb.GenerateRequest(stream=stream, sampling_params=pb.SamplingParams(**params))
    writer = ResponseWriter(request)
    return [response for event in happened for response in writer.add(event)]


@pytest.mark.parametrize("stream", [True, False])
def test_the_last_message_of_a_choice_has_all_of_it(*, stream: bool) -> None:
    responses = write(events(choices=2), stream=stream, n=2)

    completes = [each.complete for each in responses if each.HasField("complete")]
    assert completes == [
        pb.GenerateComplete(
            index=index,
            output_ids=[1, 2, END],
            finish_reason="stop",
            prompt_tokens=5,
            completion_tokens=3,
            cached_tokens=4,
        )
        for index in range(2)
    ]


def test_chunks_have_what_is_new_and_come_only_in_a_stream() -> None:
    chunks = [each.chunk for each in write(events(), stream=True) if each.HasField("chunk")]

    assert [list(chunk.token_ids) for chunk in chunks] == [[1, 2], [END]]
    assert [chunk.completion_tokens for chunk in chunks] == [2, 1]
    assert {(chunk.prompt_tokens, chunk.cached_tokens) for chunk in chunks} == {(5, 4)}
    assert not any(each.HasField("chunk") for each in write(events()))


@pytest.mark.parametrize(
    ("end", "params", "expected"),
    [
        ({"stop_token_id": END}, {}, {"finish_reason": "stop"}),
        (
            {"stop_token_id": END},
            {"stop_token_ids": [END]},
            {"finish_reason": "stop", "matched_token_id": END},
        ),
        ({}, {"stop_token_ids": [0]}, {"finish_reason": "stop"}),
        ({"stop_text": "."}, {}, {"finish_reason": "stop", "matched_stop_str": "."}),
        ({"reason": generation.FINISH_REASON_LENGTH}, {}, {"finish_reason": "length"}),
    ],
)
def test_the_end_of_a_choice_names_what_was_asked_for(
    end: dict[str, Any], params: dict[str, Any], expected: dict[str, Any]
) -> None:
    """As vLLM, which names no token where the text ended by itself."""
    (response,) = write([finished(**end)], **params)

    assert response.complete == pb.GenerateComplete(**expected)


def test_log_probabilities_stand_beside_their_tokens() -> None:
    def logprob(token: int) -> generation.ChosenLogprob:
        best = generation.TokenLogprob(token_id=token, logprob=-0.5)
        return generation.ChosenLogprob(chosen=best, top=[best])

    prompt = generation.PromptTokens(
        tokens=[
            generation.PromptToken(token_id=7),
            generation.PromptToken(
                token_id=8, logprob=-1, top=[generation.TokenLogprob(token_id=3, logprob=-0.25)]
            ),
        ]
    )
    deltas = [
        inference.TextDelta(token_ids=[token], logprobs=[logprob(token)]) for token in (1, END)
    ]
    responses = write(
        [
            inference.GenerateResponse(prompt_tokens=prompt),
            *(inference.GenerateResponse(delta=each) for each in deltas),
            finished(),
        ],
        stream=True,
    )

    first, second, last = responses
    assert list(first.chunk.output_logprobs.token_ids) == [1]
    assert list(last.complete.output_logprobs.token_ids) == [1, END]
    assert list(last.complete.output_logprobs.token_logprobs) == [-0.5, -0.5]
    assert [list(each.token_ids) for each in last.complete.output_logprobs.top_logprobs] == [
        [1],
        [END],
    ]
    expected = pb.InputLogProbs(
        token_ids=[7, 8],
        token_logprobs=[pb.InputTokenLogProb(), pb.InputTokenLogProb(value=-1)],
        top_logprobs=[pb.TopLogProbs(), pb.TopLogProbs(token_ids=[3], values=[-0.25])],
    )
    assert first.chunk.input_logprobs == last.complete.input_logprobs == expected
    assert not second.chunk.HasField("input_logprobs")


def test_an_abort_ends_the_choices_that_have_not_finished() -> None:
    request = pb.GenerateRequest(sampling_params=pb.SamplingParams(n=2))
    writer = ResponseWriter(request)
    happened = [*events(choices=2)[:4], finished(0)]
    for event in happened:
        list(writer.add(event))

    (response,) = writer.abort()

    expected = pb.GenerateComplete(
        index=1,
        output_ids=[1, 2],
        finish_reason="abort",
        prompt_tokens=5,
        completion_tokens=2,
        cached_tokens=4,
    )
    assert response.complete == expected
