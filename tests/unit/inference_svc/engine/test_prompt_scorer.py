"""Log probabilities of prompt tokens: every token once, in few rows, beside other sequences."""

from dataclasses import replace
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Preempted
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import (
    EngineBench,
    expected_prompt_tokens,
    expected_tokens,
    make_request,
)

PROMPT = [97 + i % 20 for i in range(50)]
OUTPUT_ROWS = 6


def _bench(output_rows: int = OUTPUT_ROWS, **options: Any) -> EngineBench:
    limits = NativeLimits(64, output_rows, 4, 128, VOCABULARY_SIZE)
    return EngineBench(FakeBackend(limits), **options)


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_every_token_of_a_prompt_is_scored_once(max_tokens: int) -> None:
    """With at most as many rows of logits in a call as there is memory for."""
    bench = _bench()
    bench.submit(make_request(0, PROMPT, prompt_logprobs=0, max_tokens=max_tokens))
    bench.run()

    assert bench.prompt_tokens(0) == expected_prompt_tokens(PROMPT)
    assert bench.tokens(0) == expected_tokens(PROMPT, max_tokens)
    assert max(int(batch.outputs.sum()) for batch in bench.backend.batches) == OUTPUT_ROWS


def test_a_cached_prompt_is_scored_too() -> None:
    """It starts from no prefix, waits for none, and leaves its own to others."""
    bench = _bench()
    bench.submit(make_request(0, PROMPT, max_tokens=40))
    bench.step()
    bench.submit(make_request(1, PROMPT, prompt_logprobs=0))
    bench.run()
    bench.submit(make_request(2, PROMPT))
    bench.run()

    assert bench.prompt_tokens(1) == expected_prompt_tokens(PROMPT)
    assert bench.started(1).cached_tokens == 0
    assert bench.started(2).cached_tokens == len(PROMPT) - 1


def test_several_prompts_share_the_rows_of_a_call() -> None:
    """Also with prompts that need no logits, which are not slowed down to the same chunks."""
    bench = _bench(chunk_cap=64)
    bench.submit(
        make_request(0, PROMPT, prompt_logprobs=0),
        make_request(1, PROMPT[1:], prompt_logprobs=0),
        make_request(2, PROMPT[2:]),
    )
    bench.step()
    assert bench.tokens(2) == expected_tokens(PROMPT[2:], 1), "its prompt takes one step"
    bench.run()

    assert bench.prompt_tokens(0) == expected_prompt_tokens(PROMPT)
    assert bench.prompt_tokens(1) == expected_prompt_tokens(PROMPT[1:])


def test_decoding_sequences_get_a_token_in_every_step() -> None:
    """A step has fewer rows with logits than would fit, so that they wait for the target time."""
    bench = _bench(output_rows=40, measured={1: 0.01, 4: 0.04}, token_target_s=0.215)
    bench.submit(make_request(0, max_tokens=60, max_draft=0))
    bench.step()
    before = len(bench.tokens(0))
    bench.submit(make_request(1, PROMPT, prompt_logprobs=0, max_tokens=0))
    steps = 0
    while len(bench.prompt_tokens(1)) < len(PROMPT):
        bench.step()
        steps += 1

    assert len(bench.tokens(0)) - before == steps
    assert max(int(batch.outputs.sum()) for batch in bench.backend.batches) == 10


def test_tokens_whose_cells_are_lost_are_not_sent_again() -> None:
    """They are computed again without logits, since only the cells are needed."""
    limits = NativeLimits(64, 3, 3, 64, VOCABULARY_SIZE, cells=120)
    bench = EngineBench(FakeBackend(limits))
    other = make_request(0, PROMPT[:20], priority=3, max_tokens=40, max_draft=0, reuse=False)
    bench.submit(other, replace(other, sequence_id=1, seed=2))
    bench.step()
    bench.submit(make_request(2, PROMPT, priority=1, prompt_logprobs=0, max_tokens=0))
    bench.run()

    (preempted,) = [event for event in bench.events if isinstance(event, Preempted)]
    assert preempted.sequence_id == 2
    assert bench.prompt_tokens(2) == expected_prompt_tokens(PROMPT)
    num_logits = sum(int(batch.outputs.sum()) for batch in bench.backend.batches)
    assert num_logits == len(bench.tokens(0)) + len(bench.tokens(1)) + len(PROMPT)
