"""Corrections of step times by comparing consecutive steps."""

import pytest

from inference_svc.engine.cost_model.step_time import DecodeTimes
from inference_svc.engine.cost_model.trials import RowCountTrials

STEPS = 10  # with the same rows, as between two requests


def _trials(measured: dict[int, float]) -> tuple[DecodeTimes, RowCountTrials]:
    times = DecodeTimes(measured, 16, in_blocks=True)
    return times, RowCountTrials(times)


def _steps(trials: RowCountTrials, rows: int, seconds: float, count: int = STEPS) -> None:
    for _ in range(count):
        trials.observe([rows], seconds)


def test_an_underestimated_row_count_is_corrected() -> None:
    """For example, measured while nothing else ran."""
    times, trials = _trials({15: 80.0, 16: 100.0})
    for _ in range(8):
        _steps(trials, 16, 100.0)
        _steps(trials, 15, 130.0)

    assert times[15] / times[16] == pytest.approx(1.3, rel=0.1)


def test_an_overestimated_row_count_is_corrected() -> None:
    """It was measured on a busy machine; occasional trials correct it."""
    times, trials = _trials({15: 300.0, 16: 150.0})
    for steps in 8 * (1, 5):  # a trial, or several steps
        _steps(trials, 16, 150.0)
        _steps(trials, 15, 135.0, steps)

    assert times[15] / times[16] == pytest.approx(0.9, rel=0.1)


def test_a_slowdown_of_all_steps_changes_no_estimate() -> None:
    """Longer contexts or another process slow down every row count."""
    times, trials = _trials({15: 130.0, 16: 100.0})
    _steps(trials, 16, 100.0)
    _steps(trials, 16, 170.0)
    _steps(trials, 15, 1.7 * 130.0)
    _steps(trials, 16, 170.0)

    assert times[15] == pytest.approx(130.0)
    assert times[16] == pytest.approx(100.0)


def test_the_slowdown_relative_to_the_warm_up_is_measured() -> None:
    """The estimates keep their scale."""
    times, trials = _trials({15: 130.0, 16: 100.0})
    assert trials.slowdown == 1
    _steps(trials, 16, 50.0)
    _steps(trials, 15, 65.0)

    assert trials.slowdown == pytest.approx(0.5)
    assert (times[15], times[16]) == (130.0, 100.0)


@pytest.mark.parametrize(("delayed", "rel"), [(15, 0.11), (16, 0.01)])
def test_a_single_delayed_step_has_little_effect(delayed: int, rel: float) -> None:
    """Whether it is the first of a row count or the last of another."""
    times, trials = _trials({15: 130.0, 16: 100.0})
    _steps(trials, 16, 100.0)
    trials.observe([delayed], 2000.0)
    _steps(trials, 15, 130.0)

    assert times[15] / times[16] == pytest.approx(1.3, rel=rel)


def test_the_first_measurement_of_a_row_count_replaces_its_estimate() -> None:
    """The estimate is at least that of the next whole block."""
    times, trials = _trials({8: 55.0, 12: 85.0})
    assert times[9] > times[12]
    _steps(trials, 12, 85.0)
    trials.observe([9], 70.0)

    assert times[9] == pytest.approx(70.0)


def test_a_delayed_first_step_does_not_rule_out_a_row_count() -> None:
    """Otherwise it would never be tried again."""
    times, trials = _trials({8: 55.0, 12: 85.0})
    _steps(trials, 12, 85.0)
    trials.observe([9], 5000.0)

    assert times[9] < 1.6 * times[12]


def test_the_cost_of_changing_the_row_count_does_not_accumulate() -> None:
    """Every first step after a change also executes queued copies."""
    times, trials = _trials({12: 85.0, 15: 130.0, 16: 100.0})
    for _ in range(1000):
        for rows, seconds in ((16, 100.0), (15, 130.0)):
            trials.observe([rows], 1.1 * seconds)
            _steps(trials, rows, seconds)

    assert [times[rows] for rows in (12, 15, 16)] == pytest.approx([85.0, 130.0, 100.0], rel=0.1)


def test_a_single_row_slower_than_two_lowers_no_other_estimate() -> None:
    """Layouts use the minimum of all counts for one row; comparisons use its own time."""
    times, trials = _trials({1: 14.0, 2: 13.0})
    for _ in range(1000):
        _steps(trials, 1, 14.0)
        _steps(trials, 2, 13.0)

    assert times[1] == times[2] == pytest.approx(13.0)


def test_steps_are_recorded_by_kind() -> None:
    """Adapters that alternate every two steps correct the estimates like a single one."""
    times, trials = _trials({7: 40.0, 8: 40.0})
    for i in range(400):
        kind = i // 2 % 2
        trials.observe([7 + i // 4 % 2], (20.0, 40.0)[i // 4 % 2] * (1 + kind), kind)

    assert times[8] / times[7] == pytest.approx(2.0, rel=0.1)


def test_steps_of_other_kinds_are_not_compared() -> None:
    """Adapters slow down all row counts."""
    times, trials = _trials({3: 30.0, 4: 40.0})
    for _ in range(STEPS):
        trials.observe([4], 40.0, "plain")
        trials.observe([3], 60.0, "with an adapter")

    assert (times[3], times[4]) == (30.0, 40.0)


def test_runs_of_different_lengths_are_ignored() -> None:
    """The time of each run is unknown."""
    times, trials = _trials({1: 10.0, 2: 20.0})

    assert not trials.observe([1, 2], 5.0)
    assert (times[1], times[2]) == (10.0, 20.0)
