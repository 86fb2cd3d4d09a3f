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
