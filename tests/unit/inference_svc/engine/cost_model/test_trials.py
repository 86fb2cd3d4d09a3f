"""Which number of rows is believed to be the faster, after steps that follow each other."""

import pytest

from inference_svc.engine.cost_model.step_time import DecodeTimes
from inference_svc.engine.cost_model.trials import RowCountTrials

ALONG = 10  # steps with the same rows, as between two requests that come or end


def _contest(measured: dict[int, float]) -> tuple[DecodeTimes, RowCountTrials]:
    times = DecodeTimes(measured, 16, in_blocks=True)
    return times, RowCountTrials(times)


def _steps(contest: RowCountTrials, rows: int, seconds: float, count: int = ALONG) -> None:
    for _ in range(count):
        contest.observe([rows], seconds)


def test_a_count_that_looked_fast_is_found_out() -> None:
    """It was measured while nothing else ran."""
    times, contest = _contest({15: 80.0, 16: 100.0})
    for _ in range(8):
        _steps(contest, 16, 100.0)
        _steps(contest, 15, 130.0)

    assert times[15] / times[16] == pytest.approx(1.3, rel=0.1)


def test_a_count_that_looked_slow_is_found_out() -> None:
    """Something else ran while it was measured; now and then a step shows what it takes."""
    times, contest = _contest({15: 300.0, 16: 150.0})
    for steps in 8 * (1, 5):  # a trial, or all that there is
        _steps(contest, 16, 150.0)
        _steps(contest, 15, 135.0, steps)

    assert times[15] / times[16] == pytest.approx(0.9, rel=0.1)


def test_what_slows_every_step_says_nothing_of_one_count() -> None:
    """Longer texts, or another program, while the same rows go on; then others are as slow."""
    times, contest = _contest({15: 130.0, 16: 100.0})
    _steps(contest, 16, 100.0)
    _steps(contest, 16, 170.0)
    _steps(contest, 15, 1.7 * 130.0)
    _steps(contest, 16, 170.0)

    assert times[15] == pytest.approx(130.0)
    assert times[16] == pytest.approx(100.0)


def test_steps_that_are_faster_than_at_the_warm_up_tell_by_how_much() -> None:
    """With any rows; what is believed of them keeps its scale."""
    times, contest = _contest({15: 130.0, 16: 100.0})
    assert contest.slowdown == 1
    _steps(contest, 16, 50.0)
    _steps(contest, 15, 65.0)

    assert contest.slowdown == pytest.approx(0.5)
    assert (times[15], times[16]) == (130.0, 100.0)


@pytest.mark.parametrize(("held_up", "rel"), [(15, 0.11), (16, 0.01)])
def test_one_step_that_was_held_up_hardly_counts(held_up: int, rel: float) -> None:
    """Be it the first of a count, or one before it."""
    times, contest = _contest({15: 130.0, 16: 100.0})
    _steps(contest, 16, 100.0)
    contest.observe([held_up], 2000.0)
    _steps(contest, 15, 130.0)

    assert times[15] / times[16] == pytest.approx(1.3, rel=rel)


def test_what_was_never_measured_is_believed_at_once() -> None:
    """Until then it is taken for as slow as the block which it could be filled up to."""
    times, contest = _contest({8: 55.0, 12: 85.0})
    assert times[9] > times[12]
    _steps(contest, 12, 85.0)
    contest.observe([9], 70.0)

    assert times[9] == pytest.approx(70.0)


def test_a_first_step_that_was_held_up_shuts_nothing_out() -> None:
    """Else the count would never be tried again."""
    times, contest = _contest({8: 55.0, 12: 85.0})
    _steps(contest, 12, 85.0)
    contest.observe([9], 5000.0)

    assert times[9] < 1.6 * times[12]


def test_what_every_change_costs_adds_up_to_nothing() -> None:
    """A step after a change carries out what was queued for it, every time."""
    times, contest = _contest({12: 85.0, 15: 130.0, 16: 100.0})
    for _ in range(1000):
        for rows, seconds in ((16, 100.0), (15, 130.0)):
            contest.observe([rows], 1.1 * seconds)
            _steps(contest, rows, seconds)

    assert [times[rows] for rows in (12, 15, 16)] == pytest.approx([85.0, 130.0, 100.0], rel=0.1)


def test_one_row_that_is_not_the_fastest_pulls_no_other_down() -> None:
    """It is taken for the fastest where shapes are chosen; beside others it is what it is."""
    times, contest = _contest({1: 14.0, 2: 13.0})
    for _ in range(1000):
        _steps(contest, 1, 14.0)
        _steps(contest, 2, 13.0)

    assert times[1] == times[2] == pytest.approx(13.0)


def test_each_kind_of_step_has_its_own_memory() -> None:
    """Adapters that take turns of two steps teach as well as one that runs alone."""
    times, contest = _contest({7: 40.0, 8: 40.0})
    for i in range(400):
        kind = i // 2 % 2
        contest.observe([7 + i // 4 % 2], (20.0, 40.0)[i // 4 % 2] * (1 + kind), kind)

    assert times[8] / times[7] == pytest.approx(2.0, rel=0.1)


def test_steps_of_other_kinds_are_not_compared() -> None:
    """Adapters make a step longer, with any rows."""
    times, contest = _contest({3: 30.0, 4: 40.0})
    for _ in range(ALONG):
        contest.observe([4], 40.0, "plain")
        contest.observe([3], 60.0, "with an adapter")

    assert (times[3], times[4]) == (30.0, 40.0)


def test_runs_of_several_lengths_teach_nothing() -> None:
    """Which of them took how long nobody knows."""
    times, contest = _contest({1: 10.0, 2: 20.0})

    assert not contest.observe([1, 2], 5.0)
    assert (times[1], times[2]) == (10.0, 20.0)
