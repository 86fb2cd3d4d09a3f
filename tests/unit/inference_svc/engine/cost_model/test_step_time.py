"""Predictions of step times."""

import random
from statistics import median

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.cost_model.step_time import StepTimeModel


def _cost(
    step_times: dict[int, float], slots: int, token_times: dict[int, float] | None = None
) -> StepTimeModel:
    return StepTimeModel(step_times, NativeLimits(64, slots + 16, slots, 160, 257), token_times)


def test_there_is_no_prediction_without_measurements() -> None:
    """No prediction is better than a wrong one."""
    cost = _cost({}, 4)

    assert cost.prefill_s(100) == 0
    assert cost.prompt_tokens_within(0.1, num_decoding=2) is None


def test_the_warm_up_gives_a_first_estimate() -> None:
    """A prompt token takes at most as long as a row of a full batch."""
    cost = _cost({1: 0.01, 4: 0.04}, 4)

    assert cost.prefill_s(100) == pytest.approx(1.0)
    assert cost.prompt_tokens_within(0.12, num_decoding=2) == 10
    assert cost.prompt_tokens_within(0.001, num_decoding=4) == 0


def test_steps_correct_the_estimate() -> None:
    """The estimate approaches the measured time without the decoding rows; tiny chunks are
    ignored."""
    cost = _cost({1: 0.01, 4: 0.04}, 4)
    cost.observe_prefill(num_decoding=0, prompt_tokens=1, seconds=9.0)
    assert cost.prefill_s(1) == pytest.approx(0.01)
    for _ in range(30):
        cost.observe_prefill(num_decoding=2, prompt_tokens=100, seconds=0.22)

    assert cost.prefill_s(1) == pytest.approx(0.002, rel=0.05)


def test_vectors_are_predicted_by_calls_of_vectors() -> None:
    """At first as prompt tokens. They are computed in whole blocks of rows, one at least."""
    cost = _cost({1: 0.01, 4: 0.04}, 4)
    assert cost.vectors_within(0.12, num_decoding=2) == 8
    assert cost.vectors_within(0.01, num_decoding=2) == 4
    cost.observe_vectors(8, 0.016)

    assert cost.vectors_within(0.06, num_decoding=2) == 20
    assert cost.vectors_within(9.0, num_decoding=2) == 20  # not much larger than the measured one


@pytest.mark.parametrize("first", [4, 200])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_calls_of_vectors_take_the_given_time_on_a_machine_that_changes(
    first: int, noise: float
) -> None:
    """After a few calls. Each reads all weights, so that small ones take longer per vector."""
    cost, rng = _cost({1: 0.01, 2: 0.02}, 2), random.Random(0)

    def call(vectors: int, pace: float) -> float:
        seconds = pace * (0.02 + 0.005 * vectors / 4) * rng.uniform(1 - noise, 1 + noise)
        cost.observe_vectors(vectors, seconds)
        return seconds

    call(first, 1.0)
    for pace in (1.0, 1.7, 1.0, 0.5, 2.5, 1.0):
        times = [call(cost.vectors_within(0.1, num_decoding=2) or 0, pace) for _ in range(60)]
        assert 0.065 < median(times[20:]) <= 0.082
        assert max(times[20:]) < 0.11


@pytest.mark.parametrize(("fixed", "block", "left", "fitting"), [(30, 5, 60, 6), (20, 5, 40, 4)])
def test_larger_calls_are_tried_after_small_ones(
    fixed: float, block: float, left: float, fitting: int
) -> None:
    """If two blocks would not fit at the pace of one, of which most is reading the weights."""
    cost = _cost({1: 0.01, 2: 0.02}, 2)
    cost.observe_vectors(4, (fixed + block) / 1e3)
    for _ in range(10):
        vectors = cost.vectors_within(0.02 + left / 1e3, num_decoding=2) or 0
        cost.observe_vectors(vectors, (fixed + block * vectors / 4) / 1e3)

    assert vectors / 4 in (fitting - 1, fitting)


def test_calls_of_one_block_do_not_hide_what_larger_ones_take() -> None:
    """As long as there is no time for larger ones."""
    cost = _cost({1: 0.01, 2: 0.02}, 2)
    for vectors, seconds in ((200, 0.64), (4, 0.029), (8, 0.042), *[(4, 0.029)] * 20):
        cost.observe_vectors(vectors, seconds)

    assert cost.vectors_within(0.06, num_decoding=2) == 4
    assert cost.vectors_within(0.065, num_decoding=2) == 8


@pytest.mark.parametrize("slow", [0.2, 10.0])
def test_a_slow_call_of_vectors_does_not_limit_later_ones_for_good(slow: float) -> None:
    """Larger ones are tried again, but seldom where they take too long."""
    cost = _cost({1: 0.01, 2: 0.02}, 2)

    def calls(count: int) -> list[int]:
        sizes = []
        for _ in range(count):
            sizes.append(cost.vectors_within(0.06, num_decoding=2) or 0)
            cost.observe_vectors(sizes[-1], 0.02 + 0.00125 * sizes[-1])
        return sizes

    cost.observe_vectors(8, 0.03)
    before = calls(200)[50:]
    cost.observe_vectors(16, slow)
    calls(200)

    assert median(before) == 16
    assert sum(size > 16 for size in before) <= 3
    assert median(calls(200)) == 16


def test_slow_steps_leave_less_time_for_vectors() -> None:
    """Those of long contexts, or on a busy machine."""
    cost = _cost({1: 0.01, 2: 0.02}, 2)
    cost.observe_vectors(4, 0.02)
    assert cost.vectors_within(0.1, num_decoding=2) == 12
    for _ in range(30):
        cost.observe_decode(rows=2, drafted=0, seconds=0.079)

    assert cost.vectors_within(0.1, num_decoding=2) == 4


def test_the_slowdown_of_longer_rows_is_the_measured_one() -> None:
    """Linear beyond the last measurement, at least 1, and 1 without measurements."""
    cost = _cost({1: 0.01, 2: 0.015}, 2, {1: 0.008, 4: 0.03})

    assert cost.slowdown(1, 1) == 1
    assert cost.slowdown(1, 4) == pytest.approx(3.0)
    assert cost.slowdown(2, 2) == pytest.approx(2.0)
    assert cost.slowdown(2, 4) == pytest.approx(4.0)
    assert _cost({1: 0.01}, 2).slowdown(1, 8) == 1
    assert _cost({}, 2, {1: 0.01}).slowdown(1, 8) == 1


def test_drafts_that_are_faster_than_predicted_correct_the_prediction() -> None:
    """By the tokens of all rows. Slower steps are ignored: they may have long contexts."""
    cost = _cost({1: 0.01, 2: 0.01}, 2, {1: 0.01, 2: 0.04, 4: 0.08, 8: 0.16})
    assert cost.observe_decode(rows=1, drafted=3, seconds=0.02)
    assert cost.observe_decode(rows=2, drafted=3, seconds=0.03)
    assert not cost.observe_decode(rows=1, drafted=1, seconds=0.5)

    assert cost.slowdown(1, 4) == pytest.approx(2.0)
    assert cost.slowdown(2, 4) == pytest.approx(3.0)
    assert cost.slowdown(1, 2) == pytest.approx(4.0)


def test_unmeasured_token_counts_are_interpolated() -> None:
    """Also after a correction: six between four and eight, and sixteen beyond."""
    cost = _cost({1: 0.01, 2: 0.01}, 2, {1: 0.01, 4: 0.08, 8: 0.16})
    cost.observe_decode(rows=1, drafted=7, seconds=0.02)
    cost.observe_decode(rows=1, drafted=3, seconds=0.01)

    assert cost.slowdown(1, 6) == pytest.approx(1.5)
    assert cost.slowdown(1, 16) == pytest.approx(4.0)


def test_a_faster_step_without_drafts_raises_the_slowdown_of_drafts() -> None:
    """The slowdown is relative to a step without drafts."""
    cost = _cost({1: 0.02}, 1, {1: 0.02, 2: 0.02})
    assert cost.slowdown(1, 2) == 1
    assert cost.observe_decode(rows=1, drafted=0, seconds=0.01)

    assert cost.slowdown(1, 2) == pytest.approx(2.0)
