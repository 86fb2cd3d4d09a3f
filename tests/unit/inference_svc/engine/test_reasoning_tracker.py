"""Budgets of reasoning in the engine, on the fake backend."""

from array import array
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

CLOSING = tuple(b"</think>")
SPEC = ReasoningSpec("<think>", ("</think>",), is_open=True, budget=5, closings=(CLOSING,))


def run(backend: FakeBackend | None = None, **changes: Any) -> EngineBench:
    """Run two choices with 20 tokens."""
    bench = EngineBench(backend)
    options: dict[str, Any] = {"max_tokens": 20, "reasoning": SPEC} | changes
    bench.submit(*(make_request(i, choice=i, **options) for i in range(2)))
    bench.run()
    return bench


def test_the_budget_closes_the_thought_of_each_choice() -> None:
    """After five tokens the marker is forced, and the sequence goes on."""
    bench = run()

    for choice in range(2):
        tokens = bench.tokens(choice)
        assert len(tokens) == 20
        assert tuple(tokens[5:13]) == CLOSING
        assert bench.finished(choice).num_reasoning_tokens == 5
    assert bench.tokens(0)[:5] != bench.tokens(1)[:5]


def test_without_budget_the_tokens_are_only_counted() -> None:
    """The model does not close the thought, so that all tokens are reasoning."""
    bench = run(reasoning=SPEC._replace(budget=None))

    assert bench.finished(0).num_reasoning_tokens == 20


def test_a_budget_of_zero_closes_an_open_thought_with_the_first_token() -> None:
    bench = run(reasoning=SPEC._replace(budget=0))
    opened = run(
        reasoning=SPEC._replace(budget=0, is_open=False), resumed=array("i", list(b"\n<think>"))
    )

    assert tuple(bench.tokens(0)[:8]) == CLOSING
    assert tuple(opened.tokens(0)[:8]) == CLOSING
    assert opened.finished(0).num_reasoning_tokens == 0


def test_forced_tokens_have_log_probabilities() -> None:
    """One for each token."""
    (*deltas,) = run(top_logprobs=0).deltas(0)

    assert sum(len(delta.logprobs) for delta in deltas) == 20


@pytest.mark.parametrize("length", [3, 5, 8, 12, 13, 16])
def test_a_resumed_sequence_closes_where_the_whole_one_does(length: int) -> None:
    """The state follows from the tokens."""
    whole = run().tokens(0)
    resumed = run(resumed=array("i", whole[:length]))

    assert resumed.tokens(0) == whole[length:]
    assert resumed.finished(0).num_reasoning_tokens == 5


def test_drafts_do_not_change_where_the_thought_ends() -> None:
    """Draft tokens beyond the budget are rejected."""
    limits = NativeLimits(64, 64, 2, 256, VOCABULARY_SIZE)
    plain = run(FakeBackend(limits, repeats=True), max_draft=0, max_tokens=60)
    drafted = run(FakeBackend(limits, repeats=True), max_tokens=60)

    assert drafted.finished(0).num_drafted > 0
    assert drafted.tokens(0) == plain.tokens(0)
    assert tuple(plain.tokens(0)[5:13]) == CLOSING


def test_the_limit_of_tokens_may_cut_the_marker() -> None:
    """No token follows the last one."""
    assert run(max_tokens=7).tokens(0)[5:] == list(CLOSING[:2])


def test_a_marker_that_the_model_has_begun_is_completed() -> None:
    """Its tokens are not written twice."""
    bench = run(resumed=array("i", list(b"abc</")), max_tokens=11)

    assert bench.tokens(0) == list(CLOSING[2:])
    assert bench.finished(0).num_reasoning_tokens == 3
