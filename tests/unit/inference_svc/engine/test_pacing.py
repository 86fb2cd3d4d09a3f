"""What steps are expected to take."""

import pytest

from inference_svc.engine.pacing import StepCost


def test_nothing_measured_promises_nothing() -> None:
    """No estimate is better than a wrong one."""
    cost = StepCost({}, 4)

    assert cost.prefill_s(100) == 0
    assert cost.prompt_tokens_within(0.1, num_decoding=2) is None


def test_the_warm_up_gives_a_first_estimate() -> None:
    """A prompt token costs at most what a row among many does."""
    cost = StepCost({1: 0.01, 4: 0.04}, 4)

    assert cost.prefill_s(100) == pytest.approx(1.0)
    assert cost.prompt_tokens_within(0.12, num_decoding=2) == 10
    assert cost.prompt_tokens_within(0.001, num_decoding=4) == 0


def test_steps_correct_the_estimate() -> None:
    """It moves towards what prompt tokens take now, decoding rows taken off; tiny chunks say
    nothing."""
    cost = StepCost({1: 0.01, 4: 0.04}, 4)
    cost.observe(num_decoding=0, prompt_tokens=1, seconds=9.0)
    assert cost.prefill_s(1) == pytest.approx(0.01)
    for _ in range(30):
        cost.observe(num_decoding=2, prompt_tokens=100, seconds=0.22)

    assert cost.prefill_s(1) == pytest.approx(0.002, rel=0.05)


def test_rows_of_several_tokens_cost_what_was_measured() -> None:
    """In proportion beyond the last measurement, never less than rows of one, and nothing where
    nothing is known."""
    cost = StepCost({1: 0.01, 2: 0.015}, 2, {1: 0.008, 4: 0.03})

    assert cost.slowdown(1, 1) == 1
    assert cost.slowdown(1, 4) == pytest.approx(3.0)
    assert cost.slowdown(2, 2) == pytest.approx(2.0)
    assert cost.slowdown(2, 4) == pytest.approx(4.0)
    assert StepCost({1: 0.01}, 2).slowdown(1, 8) == 1
    assert StepCost({}, 2, {1: 0.01}).slowdown(1, 8) == 1
